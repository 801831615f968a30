"""Where programs run that nobody trusts: bubblewrap's sandbox, with limits. It imports only errors."""
