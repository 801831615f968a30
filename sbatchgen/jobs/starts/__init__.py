"""When a job would start: room, holes in the queue, Slurm's plan and its rough bound."""
