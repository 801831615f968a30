"""A plan or a script as the rules see it."""
