"""A job as the rules judge it, from a plan or from a script."""
