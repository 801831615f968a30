"""From layers of input to one resolved job and its request of Slurm."""
