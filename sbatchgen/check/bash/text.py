"""The text of a script: its syntax tree, and the positions of its characters in the file.

The classes of commands, words and assignments derive from `TextRange`, which knows their lines and columns.
"""

import re
from bisect import bisect_right
from typing import NamedTuple

from sbatchgen.base.frozen import cached_property
from sbatchgen.check.bash.grammar import EXPANSIONS, Node, parse

# Kinds of nodes that the reader of words takes as one piece: $( ), ${NAME} and NAME=( ). The reader finds the
# end of a plain $NAME itself.
_PIECE_KINDS = EXPANSIONS - {"simple_expansion"} | {"array"}


class Fault(NamedTuple):
    """A place where the grammar does not understand the text as bash."""

    message: str  # such as "not understood as bash"
    line: int  # the line of the script, from 1


class ShellText:
    """The text of a script, or of a string in a script, such as the string of bash -c.

    An offset counts the characters of this text from 0. A position is a line and a column of the script that
    holds the text, both from 1.
    """

    def __init__(
        self, text: str, origin: tuple[int, int] = (1, 1), *, has_one_position: bool = False
    ) -> None:
        # A carriage return at the end of a line becomes a blank, which bash skips. All offsets stay the same.
        if "\r" in text:
            text = text.replace("\\\r\n", " \\\n").replace("\r\n", " \n")
        self.text = text
        self._origin = origin  # the position of the first character
        # Whether all offsets have the position `origin`. The value of a variable is an example: its text is
        # not at the place where the script uses the variable.
        self.has_one_position = has_one_position

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *map(re.Match.end, re.finditer("\n", self.text))]

    def position(self, at: int) -> tuple[int, int]:
        """Return the line and the column of an offset in the script that holds this text."""
        if self.has_one_position:
            return self._origin
        first_line, first_column = self._origin
        line = bisect_right(self._line_starts, at)
        column = at - self._line_starts[line - 1]
        return line + first_line - 1, column + (first_column if line == 1 else 1)

    @cached_property
    def _parsed(self) -> tuple[list[Node], tuple[Fault, ...], int]:
        tree = parse(self.text)
        first_unread_line = self.position(tree.end)[0] if tree.end >= 0 else 0
        faults = tuple(Fault(message, self.position(at)[0]) for message, at in tree.faults)
        return tree.nodes, faults, first_unread_line

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the syntax tree, each before its children; the first is the whole text."""
        return self._parsed[0]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The places that the grammar does not understand."""
        return self._parsed[1]

    @property
    def first_unread_line(self) -> int:
        """The line from which on the text is not parsed, as that would take too long; 0 if all is parsed."""
        return self._parsed[2]

    @cached_property
    def end_by_start(self) -> dict[int, int]:
        """The offset where each expansion and each array ends, by the offset where it starts."""
        return {node.start: node.end for node in self.nodes if node.kind in _PIECE_KINDS}


class TextRange:
    """A part of a `ShellText`, from the offset `at` to the offset `end`, with its position in the script."""

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
