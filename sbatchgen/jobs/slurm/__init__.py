"""What Slurm answers, in plain words."""
