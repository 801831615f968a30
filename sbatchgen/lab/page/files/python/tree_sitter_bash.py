"""The package of this name in a browser, where JavaScript has the grammar."""


def language() -> None:
    """Return None, the argument of `tree_sitter.Language`."""
