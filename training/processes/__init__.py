"""The processes of a run: how they start, meet and stop."""
