"""From layers of input to one plan, and what it asks Slurm for."""
