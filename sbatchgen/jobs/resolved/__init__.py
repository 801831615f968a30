"""From layers of input to one resolved job, and what it asks Slurm for."""
