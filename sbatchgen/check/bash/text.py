"""The text of a script: its syntax tree, and the line and column of an offset."""

import re
from bisect import bisect_right
from typing import NamedTuple

from sbatchgen.base.frozen import cached_property
from sbatchgen.check.bash.grammar import EXPANSIONS, Node, parse

_SPANS = EXPANSIONS - {"simple_expansion"} | {"array"}


class Fault(NamedTuple):
    """An error of the grammar, and the line where the unread text starts."""

    text: str
    line: int


class ShellText:
    """The text of a script, or of a string in a script; offsets count characters from 0.

    `origin` is the line and the column of the text in the script that holds it.
    """

    def __init__(self, text: str, origin: tuple[int, int] = (1, 1), *, fixed: bool = False) -> None:
        if "\r" in text:
            text = text.replace("\\\r\n", " \\\n").replace("\r\n", " \n")
        self.text = text  # with a blank for each carriage return at the end of a line
        self._origin = origin
        self.fixed = fixed  # whether all offsets have the position `origin`, as in the value of a variable

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *map(re.Match.end, re.finditer("\n", self.text))]

    def position(self, at: int) -> tuple[int, int]:
        """Return the line and the column of an offset, both from 1, in the script that holds this text."""
        if self.fixed:
            return self._origin
        first_line, first_column = self._origin
        line = bisect_right(self._line_starts, at)
        column = at - self._line_starts[line - 1]
        return line + first_line - 1, column + (first_column if line == 1 else 1)

    @cached_property
    def _parsed(self) -> tuple[list[Node], tuple[Fault, ...], int]:
        tree = parse(self.text)
        unread = self.position(tree.end)[0] if tree.end >= 0 else 0
        return tree.nodes, tuple(Fault(what, self.position(at)[0]) for what, at in tree.faults), unread

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the syntax tree, each before its children; the first is the whole text."""
        return self._parsed[0]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The errors of the grammar."""
        return self._parsed[1]

    @property
    def unread(self) -> int:
        """The first unread line of a text that is too long or takes too much time; 0 if all were read."""
        return self._parsed[2]

    @cached_property
    def spans(self) -> dict[int, int]:
        """The end of each expansion and of each array, by its start."""
        return {node.start: node.end for node in self.nodes if node.kind in _SPANS}


class Placed:
    """Anything with a position in a script: `at` and `end` are offsets from 0, lines count from 1."""

    __slots__ = ()
    source: ShellText
    at: int
    end: int

    @property
    def line(self) -> int:
        """The line of the first character."""
        return self.source.position(self.at)[0]

    @property
    def column(self) -> int:
        """The column of the first character."""
        return self.source.position(self.at)[1]

    @property
    def end_line(self) -> int:
        """The line of the last character."""
        return self.source.position(self.end)[0]

    @property
    def end_column(self) -> int:
        """The column after the last character."""
        return self.source.position(self.end)[1]
