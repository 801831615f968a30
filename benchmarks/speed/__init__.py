"""The contests of benchmarks/training.py: ours against theirs, round by round."""
