"""Replaces py-tree-sitter in a browser, with the parts that `sbatchgen.check.bash.grammar` uses.

There web-tree-sitter parses. JavaScript walks its tree, and gives each node as four numbers: its kind, its
start, its end and its depth. A missing token of the kind K has the number ~K, which is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# By its number, each kind of nodes: its name, whether it is named, and whether it is visible.
# `sbatchgen_in_browser` sets the kinds.
kinds: Sequence[tuple[str, bool, bool]] = ()


def rows(text: str, seconds: float) -> Any:
    """Return four numbers for each node of a text; None if parsing takes longer than `seconds`.

    `sbatchgen_in_browser` replaces this function by one of JavaScript.
    """
    raise NotImplementedError(text, seconds)


ERROR = 0xFFFF  # the kind of nodes that tree-sitter can't parse; `kinds` does not have it
SECONDS_MAX = 1.0  # seconds that a text may take to be parsed


class Language:
    """The grammar of bash, which numbers the kinds of nodes."""

    def __init__(self, _: object) -> None:
        self.node_kind_count = len(kinds)

    def node_kind_for_id(self, number: int) -> str:
        """Return the name of a kind."""
        return kinds[number][0]

    def node_kind_is_named(self, number: int) -> bool:
        """Return whether a kind has a name of its own."""
        return kinds[number][1]

    def node_kind_is_visible(self, number: int) -> bool:
        """Return whether nodes of a kind are in the tree."""
        return kinds[number][2]


class Parser:
    """A parser of bash, which JavaScript does the work for."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def reset(self) -> None:
        """Do nothing, because JavaScript forgets an unfinished text itself."""

    def parse(self, read: Callable[[int, None], bytes], progress_callback: object) -> WalkedTree:
        """Return the tree of an ASCII text; raise ValueError after SECONDS_MAX, as py-tree-sitter does."""
        del progress_callback  # JavaScript has a clock of its own
        text = bytearray()
        while piece := read(len(text), None):
            text += piece
        numbers = rows(text.decode("ascii"), SECONDS_MAX)
        if numbers is None:
            raise ValueError("stopped")
        return WalkedTree(numbers.to_py().tolist())


class Node(NamedTuple):
    """A node of a syntax tree."""

    kind_id: int  # the number of its kind
    type: str  # the name of its kind
    is_missing: bool  # whether it is a token that the text lacks
    start_byte: int
    end_byte: int
    has_error: bool


class WalkedTree:
    """A syntax tree as lists of numbers, which have each node before its children."""

    def __init__(self, numbers: list[int]) -> None:
        self.kinds, self.starts, self.ends, self.depths = (numbers[first::4] for first in range(4))
        # The positions of errors and missing tokens in the lists, and of all nodes around them.
        self.faulty: set[int] = set()
        around: list[int] = []  # the positions of the current node and of the nodes around it
        for position, (kind, depth) in enumerate(zip(self.kinds, self.depths, strict=True)):
            while around and self.depths[around[-1]] >= depth:
                around.pop()
            around.append(position)
            if kind < 0 or kind == ERROR:
                self.faulty.update(around)

    def walk(self) -> Cursor:
        """Return a cursor at the first node."""
        return Cursor(self)


class Cursor:
    """A cursor, which is at one node of a tree and moves to other nodes."""

    def __init__(self, tree: WalkedTree) -> None:
        self._tree, self._position = tree, 0
        self._parents: list[int] = []  # the positions of the nodes around the cursor's node

    @property
    def node(self) -> Node:
        """The node at the cursor."""
        tree, position = self._tree, self._position
        number = tree.kinds[position]
        kind = number if number >= 0 else ~number
        name = "ERROR" if kind == ERROR else kinds[kind][0]
        return Node(
            kind, name, number < 0, tree.starts[position], tree.ends[position], position in tree.faulty
        )

    def goto_first_child(self) -> bool:
        """Move to the first child; return whether there is a child."""
        depths, child = self._tree.depths, self._position + 1
        if child == len(depths) or depths[child] <= depths[self._position]:
            return False
        self._parents.append(self._position)
        self._position = child
        return True

    def goto_next_sibling(self) -> bool:
        """Move to the next sibling; return whether there is a sibling."""
        depths = self._tree.depths
        depth, after = depths[self._position], self._position + 1
        while after < len(depths) and depths[after] > depth:
            after += 1
        if after == len(depths) or depths[after] < depth:
            return False
        self._position = after
        return True

    def goto_parent(self) -> bool:
        """Move to the parent; return whether there is a parent."""
        if not self._parents:
            return False
        self._position = self._parents.pop()
        return True
