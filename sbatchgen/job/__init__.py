"""A resolved job as the rules judge it, and its trainer."""
