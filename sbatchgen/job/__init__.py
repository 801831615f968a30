"""A job as the rules judge it, from a resolved job or from a script."""
