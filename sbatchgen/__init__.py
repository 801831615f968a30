"""Render, review and submit sbatch scripts for PyTorch on Slurm GPU clusters.

The flow has one direction: files and flags are read (`document`, `profile`, `job`), decided (`plan`),
checked (`check`), rendered (`render`), looked at (`review`) and submitted (`submit`). `cli` alone
prints, and alone reads the environment.
"""

__version__ = "0.1.0"
