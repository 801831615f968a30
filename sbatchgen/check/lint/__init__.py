"""Reading scripts critically: `lint` of `lint.linter` gives the findings of a script, ours or not."""
