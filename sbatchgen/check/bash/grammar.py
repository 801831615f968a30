"""The grammar of bash: the syntax tree of a text, in plain nodes. No other module imports tree-sitter."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tree_sitter

SIZE_MAX = 4 << 20  # Slurm's own limit, max_script_size of SchedulerParameters in slurm.conf(5), is 4 MiB
# For a text that is not bash, the parser's time can grow with the square of the size. The limit counts CPU
# seconds, so that a busy machine does not change the result.
SECONDS_MAX = 1.0
_seconds = getattr(time, "thread_time", time.perf_counter)  # a browser does not count CPU time
# The parser repairs an unfinished pipeline without looking at the time: 16,000 programs take 7 s. A pipeline
# above this limit, which no script has, is not read.
PIPES_MAX = 500
_DIVISOR = 8  # if a text takes too much time, the first 1/8 of it is read


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


# The unnamed tokens of the grammar that become nodes.
_TOKENS = word_set("then && || | |& & $ == =~ unset export declare local readonly typeset")
_SUBSTITUTIONS = word_set("command_substitution process_substitution arithmetic_expansion")
EXPANSIONS = _SUBSTITUTIONS | {"simple_expansion", "expansion"}
# Nodes whose children are not read.
_LEAVES = word_set("simple_expansion word raw_string number comment variable_name") | _TOKENS
# Nodes whose children are read only if one may be an expansion.
_TEXTS = word_set("string command_name concatenation heredoc_body")
_MAY_EXPAND = re.compile(r"[$`<>]")
# Named nodes of the grammar that do not become nodes, as no reader needs them.
_SKIPPED_KINDS = word_set("string_content heredoc_content heredoc_end file_descriptor")


@dataclass(slots=True, eq=False)
class Node:
    """A node of the syntax tree."""

    kind: str  # its name in the grammar, such as "command" or "&&"; "ERROR" if the text is not bash
    start: int  # the offset of its first character
    end: int  # the offset after its last character
    children: list[Node] = field(default_factory=list)  # the nodes inside, in order


class Tree(NamedTuple):
    """The syntax tree of a text."""

    nodes: list[Node]  # each node before its children; the first node is the whole text
    faults: list[tuple[str, int]]  # each error of the grammar, and its offset
    end: int = -1  # the offset where the part that was read ends; -1 if the whole text was read


def parse(text: str) -> Tree:
    """Return the syntax tree of a text; of its first part if the text is too long or takes too much time."""
    size = min(len(text), SIZE_MAX)
    if text.count("|") > PIPES_MAX:
        size = min(size, _long_pipeline(text))
    for end in dict.fromkeys((size, size // _DIVISOR)):
        is_whole = end == len(text)
        part = text if is_whole else text[: text.rfind("\n", 0, end) + 1]  # whole lines
        if (part or is_whole) and (tree := _parse_whole(part)):
            return tree if is_whole else tree._replace(end=len(part))
    return Tree([Node("program", 0, len(text))], [], 0)


def _long_pipeline(text: str) -> int:
    """Return the offset of the first pipeline with too many programs, or of the end of the text."""
    at = 0  # the offset of the line
    start = pipes = 0  # the offset of the pipeline, and its | so far
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("|"):  # a row of a table, not a pipeline that continues
            start, pipes = at, 0
        pipes += line.replace("||", "").count("|")
        if pipes > PIPES_MAX:
            return start
        at += len(line)
        is_continued = line.rstrip().endswith(("|", "\\"))
        if not is_continued:
            start, pipes = at, 0
    return at


def _parse_whole(text: str) -> Tree | None:
    """Return the syntax tree of a whole text; None if the parser takes too much time."""
    from tree_sitter import Parser

    deadline = _seconds() + SECONDS_MAX
    data, parser = _prepare(text), Parser(_language())  # a parser for each call: threads can't share one
    try:
        tree = parser.parse(
            lambda at, _: data[at : at + 65536], progress_callback=lambda *_: _seconds() > deadline
        )
    except ValueError:  # stopped by the callback
        return None
    return _to_tree(tree, text)


def unfold(nodes: Iterable[Node], kinds: frozenset[str]) -> Iterator[Node]:
    """Yield the nodes; after each node of these kinds, also its children."""
    stack = [*nodes][::-1]
    while stack:
        node = stack.pop()
        yield node
        if node.kind in kinds:
            stack += node.children[::-1]


def _to_tree(tree: tree_sitter.Tree, text: str) -> Tree:  # noqa: C901 (a walk with a cursor)
    """Return tree-sitter's tree of a text in plain nodes, without kinds of nodes that no reader needs."""
    kind_of, may_expand = _kinds().get, _MAY_EXPAND.search
    nodes: list[Node] = []
    faults: list[tuple[str, int]] = []
    siblings: list[Node] = []
    ancestors: list[list[Node]] = []
    cursor = tree.walk()
    to_child, to_sibling, to_parent = cursor.goto_first_child, cursor.goto_next_sibling, cursor.goto_parent
    while True:
        source: tree_sitter.Node = cursor.node  # type: ignore[assignment] # a cursor is always at a node
        start, end, kind = source.start_byte, source.end_byte, kind_of(source.kind_id)
        if start == end and source.is_missing:
            faults.append((f"{source.type} is missing", start))
        elif kind:
            is_read = True  # whether the node becomes a node of the tree
            if kind in EXPANSIONS:
                while text[start] in " \t\n\\":  # in a string, the node begins with the blanks before
                    start += 1
                is_read = text[start - 1] != "\\" or not _is_escaped(text, start)
            elif kind == "ERROR":
                faults.append(("not understood as bash", start))
            if is_read:
                node = Node(kind, start, end)
                nodes.append(node)
                siblings.append(node)
                is_leaf = kind in _LEAVES or (
                    kind in _TEXTS and not may_expand(text, start, end) and not source.has_error
                )
                if not is_leaf and to_child():
                    ancestors.append(siblings)
                    siblings = node.children
                    continue
        while not to_sibling():
            if not to_parent():
                return Tree(nodes, faults)
            siblings = ancestors.pop()


