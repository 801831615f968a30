"""Profiles and jobs as people write them: their keys, their YAML, and the search for their files."""
