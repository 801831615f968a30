"""YAML text -> nodes, each with its line, and the problems that are found on the way.

So that no file takes long to read, its depth and its number of values have limits; tags, merge keys and
directives are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import yaml

from sbatchgen.errors import DocumentError, Problem

MAX_DEPTH = 50  # of lists and mappings in each other
MAX_VALUES = 50_000  # with the keys
MAX_SHOWN = 20  # problems
MAX_TEXT = 300  # characters of a message
_DIRECTIVE = r"(?:\A|[\n\r\x85\u2028\u2029])%"  # libyaml takes time squared for %TAG lines


class ScalarNode(NamedTuple):
    """A single value as it is written; `plain` is without quotes."""

    line: int
    text: str
    plain: bool


class SequenceNode(NamedTuple):
    """A list."""

    line: int
    items: list[Node]


class MappingNode(NamedTuple):
    """A mapping, also with the keys that are written twice."""

    line: int
    pairs: list[tuple[Node, Node]]


Node = ScalarNode | SequenceNode | MappingNode


class Problems:
    """What is wrong with a file; the first MAX_SHOWN problems are kept."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self._kept: list[Problem] = []

    def add(self, line: int, what: str, fix: str | Callable[[], str] = "") -> None:
        """Note a problem; `fix` is a function if it takes time to find."""
        self.count += 1
        if self.count <= MAX_SHOWN:
            text = fix if isinstance(fix, str) else fix()
            self._kept.append(Problem(cut(what), f"{self.name}:{line}", cut(text)))

    def error(self) -> DocumentError:
        """All of them as one error."""
        more = self.count - len(self._kept)
        rest = [Problem(f"and {more} more problems", self.name, "fix the first ones and try again")]
        return DocumentError(self._kept + rest * bool(more))

    def end(self, line: int, what: str, fix: str = "") -> DocumentError:
        """The error of a problem after which nothing more can be read."""
        self.add(line, what, fix)
        return self.error()


def cut(text: str) -> str:
    """A message without the middle of a very long value."""
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"


def compose(text: str, problems: Problems) -> Node:
    """The nodes of the only document of a text; an empty mapping if there is none.

    Raises:
        DocumentError: It is not YAML.
    """
    text = text.removeprefix("\ufeff")
    _refuse_characters(text, problems)
    return _Composer(text, problems).document()


def _refuse_characters(text: str, problems: Problems) -> None:
    """Refuse what the parser reports without a line, or is too slow for."""
    if found := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        what = f"not valid YAML: the control character U+{ord(found[0]):04X} in column {column}"
        raise problems.end(line, what, "save it as UTF-8 text" if found[0] == "\0" else "remove it")
    if "%" in text and (found := re.search(_DIRECTIVE, text)):
        line = text.count("\n", 0, found.end()) + 1
        raise problems.end(line, "a line starts with %: YAML directives are not supported", "remove the line")


class _Composer:
    """Makes nodes of the parser's events."""

    def __init__(self, text: str, problems: Problems) -> None:
        self.problems = problems
        self.anchors: dict[str, tuple[Node, int]] = {}  # with the number of its values
        self.count = 0
        self.events = self._events(text)

    def _events(self, text: str) -> Iterator[Any]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            yield from yaml.parse(text, Loader=loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = f"not valid YAML: {error.problem or error.context}"
            fix = "look for an open quote or bracket, or a wrong indentation, in this line or above it"
            raise self.problems.end(mark.line + 1 if mark else 1, what, fix) from error

    def document(self) -> Node:
        root: Node = MappingNode(1, [])
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    what = "not valid YAML for this file: a second document starts here"
                    fix = "remove the --- before it, or put it into a file of its own"
                    self.problems.add(_line(event), what, fix)
                    break
            elif isinstance(event, yaml.NodeEvent):
                found = self.node(event, 0)
                if not is_nothing(found):
                    root = found
        return root

    def node(self, event: Any, depth: int) -> Node:
        """The node that starts with an event."""
        line = _line(event)
        self._limit(1, line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, line)
        if depth >= MAX_DEPTH:
            what = f"lists and mappings are nested more than {MAX_DEPTH} deep"
            raise self.problems.end(line, what, "is it the right file?")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.add(line, f"the tag {tag} is not supported: the key decides the type", "remove it")
        before = self.count
        node = self._made(event, line, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node, self.count - before
        return node

    def _made(self, event: Any, line: int, depth: int) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return ScalarNode(line, event.value, not event.style)
        inside = self._inside(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return SequenceNode(line, list(inside))
        return MappingNode(line, list(zip(inside, inside, strict=True)))

    def _inside(self, depth: int) -> Iterator[Node]:
        """The nodes up to the end of the list or mapping."""
        for event in self.events:
            if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                return
            yield self.node(event, depth + 1)

    def _alias(self, event: Any, line: int) -> Node:
        """The value of an alias. Its values count again: aliases of aliases grow fast."""
        node, count = self.anchors.get(event.anchor, (None, 0))
        if node is None:
            what = f"*{event.anchor} is not defined: no value before it has the anchor &{event.anchor}"
            self.problems.add(line, what, "write the value itself")
            return ScalarNode(line, "", plain=False)
        self._limit(count, line)
        return node

    def _limit(self, more: int, line: int) -> None:
        self.count += more
        if self.count > MAX_VALUES:
            what = f"more than {MAX_VALUES} keys and values, including those of aliases"
            raise self.problems.end(line, what, "is it the right file?")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def is_nothing(node: Node) -> bool:
    """Whether a value is written as nothing, not as ""."""
    return isinstance(node, ScalarNode) and node.text == "" and node.plain
