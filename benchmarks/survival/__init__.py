"""The faults of benchmarks/faults.py, and their figures."""
