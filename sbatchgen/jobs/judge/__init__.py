"""A resolved job as the rules judge it, its trainer, and the rules of both."""
