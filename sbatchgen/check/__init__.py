"""Reads and judges any sbatch script. The caller gives the facts of the cluster, if it knows them."""
