"""The check for words that the project does not use reads prose, and leaves code alone."""

from __future__ import annotations

from tests.words import prose_hits, python_hits

SOURCE = '''
def look(one: int) -> str:
    """It is told."""  # nobody
    found = "goes on here", "told"
    return f"there is no file {found}"
'''


def test_names_strings_and_comments_of_python_are_read() -> None:
    hits = sorted((line, words) for line, words, _ in python_hits(SOURCE))
    assert hits == [(2, "the name one"), (3, "nobody"), (3, "told"), (4, "goes on"), (4, "the name found")]


def test_a_phrase_may_cross_a_line() -> None:
    assert [(line, words) for line, words, _ in prose_hits("a\nit goes\non, and is\nnone; it is None")] == [
        (2, "goes on"),
        (3, "is none"),
    ]
    assert not [*prose_hits("It stands for x. There is no y. A stand-in, a standard. It is no longer z.")]
