"""Reads the text of a YAML file as nodes, each with its line, and collects the problems of the text.

`document` makes values of the nodes. The depth and the number of values have limits, so that no file takes
long to read. Tags and directives are refused.
"""

import re
from collections.abc import Callable
from typing import Any

import yaml

from sbatchgen.base.errors import DocumentError, Problem

MAX_DEPTH = 50  # nested lists and mappings
MAX_VALUES = 50_000  # keys and values, including the values of aliases
MAX_SHOWN = 20  # problems that an error shows
MAX_TEXT = 300  # characters of a message
# A line that starts with %, such as "%TAG ! x:". Such lines are refused, because libyaml's time grows with
# the square of their number.
_DIRECTIVE = r"(?:\A|[\n\r\x85\u2028\u2029])%"
# The base classes of the composer, the parser last. With libyaml: its fast parser, but PyYAML's composer,
# because libyaml's composer overflows the stack on deep nesting.
_BASES: Any = (yaml.composer.Composer, yaml.CBaseLoader) if yaml.__with_libyaml__ else (yaml.BaseLoader,)


class Problems:
    """The problems of one file, in the order in which they are found."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.count = 0
        self._shown: list[Problem] = []

    def add(self, line: int, what: str, fix: str | Callable[[], str] = "") -> None:
        """Add a problem at a line of the file.

        `fix` is a text or a function that returns the text. The function is only called for a problem that is
        shown, because some fixes take time to find.
        """
        self.count += 1
        if self.count <= MAX_SHOWN:
            text = fix if isinstance(fix, str) else fix()
            self._shown.append(Problem(shortened(what), f"{self.file}:{line}", shortened(text)))

    def error(self) -> DocumentError:
        """Return one error with the first MAX_SHOWN problems and the number of the others."""
        more = self.count - len(self._shown)
        if not more:
            return DocumentError(self._shown)
        rest = Problem(
            f"and {more} more problems" if more > 1 else "and 1 more problem",
            self.file,
            "fix the first ones and try again",
        )
        return DocumentError([*self._shown, rest])

    def fatal(self, line: int, what: str, fix: str = "") -> DocumentError:
        """Add a problem after which reading can't continue, and return the error to raise."""
        self.add(line, what, fix)
        return self.error()


def shortened(text: str) -> str:
    """Return a message; of one with more than MAX_TEXT characters, only its start and its end."""
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"


def compose(text: str, problems: Problems) -> yaml.Node:
    """Return the root node of the only document of a text; an empty mapping if there is no document.

    Raises DocumentError if the text is not YAML, or has several documents.
    """
    text = text.removeprefix("\ufeff")
    if match := yaml.reader.Reader.NON_PRINTABLE.search(text):  # the parser reports it without a line
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        what = f"not valid YAML: the control character U+{ord(match[0]):04X} in column {column}"
        raise problems.fatal(line, what, "save it as UTF-8 text" if match[0] == "\0" else "remove it")
    if "%" in text and (match := re.search(_DIRECTIVE, text)):
        line = text.count("\n", 0, match.end()) + 1
        raise problems.fatal(
            line, "a line starts with %: YAML directives are not supported", "remove the line"
        )
    try:
        root: yaml.Node | None = _Composer(text, problems).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"not valid YAML: {', '.join(filter(None, (error.context, error.problem)))}"
        fix = "look for an open quote or bracket, or a wrong indentation, in this line or above it"
        if "another document" in what:
            fix = "remove the --- before it, or put it into a file of its own"
        elif mark and re.match(r" *\t", "".join(text.split("\n")[mark.line : mark.line + 1])):
            what, fix = "not valid YAML: a tab indents the line", "indent it with spaces"
        raise problems.fatal(mark.line + 1 if mark else 1, what, fix) from error
    return compose("{}", problems) if root is None or is_nothing(root) else root


class _Composer(*_BASES):  # type: ignore[misc]
    """PyYAML's composer, with limits for the depth and the number of values. It reports tags as problems."""

    def __init__(self, text: str, problems: Problems) -> None:
        _BASES[-1].__init__(self, text)  # the parser
        self.anchors: dict[str, yaml.Node] = {}
        self.problems = problems
        self.depth = 0  # how many lists and mappings the next node is in
        self.count = 0  # how many values were read
        # How many values each anchor names. An anchor is added after its last value, so that an alias inside
        # its own anchor is refused.
        self.sizes: dict[str, int] = {}

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        """Return the next node; PyYAML calls this method for each node."""
        event, count_before = self.peek_event(), self.count
        line, is_alias = event.start_mark.line + 1, isinstance(event, yaml.AliasEvent)
        if is_alias and event.anchor not in self.sizes:
            what = f"*{event.anchor} is not defined: no value before it has the anchor &{event.anchor}"
            raise self.problems.fatal(line, what, "write the value itself")
        self.count += self.sizes[event.anchor] if is_alias else 1
        if self.count > MAX_VALUES:
            what = f"more than {MAX_VALUES} keys and values, including those of aliases"
            raise self.problems.fatal(line, what, "name another file, or split this one")
        if self.depth >= MAX_DEPTH:
            what = f"lists and mappings are nested more than {MAX_DEPTH} deep"
            raise self.problems.fatal(line, what, "name another file, or nest less")
        if not is_alias and event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.add(line, f"the tag {tag} is not supported: the key decides the type", "remove it")
        self.depth += 1
        node: yaml.Node = super().compose_node(parent, index)
        self.depth -= 1
        if event.anchor is not None and not is_alias:
            self.sizes[event.anchor] = self.count - count_before
        return node


def line_of(node: yaml.Node) -> int:
    """Return the line on which a node starts."""
    return int(node.start_mark.line) + 1


def is_nothing(node: yaml.Node) -> bool:
    """Return whether nothing is written for a value: "key:"; a value of "" in quotes is something."""
    return isinstance(node, yaml.ScalarNode) and node.value == "" and not node.style


def is_null(node: yaml.Node) -> bool:
    """Return whether a value is YAML's null: nothing is written, or null or ~ without quotes."""
    return isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~") and not node.style
