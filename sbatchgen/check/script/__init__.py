"""A script as the rules judge it: what it asks for, what it starts, and what its trainer says."""
