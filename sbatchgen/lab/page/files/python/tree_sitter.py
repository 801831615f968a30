"""What `sbatchgen.check.bash.grammar` uses of py-tree-sitter, over web-tree-sitter: for a browser.

JavaScript walks the tree and gives each node as four numbers: its kind, negative for a token that is missing;
its start; its end; its depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# Of this process: what JavaScript gives, set by `sbatchgen_in_browser`.
kinds: Sequence[tuple[str, bool, bool]] = ()


def rows(text: str, seconds: float) -> Any:
    """Return the numbers of a text, or None if that takes too long; JavaScript's function is put here."""
    raise NotImplementedError(text, seconds)


ERROR = 0xFFFF
SECONDS_MAX = 1.0


class Language:
    """The grammar, by the numbers of its kinds of nodes."""

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
    """Reads a text."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def reset(self) -> None:
        """Forget an unfinished text; JavaScript has done that."""

    def parse(self, read: Callable[[int, None], bytes], progress_callback: object) -> WalkedTree:
        """Return the tree of a text of ASCII. Raises ValueError if that takes too long."""
        del progress_callback  # JavaScript has a clock of its own
        text = bytearray()
        while piece := read(len(text), None):
            text += piece
        numbers = rows(text.decode("ascii"), SECONDS_MAX)
        if numbers is None:
            raise ValueError("stopped")
        return WalkedTree(numbers.to_py().tolist())


class Node(NamedTuple):
    """A node: the number and the name of its kind, whether the text lacks it, and its place."""

    kind_id: int
    type: str
    is_missing: bool
    start_byte: int
    end_byte: int


class WalkedTree:
    """The numbers of all nodes, each before its children."""

    def __init__(self, numbers: list[int]) -> None:
        self.kinds, self.starts, self.ends, self.depths = (numbers[at::4] for at in range(4))

    def walk(self) -> Cursor:
        """Return a cursor at the first node."""
        return Cursor(self)


class Cursor:
    """A place in a tree."""

    def __init__(self, tree: WalkedTree) -> None:
        self._tree, self._at, self._above = tree, 0, list[int]()

    @property
    def node(self) -> Node:
        """The node there."""
        number, tree, at = self._tree.kinds[self._at], self._tree, self._at
        kind = number if number >= 0 else ~number
        name = "ERROR" if kind == ERROR else kinds[kind][0]
        return Node(kind, name, number < 0, tree.starts[at], tree.ends[at])

    def goto_first_child(self) -> bool:
        """Move to the first node in this one, if there is one."""
        depths, child = self._tree.depths, self._at + 1
        if child == len(depths) or depths[child] <= depths[self._at]:
            return False
        self._above.append(self._at)
        self._at = child
        return True

    def goto_next_sibling(self) -> bool:
        """Move to the next node at this depth in the same one, if there is one."""
        depths = self._tree.depths
        depth, after = depths[self._at], self._at + 1
        while after < len(depths) and depths[after] > depth:
            after += 1
        if after == len(depths) or depths[after] < depth:
            return False
        self._at = after
        return True

    def goto_parent(self) -> bool:
        """Move to the node around this one, if there is one."""
        if not self._above:
            return False
        self._at = self._above.pop()
        return True
