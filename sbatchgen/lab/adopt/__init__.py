"""An existing script turned into a profile and a job YAML, with an account of each of its lines."""
