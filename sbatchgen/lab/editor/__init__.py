"""The language server, which gives an editor findings, notes and choices for scripts, jobs and profiles."""
