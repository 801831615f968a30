"""What a script starts, seen by running it in a sandbox: on nodes that do not exist, among stand-ins."""
