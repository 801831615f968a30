"""A shell with what a job has: its nodes, its environment, and its training as a function."""
