"""A script's text and its tree: positions, and what has to be hidden from the grammar.

The grammar (tree-sitter-bash 0.25) reads most of bash. What it does not read and bash does is written for it
in other characters, as many as there were, so that a place in the tree is a place in the text.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Parser, Tree

# Slurm's own limit, max_script_size of SchedulerParameters in slurm.conf(5), is 4 MiB.
SIZE_MAX = 4 << 20
# What is not bash can take the parser's time squared. Seconds of its own, on a busy machine too.
SECONDS_MAX = 1.0
# Of an unfinished pipeline the parser makes what it can without a look at the time: 16,000 of these take 7 s.
PIPES_MAX = 4_000


class Fault(NamedTuple):
    """What could not be read as bash, and the line where it starts."""

    text: str
    line: int


class ShellText:
    """The text of a script, in which offsets are characters from 0.

    Attributes:
        text: The text; a carriage return at the end of a line is a blank here.
        fixed: Whether all of it has one position, that of a word which stands for it.
    """

    def __init__(self, text: str, origin: tuple[int, int] = (1, 1), *, fixed: bool = False) -> None:
        if "\r" in text:
            text = text.replace("\\\r\n", " \\\n").replace("\r\n", " \n")
        if "`#" in text:
            text = _BACKQUOTED.sub(_blanked, text)
        if "<<" in text:
            text = _without_block_comments(text)
        self.text = text
        self._origin = origin
        self.fixed = fixed

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def position(self, at: int) -> tuple[int, int]:
        """The line and the column of an offset, from 1, in the script that this text stands in."""
        line0, column0 = self._origin
        if self.fixed:
            return line0, column0
        line = bisect_right(self._line_starts, at)
        column = at - self._line_starts[line - 1]
        return line + line0 - 1, column + (column0 if line == 1 else 1)

    @cached_property
    def tree(self) -> Tree | None:
        """The syntax tree; None where the text is more than is read."""
        if len(self.text) > SIZE_MAX or self.text.count("|") > PIPES_MAX:
            return None
        return _parse_in_time(_spared(self.text))

    @cached_property
    def nodes(self) -> list[tuple[int, int, str]]:
        """The nodes that matter: where each starts and ends, and its kind; each before those in it."""
        tree = self.tree
        if tree is None:
            return []
        kinds, found = _kinds(), []
        cursor = tree.walk()
        while True:
            node: Node = cursor.node  # type: ignore[assignment] # a cursor is always at one
            if kind := kinds.get(node.kind_id):
                found.append((node.start_byte, node.end_byte, kind))
            if cursor.goto_first_child():
                continue
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return found

    @cached_property
    def spans(self) -> dict[int, int]:
        """Where each substitution and ${...} starts -> where it ends."""
        return {start: end for start, end, kind in self.nodes if kind in EXPANSIONS}

    @cached_property
    def heredocs(self) -> dict[int, tuple[str, int]]:
        """Where a << stands -> its here-document, without the tabs of <<-, and where that starts."""
        found: dict[int, tuple[str, int]] = {}
        heads: list[tuple[int, int]] = []
        for start, end, kind in self.nodes:
            if kind == "heredoc_redirect":
                heads.append((self.text.index("<<", start), end))
            elif kind == "heredoc_body":
                while heads and heads[-1][1] <= start:
                    heads.pop()
                if heads:
                    text = self.text[start:end]
                    tabbed = self.text.startswith("<<-", heads[-1][0])
                    found[heads[-1][0]] = (re.sub(r"(?m)^\t+", "", text) if tabbed else text, start)
        return found

    @cached_property
    def faults(self) -> tuple[Fault, ...]:
        """What is not bash, as far as the grammar knows bash."""
        if self.tree is None:
            return (Fault("the script is too long or too tangled to be read", 1),)
        return tuple(self._faults(self.tree)) if self.tree.root_node.has_error else ()

    def _faults(self, tree: Tree) -> Iterator[Fault]:
        cursor = tree.walk()
        while True:
            node = cursor.node
            if node and (node.is_error or node.is_missing):
                text = f"{node.type} is missing" if node.is_missing else "not understood as bash"
                yield Fault(text, self.position(node.start_byte)[0])
            if node and node.has_error and not node.is_error and cursor.goto_first_child():
                continue
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return


_BACKQUOTED = re.compile(r"`#[^`\n]*`")  # a comment within a line: it runs nothing and is no word
_BLOCK = re.compile(r"[ \t]*(?::[ \t]*)?<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([\w!#@%.-]+))[ \t]*")
_VISIBLE = re.compile(r"[^\n]")


def _blanked(match: re.Match[str]) -> str:
    return _VISIBLE.sub(" ", match[0])


def _without_block_comments(text: str) -> str:
    """The text with blanks for here-documents that no command reads, which serve as comments."""
    lines = text.split("\n")
    end: re.Match[str] | None = None
    for number, line in enumerate(lines):
        opened = _BLOCK.fullmatch(line) if end is None and "<<" in line else None
        if opened is None and end is None:
            continue
        lines[number] = " " * len(line)
        if opened is not None:
            end = opened
        elif end is not None and (line.lstrip("\t") if end[1] else line) == (end[2] or end[3] or end[4]):
            end = None
    return "\n".join(lines)


EXPANSIONS = frozenset(("command_substitution", "process_substitution", "expansion", "arithmetic_expansion"))
_NAMED = (
    "command",
    "declaration_command",
    "unset_command",
    "test_command",
    "compound_statement",
    "subshell",
    "function_definition",
    "while_statement",
    "for_statement",
    "c_style_for_statement",
    "if_statement",
    "elif_clause",
    "case_statement",
    "negated_command",
    "list",
    "pipeline",
    "redirected_statement",
    "do_group",
    "variable_assignment",
    "heredoc_redirect",
    "heredoc_body",
    "string",
    "simple_expansion",
    "expansion",
    "command_substitution",
    "process_substitution",
    "arithmetic_expansion",
    "comment",
)
_TOKENS = ("then", "&&", "||", "|", "|&", "$")


@cache
def _kinds() -> dict[int, str]:
    """The kinds of nodes that matter, by the grammar's numbers."""
    language = _language()
    kinds = [(name, True) for name in _NAMED] + [(name, False) for name in _TOKENS]
    return {language.id_for_node_kind(name, named) or 0: name for name, named in kinds}