def _is_escaped(text: str, at: int) -> bool:
    """Return whether a backslash escapes the character at an offset, such as the $ of an expansion.

    At the start of a line, the grammar overlooks the backslash.
    """
    first = at  # the offset of the first backslash before the character
    while first and text[first - 1] == "\\":
        first -= 1
    return (at - first) % 2 == 1


@cache
def _language() -> tree_sitter.Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


@cache
def _kinds() -> dict[int, str]:
    """Return the names of the kinds of nodes, by the numbers of this release of the grammar."""
    language = _language()
    names = {number: language.node_kind_for_id(number) or "" for number in range(language.node_kind_count)}
    return {0xFFFF: "ERROR"} | {  # tree-sitter's own number for errors
        number: name
        for number, name in names.items()
        if name in _TOKENS
        or (
            name not in _SKIPPED_KINDS
            and language.node_kind_is_named(number)
            and language.node_kind_is_visible(number)
        )
    }


# The grammar (tree-sitter-bash 0.25) misreads some texts. `_prepare` rewrites such texts before parsing, with
# as many characters as before, so that an offset in the tree is an offset in the text.

_VALUE = (
    rb"""(?:[^\s;&|<>()"'`$\\]|"(?:[^"\\`$]|\\.|\$\w|\$\{[^}]*\})*"|'[^']*'"""
    rb"""|\$\w|\$\{[^}]*\}|\$\([^()]*\))*"""
)
_ASSIGNMENT = rb"[A-Za-z_]\w*\+?=" + _VALUE
# Several assignments in a line without a command, such as A=1 B=2: the grammar takes the next line for their
# command. Each alternative begins with a literal, for which the search is fast. The searched text starts with
# a line break.
_ASSIGNMENTS = re.compile(
    rb"((?:\n(?<!\\\n)|;|\{|\(|then(?<=\bthen)[ \t]|else(?<=\belse)[ \t]|do(?<=\bdo)[ \t])[ \t]*)("
    + _ASSIGNMENT
    + rb"(?:[ \t]+"
    + _ASSIGNMENT
    + rb")+)(?=[ \t]*(?:[#;][^\n]*)?$)",
    re.MULTILINE,
)
# A quick test: the end of a value, and the start of the next assignment. Most texts have no such pair. Each
# search begins with few characters, for which the search is fast.
_ASSIGNMENT_PAIRS = (
    re.compile(rb"""=[^\s;&|<>()"'`\\=]*[ \t]+[A-Za-z_]\w*\+?="""),
    re.compile(rb"""["')}][^\s;&|<>()"'`\\}]*[ \t]+[A-Za-z_]\w*\+?="""),
)
# A value with blanks of its own (group 1), or the blank before the next assignment.
_VALUE_OR_BLANK = re.compile(rb"""("[^"]*"|'[^']*'|\$\([^()]*\)|\$\{[^}]*\})|[ \t](?=[A-Za-z_]\w*\+?=)""")
# Escaped blanks and backslashes, which the grammar can skip; in $'\\' the grammar takes \' for a quote.
_BACKSLASHES = re.compile(rb"\\([\\ \t])|\\.", re.DOTALL)
# The start of a here-document: <<END, <<-END or <<'END'.
_HEREDOC_START = re.compile(rb"""<<(?<!<<<)-?[ \t]*['"\\]?([A-Za-z_]\w*)""")
# $(((A)) && command ...): a subshell that tests a sum, not an arithmetic expansion.
_SUM_TEST = re.compile(rb"\$\(\(\(([^()\n]*)\)\)(\s*(?:&&|\|\|)\s*[a-z]\w*\s+\w)")


