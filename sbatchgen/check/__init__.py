"""Any sbatch script, read and judged. Without a profile: facts of a cluster are asked for."""
