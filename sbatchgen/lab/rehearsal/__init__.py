"""The rehearsal of a job: its run on this machine, with a stand-in for Slurm, and the report of the run."""