@cache
def _language() -> Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


@cache
def _parser() -> Parser:
    from tree_sitter import Parser

    return Parser(_language())


_MATCH = re.compile(
    rb"""(=~[ \t]+)((?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|\((?:\\.|[^()\\\n])*\)|\$\{[^}]*\}|[^\s\\"'(])+)""",
    re.DOTALL,
)
# $'...', or what may hold its two characters and is not one: a comment, "...", '...$'
_ANSI = re.compile(
    rb"""\$'(?:\\.|[^'\\])*'|\\.|(?<![^\s;])\#[^\n]*|"(?:\\.|[^"\\$`]|\$(?!\())*"|'[^']*'""", re.DOTALL
)
_ESCAPED = re.compile(rb"\\[^\n]")
_KEPT = re.compile(rb"\$\{[^}]*\}|\$\w+|\w+|.", re.DOTALL)
_VALUE = (
    rb"""(?:[^\s;&|<>()"'`$\\]|"(?:[^"\\`$]|\\.|\$\w|\$\{[^}]*\})*"|'[^']*'"""
    rb"""|\$\w|\$\{[^}]*\}|\$\([^()]*\))*"""
)
_SET = rb"[A-Za-z_]\w*\+?=" + _VALUE
_ASSIGNMENTS = re.compile(
    rb"^[ \t]*" + _SET + rb"(?:[ \t]+" + _SET + rb")+(?=[ \t]*(?:[#;][^\n]*)?$)", re.MULTILINE
)
_NEXT = re.compile(rb"""("[^"]*"|'[^']*'|\$\([^()]*\)|\$\{[^}]*\})|[ \t](?=[A-Za-z_]\w*\+?=)""")
_END = re.compile(rb"\\(?=\n[ \t]*(?:\n|\Z))")


def _spared(text: str) -> bytes:
    """The text as the grammar reads it right: a byte for each character."""
    data = text.encode("ascii", "replace")
    if b"\0" in data:
        data = data.replace(b"\0", b"?")
    if b" =~" in data:  # regular expressions with quotes
        data = _MATCH.sub(_plain_match, data)
    if b"$'" in data:  # backslashes in $'...'
        data = _ANSI.sub(_without_escapes, data)
    if b";&" in data:
        data = data.replace(b";;&", b";; ").replace(b";&", b";;")
    if b"<>" in data:
        data = data.replace(b"<>", b"> ")
    if b" " in data:
        data = _ASSIGNMENTS.sub(_parted, data)  # the grammar looks for their command on the next line
    if b"\\\n" in data:  # a line that goes on in an empty one
        data = _END.sub(b" ", data)
    return data


def _without_escapes(match: re.Match[bytes]) -> bytes:
    return _ESCAPED.sub(b"..", match[0]) if match[0].startswith(b"$") else match[0]


def _plain_match(match: re.Match[bytes]) -> bytes:
    return match[1] + _KEPT.sub(
        lambda part: part[0] if len(part[0]) > 1 or part[0].isalnum() else b".", match[2]
    )


def _parted(match: re.Match[bytes]) -> bytes:
    """Assignments with a semicolon after each, in place of a blank."""
    line = match[0]
    start = len(line) - len(line.lstrip())
    return line[:start] + _NEXT.sub(lambda part: part[1] or b";", line[start:])


def _parse_in_time(data: bytes) -> Tree | None:
    """The tree; None where it takes too long."""
    end = time.thread_time() + SECONDS_MAX
    parser = _parser()
    try:
        return parser.parse(
            lambda at, _: data[at : at + 65536], progress_callback=lambda *_: time.thread_time() > end
        )
    except ValueError:  # stopped by the callback
        parser.reset()
        return None


class Spanned(Protocol):
    """What stands somewhere in a script: `at` and `end` are characters from 0."""

    @property
    def source(self) -> ShellText: ...  # noqa: D102
    @property
    def at(self) -> int: ...  # noqa: D102
    @property
    def end(self) -> int: ...  # noqa: D102


class Placed:
    """Lines and columns, from 1, of what stands somewhere in a script."""

    __slots__ = ()

    @property
    def line(self: Spanned) -> int:
        """The line where it starts."""
        return self.source.position(self.at)[0]

    @property
    def column(self: Spanned) -> int:
        """The column where it starts."""
        return self.source.position(self.at)[1]

    @property
    def end_line(self: Spanned) -> int:
        """The line where it ends."""
        return self.source.position(self.end)[0]

    @property
    def end_column(self: Spanned) -> int:
        """The column after its last character."""
        return self.source.position(self.end)[1]
