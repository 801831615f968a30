"""The dry run of a script: its run in a sandbox, on nodes that do not exist, among stand-ins."""