def _prepare(text: str) -> bytes:
    """Return the text, rewritten so that the grammar reads it correctly, with one byte for each character."""
    data = text.encode("ascii", "replace")
    data = data.replace(b"\0", b"?").replace(b"<>", b"> ")  # the grammar does not know <>
    if any(pair.search(data) for pair in _ASSIGNMENT_PAIRS):
        data = _ASSIGNMENTS.sub(_join_by_semicolons, b"\n" + data)[1:]
    data = _BACKSLASHES.sub(lambda match: b".." if match[1] else match[0], data)
    data = _SUM_TEST.sub(rb"$( (\1 )\2", data)
    data = _mask_delimiters(data) if b"<<" in data else data
    stripped = data.rstrip()
    ends_in_backslash = stripped.endswith(b"\\")  # no line follows that it could continue
    return stripped[:-1] + b" " + data[len(stripped) :] if ends_in_backslash else data


def _mask_delimiters(data: bytes) -> bytes:
    """Return the text with dots for delimiters that begin longer lines of here-documents.

    The grammar would end the here-document of <<END at a line such as ENDING.
    """
    delimiters, text = {match[1] for match in _HEREDOC_START.finditer(data)}, data + b"\n"
    if all(text.count(b"\n" + name) == text.count(b"\n" + name + b"\n") for name in delimiters):
        return data  # no line begins with a delimiter and continues
    lines = data.split(b"\n")
    stripped_lines = {line.lstrip(b"\t") for line in lines}
    delimiter = b""  # of the here-document around the line; empty outside
    for at, line in enumerate(lines):
        if not delimiter and b"<<" in line:
            names = (match[1] for match in _HEREDOC_START.finditer(line))
            delimiter = next((name for name in names if name in stripped_lines), b"")
        elif delimiter and line.lstrip(b"\t") == delimiter:
            delimiter = b""
        elif delimiter and line.startswith(delimiter):
            lines[at] = b"." * len(delimiter) + line[len(delimiter) :]
    return b"\n".join(lines)


def _join_by_semicolons(match: re.Match[bytes]) -> bytes:
    """Return several assignments of a line with semicolons in place of the blanks between them."""
    return match[1] + _VALUE_OR_BLANK.sub(lambda part: part[1] or b";", match[2])
