"""The linter: `lint` in `lint.linter` returns the findings of any script."""
