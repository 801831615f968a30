"""A script as the rules judge it: its request of Slurm, its launches, and the source of its trainer."""
