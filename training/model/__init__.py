"""Models, optimizers and precision."""
