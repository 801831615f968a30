"""Attacks of benchmarks/hostile.py: on run folders, checkpoints, scripts to adopt, and completion."""
