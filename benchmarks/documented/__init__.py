"""The documented examples of centres, read as items that a rendered script can have in common with them."""
