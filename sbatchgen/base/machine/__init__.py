"""This machine: its programs and how they start, temporary folders, mounts, and who can write a file."""
