"""This machine: where its programs are found and started, and temporary folders made."""
