"""Tests of the training package: its mathematics, its files, and whole runs in processes."""
