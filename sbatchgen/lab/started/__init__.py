"""The rules of what a script starts, as its dry run shows."""
