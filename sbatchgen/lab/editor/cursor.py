"""The cursor in a file of YAML: the keys around it, by their indentation.

A parser of YAML does not help, because a file is rarely complete while a user writes it. The module also has
the types of the answers to an editor: notes and choices.
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
    """The place of a cursor in YAML."""

    path: tuple[str, ...]  # the keys above the cursor; ITEM for an item of a list
    key: str  # the key in whose value the cursor is; "" if a key is being written
    word: str  # the part of the word before the cursor
    column: int  # the column at which the word starts, from 1


def cursor(lines: Sequence[str], line: int, column: int) -> Cursor:
    """Return the place of a cursor in a file with these lines; `line` and `column` count from 1."""
    before = lines[line - 1][: column - 1]
    shape = _LINE.match(before)
    assert shape is not None  # noqa: S101 - _LINE matches every line
    items = shape["items"].count("-")
    path = [*_keys_above(lines[: line - 1], len(shape["indent"]), in_list=bool(items)), *[ITEM] * items]
    key = shape["key"].strip() if shape["key"] else ""
    path, key = _keys_in_brackets(path, key, before[shape.end() :])
    word = _WORD.search(before)
    start = word[0] if word else ""
    return Cursor(tuple(path), key, start, column - len(start))


def _keys_above(lines: Sequence[str], indent: int, *, in_list: bool) -> list[str]:
    """Return the keys above a place, outermost first.

    A line is above the place if its dash or its key is further to the left than those of all lines between.
    """
    path: list[str] = []
    # A dash must be to the left of the first column, and a key to the left of the second. These columns may
    # differ by one, because a key and the dashes of its list may have the same indent.
    dash_below, key_below = indent, indent + in_list
    for text in reversed(lines):
        shape = _LINE.match(text)
        if not shape or not text.strip() or text.lstrip().startswith("#"):
            continue
        start, dashes, name = len(shape["indent"]), len(shape["items"]), (shape["key"] or "").strip()
        if dashes and start < dash_below:
            path[:0] = [ITEM, name] if name and start + dashes < key_below else [ITEM]
            dash_below, key_below = start, start + 1
        elif not dashes and name and start < key_below:
            path[:0] = [name]
            dash_below = key_below = start
        if key_below <= 0:
            break
    return path


def _keys_in_brackets(path: list[str], key: str, text: str) -> tuple[list[str], str]:
    """Return the path and the key at the end of a line with brackets, such as {nodes: 2, mem: 4G}."""
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
    column: int  # the first column of the part
    end: int  # the column after the part


class Choice(NamedTuple):
    """A text that may be written at the cursor."""

    text: str  # the text to write
    kind: str  # "option", "key", "value" or "rule"
    about: str = ""  # a description in a line
    common: bool = False  # whether an editor shows the choice before the others


class Choices(NamedTuple):
    """The choices at a cursor."""

    column: int = 1  # a choice replaces the text from this column to the cursor
    items: tuple[Choice, ...] = ()


def choices_with_start(choices: Iterable[Choice], start: str, column: int) -> Choices:
    """Return the choices that begin with `start`, which is written from `column` on."""
    return Choices(column, tuple(choice for choice in choices if choice.text.startswith(start)))
