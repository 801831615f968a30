"""A job run through on this machine, with Slurm played: what that proves, and what only the cluster shows."""
