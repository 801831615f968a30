"""Data sets, the order of their samples, and batches."""
