"""Where untrusted programs run: bubblewrap's sandbox, with limits. It imports only errors and machine."""
