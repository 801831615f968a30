"""The part of py-tree-sitter that `sbatchgen.check.bash.grammar` uses, made of web-tree-sitter in a browser.

JavaScript walks the tree and gives each node as four numbers: its kind, its start, its end and its depth. The
kind of a missing token is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# The kinds of nodes: name, whether named, whether visible. `sbatchgen_in_browser` sets them.
kinds: Sequence[tuple[str, bool, bool]] = ()


def rows(text: str, seconds: float) -> Any:
    """Return the numbers of a text's nodes; None after `seconds`. JavaScript replaces this function."""
    raise NotImplementedError(text, seconds)


ERROR = 0xFFFF
SECONDS_MAX = 1.0


class Language:
    """The grammar, with a number for each kind of nodes."""

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
    """A parser of texts."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def reset(self) -> None:
        """Do nothing, because JavaScript forgets an unfinished text itself."""

    def parse(self, read: Callable[[int, None], bytes], progress_callback: object) -> WalkedTree:
        """Return the tree of an ASCII text; raise ValueError after SECONDS_MAX."""
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
    """The tree as numbers of all nodes, each before its children."""

    def __init__(self, numbers: list[int]) -> None:
        self.kinds, self.starts, self.ends, self.depths = (numbers[at::4] for at in range(4))
        # Nodes that are an error or a missing token, and the nodes around these.
        self.faulty: set[int] = set()
        above: list[int] = []
        for at, (kind, depth) in enumerate(zip(self.kinds, self.depths, strict=True)):
            while above and self.depths[above[-1]] >= depth:
                above.pop()
            above.append(at)
            if kind < 0 or kind == ERROR:
                self.faulty.update(above)

    def walk(self) -> Cursor:
        """Return a cursor at the first node."""
        return Cursor(self)


class Cursor:
    """A place in a tree."""

    def __init__(self, tree: WalkedTree) -> None:
        self._tree, self._at, self._above = tree, 0, list[int]()

    @property
    def node(self) -> Node:
        """The node at the cursor."""
        number, tree, at = self._tree.kinds[self._at], self._tree, self._at
        kind = number if number >= 0 else ~number
        name = "ERROR" if kind == ERROR else kinds[kind][0]
        return Node(kind, name, number < 0, tree.starts[at], tree.ends[at], at in tree.faulty)

    def goto_first_child(self) -> bool:
        """Move to the first child; return whether there is a child."""
        depths, child = self._tree.depths, self._at + 1
        if child == len(depths) or depths[child] <= depths[self._at]:
            return False
        self._above.append(self._at)
        self._at = child
        return True

    def goto_next_sibling(self) -> bool:
        """Move to the next sibling; return whether there is a sibling."""
        depths = self._tree.depths
        depth, after = depths[self._at], self._at + 1
        while after < len(depths) and depths[after] > depth:
            after += 1
        if after == len(depths) or depths[after] < depth:
            return False
        self._at = after
        return True

    def goto_parent(self) -> bool:
        """Move to the parent; return whether there is a parent."""
        if not self._above:
            return False
        self._at = self._above.pop()
        return True
