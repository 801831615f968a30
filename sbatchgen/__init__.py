"""Render, review and submit sbatch scripts for PyTorch on Slurm GPU clusters.

One direction: input is read (`inputs`), decided (`resolved`), checked (`rules`), rendered (`render`),
reviewed (`review`) and submitted (`submit`). Only `cli` prints and reads the environment.
"""

__version__ = "0.3.0"
