"""Checkpoints on disk, and the lock of a run folder."""
