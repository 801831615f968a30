"""A run: its state, its steps, its validation, saving and resuming."""
