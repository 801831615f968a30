"""A job, from its file to its script, its submission and its runs."""
