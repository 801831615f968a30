"""The keys of YAML around a cursor, found by indentation: a file that somebody writes is rarely whole.

Also what an editor gets: a text about the word under the cursor, and what may be written there.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_LINE = re.compile(
    r"""(?P<indent> *)(?P<items>(?:- +)*)(?:(?P<key>[^\s#:,{}\[\]'"][^:#{}\[\],]*):(?=\s|$))?"""
)
_TOKEN = re.compile(r"""(?P<string>"[^"]*"?|'[^']*'?)|(?P<mark>[{}\[\],]|:(?=\s|$))|[^{}\[\],:"']+|:""")
_WORD = re.compile(r"[^\s{}\[\],:\"']*$")
ITEM = "[]"  # an item of a list, in a path


class Cursor(NamedTuple):
    """Where a cursor is."""

    path: tuple[str, ...]  # the keys above it; ITEM for an item of a list
    key: str  # the key whose value it is in; "" where a key is written
    word: str  # what is written of the word before it
    column: int  # where this word starts, from 1


def cursor(lines: Sequence[str], line: int, column: int) -> Cursor:
    """Return where a cursor is; lines and columns count from 1."""
    before = lines[line - 1][: column - 1]
    shape = _LINE.match(before)
    assert shape is not None  # noqa: S101 - it matches every line
    items = shape["items"].count("-")
    path = [*_above(lines[: line - 1], len(shape["indent"]), in_list=bool(items)), *[ITEM] * items]
    key = shape["key"].strip() if shape["key"] else ""
    path, key = _inside(path, key, before[shape.end() :])
    word = _WORD.search(before)
    start = word[0] if word else ""
    return Cursor(tuple(path), key, start, column - len(start))


def _above(lines: Sequence[str], indent: int, *, in_list: bool) -> list[str]:
    path: list[str] = []
    dash, key = indent, indent + in_list  # the items of a list may start where its key does
    for text in reversed(lines):
        shape = _LINE.match(text)
        if not shape or not text.strip() or text.lstrip().startswith("#"):
            continue
        start, width, name = len(shape["indent"]), len(shape["items"]), (shape["key"] or "").strip()
        if width and start < dash:
            path[:0] = [ITEM, name] if name and start + width < key else [ITEM]
            dash, key = start, start + 1
        elif not width and name and start < key:
            path[:0] = [name]
            dash = key = start
        if key <= 0:
            break
    return path


def _inside(path: list[str], key: str, text: str) -> tuple[list[str], str]:
    """Follow the brackets of a line, as in {nodes: 2, mem: 4G}."""
    outer: list[tuple[list[str], str]] = []
    word = ""
    for match in _TOKEN.finditer(text):
        mark = match["mark"] or ""
        if mark in ("{", "["):
            outer.append((path, key))
            path = [*path, *([key] if key else []), *([ITEM] if mark == "[" else [])]
            key = ""
        elif mark in ("}", "]") and outer:
            path, key = outer.pop()
        elif mark == ":":
            key = word
        elif mark == "," and outer:
            key = ""
        if not mark:
            word = match[0].strip().strip("\"'")
    return path, key


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
