"""What a script starts: it runs in a sandbox, on nodes that do not exist, with stand-ins for what it starts."""
