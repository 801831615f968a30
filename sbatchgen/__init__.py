"""Render, review and submit sbatch scripts for PyTorch on Slurm GPU clusters.

One direction: files and flags are read (`inputs`), decided (`plan`), checked (`rules`), rendered (`render`),
reviewed (`review`) and submitted (`submit`). Only `cli` prints and reads the environment.
"""

__version__ = "0.2.0"
