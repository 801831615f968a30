"""Runs: their index and records, the states of their jobs, their logs, causes of failures, and plots."""
