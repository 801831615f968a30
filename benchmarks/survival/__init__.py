"""The faults of benchmarks/faults.py: what goes wrong, and the figures that come of it."""
