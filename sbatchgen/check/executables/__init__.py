"""Programs: how each reads its options, what it starts, and what is known of it."""
