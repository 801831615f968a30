"""The conversion of an existing script into a profile and a job YAML, with an account of each line."""
