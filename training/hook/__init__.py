"""The modules that PYTHONPATH lets each trainer import at its start."""
