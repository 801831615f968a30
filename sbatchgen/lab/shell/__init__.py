"""A shell on the nodes of a job, with the job's environment, and its training as a function."""
