"""Scripts as rules judge them: the request of Slurm, the launches, and the source of the trainer."""
