"""Finds the keys around the cursor in a YAML file, by their indentation.

A YAML parser does not help, because a file is rarely complete while a user writes it. The module also has the
types of answers to an editor: notes and choices.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# The indent, the dashes and the key of a line such as "  - nodes: 2".
_LINE = re.compile(
    r"""(?P<indent> *)(?P<items>(?:- +)*)(?:(?P<key>[^\s#:,{}\[\]'"][^:#{}\[\],]*):(?=\s|$))?"""
)
# A part of a value in brackets: a quoted string, a mark such as { or a comma, or other text.
_TOKEN = re.compile(r"""(?P<string>"[^"]*"?|'[^']*'?)|(?P<mark>[{}\[\],]|:(?=\s|$))|[^{}\[\],:"']+|:""")
_LAST_WORD = re.compile(r"[^\s{}\[\],:\"']*$")
ITEM = "[]"  # an item of a list, in a path


class Cursor(NamedTuple):
    """The place of a cursor in YAML."""

    path: tuple[str, ...]  # the keys above the cursor, outermost first; ITEM stands for an item of a list
    key: str  # the key in whose value the cursor is; "" if a key is being written
    word: str  # the part of the word before the cursor
    column: int  # the column at which the word starts, from 1


def cursor(lines: Sequence[str], line: int, column: int) -> Cursor:
    """Return the place of a cursor in a file with these lines; `line` and `column` count from 1."""
    before = lines[line - 1][: column - 1]
    parts = _LINE.match(before)
    assert parts is not None  # noqa: S101 - _LINE matches every line
    dashes = parts["items"].count("-")
    path = [*_keys_above(lines[: line - 1], len(parts["indent"]), in_list=bool(dashes)), *[ITEM] * dashes]
    key = parts["key"].strip() if parts["key"] else ""
    path, key = _keys_in_brackets(path, key, before[parts.end() :])
    match = _LAST_WORD.search(before)
    word = match[0] if match else ""
    return Cursor(tuple(path), key, word, column - len(word))


def _keys_above(lines: Sequence[str], indent: int, *, in_list: bool) -> list[str]:
    """Return the keys above the line that follows `lines` and has this indent, outermost first.

    A key or a dash is above the line if it is further to the left than those of all lines between.
    `in_list`: the line itself begins with a dash.
    """
    path: list[str] = []
    # A dash is above the line if its column is less than `max_dash`, and a key if its column is less than
    # `max_key`. The two may differ by one, because a key and the dashes of its list may have the same indent.
    max_dash, max_key = indent, indent + in_list
    for text in reversed(lines):
        parts = _LINE.match(text)
        if not parts or not text.strip() or text.lstrip().startswith("#"):
            continue
        column, dashes_width, name = len(parts["indent"]), len(parts["items"]), (parts["key"] or "").strip()
        if dashes_width and column < max_dash:
            path[:0] = [ITEM, name] if name and column + dashes_width < max_key else [ITEM]
            max_dash, max_key = column, column + 1
        elif not dashes_width and name and column < max_key:
            path[:0] = [name]
            max_dash = max_key = column
        if max_key <= 0:
            break
    return path


def _keys_in_brackets(path: list[str], key: str, text: str) -> tuple[list[str], str]:
    """Return the path and the key at the end of `text`, which may have brackets as in {nodes: 2, mem: 4G}.

    `path` and `key` are those at the start of the text.
    """
    outer: list[tuple[list[str], str]] = []  # the path and the key before each open bracket
    word = ""  # the last text that is not a mark; it is a key if a colon follows
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
    """A text that an editor offers at the cursor."""

    text: str  # the text to write
    kind: str  # "option", "key", "value" or "rule"
    description: str = ""  # in one line
    is_common: bool = False  # whether an editor shows the choice before choices that are less common


class Choices(NamedTuple):
    """The choices at a cursor."""

    column: int = 1  # a choice replaces the text from this column to the cursor
    items: tuple[Choice, ...] = ()


def choices_with_start(choices: Iterable[Choice], start: str, column: int) -> Choices:
    """Return the choices that begin with `start`, which the user has written from `column` on."""
    return Choices(column, tuple(choice for choice in choices if choice.text.startswith(start)))
