"""From the reviewed script to sbatch."""
