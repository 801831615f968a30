"""A profile from a live cluster, and a profile compared with it."""
