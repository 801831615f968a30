"""The language server: findings, notes and choices for scripts, jobs and profiles in an editor."""
