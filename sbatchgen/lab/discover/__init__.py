"""Profiles of live clusters, and the comparison of a profile with its cluster."""
