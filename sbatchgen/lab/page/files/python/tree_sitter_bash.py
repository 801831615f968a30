"""Stands for the package of this name in a browser, where JavaScript has the grammar."""


def language() -> None:
    """Return what `tree_sitter.Language` takes."""
