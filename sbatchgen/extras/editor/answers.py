"""What an editor gets: a text about the word under the cursor, and what may be written there."""

from collections.abc import Iterable
from typing import NamedTuple


class Note(NamedTuple):
    """A text in Markdown about a part of a line; lines and columns count from 1."""

    text: str
    line: int
    column: int
    end: int


class Choice(NamedTuple):
    """Something that may be written at the cursor."""

    text: str  # what is written
    kind: str  # "option", "key", "value" or "rule"
    about: str = ""  # what it is, in a line
    common: bool = False  # whether it is shown before the others


class Choices(NamedTuple):
    """All that may be written, and the column of what they replace, up to the cursor."""

    column: int = 1
    items: tuple[Choice, ...] = ()


def starting(choices: Iterable[Choice], start: str, column: int) -> Choices:
    """Return the choices that start so."""
    return Choices(column, tuple(choice for choice in choices if choice.text.startswith(start)))
