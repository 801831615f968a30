"""The conversion of an existing script into a profile and a job YAML, with the outcome of each line."""
