"""The parser of bash: `parse` returns the syntax tree of a text.

Only this module imports tree-sitter. It copies the parser's tree into nodes of its own. Texts that the parser
misreads are rewritten before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tree_sitter

# The largest text that is parsed, in characters. Slurm's own limit is 4 MiB: max_script_size of
# SchedulerParameters in slurm.conf(5).
SIZE_MAX = 4 << 20
# The CPU time for the parser, in seconds. For a text that is not bash, the time can grow with the square of
# the size. CPU time gives the same result on a busy machine.
SECONDS_MAX = 1.0
_cpu_seconds = getattr(time, "thread_time", time.perf_counter)  # Python in a browser has no thread_time
# The most programs in a pipeline. While the parser repairs an unfinished pipeline, it does not look at the
# time, and 16,000 programs take 7 s. No real script comes near this limit.
PIPES_MAX = 500
_DIVISOR = 8  # if a text takes too much time, only its first eighth is read


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


# The sets below are kinds of nodes in tree-sitter's tree.
# Keywords and operators that become nodes. The grammar has them as tokens without a name.
_TOKENS = word_set("then && || | |& & $ == =~ unset export declare local readonly typeset")
_SUBSTITUTIONS = word_set("command_substitution process_substitution arithmetic_expansion")
EXPANSIONS = _SUBSTITUTIONS | {"simple_expansion", "expansion"}
# Nodes whose children are not read.
_LEAVES = word_set("simple_expansion word raw_string number comment variable_name") | _TOKENS
# Nodes whose children are read only if one may be an expansion, which saves time.
_TEXTS = word_set("string command_name concatenation heredoc_body")
_EXPANSION_SIGN = re.compile(r"[$`<>]")  # a text without these characters has no expansion
# Nodes that are left out, as no caller needs them.
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
    """Return the syntax tree of a text.

    If the text is too long or takes too much time, the tree is that of its first part, up to `Tree.end`.
    """
    size = min(len(text), SIZE_MAX)
    if text.count("|") > PIPES_MAX:
        size = min(size, _start_of_long_pipeline(text))
    for end in dict.fromkeys((size, size // _DIVISOR)):
        is_whole = end == len(text)
        part = text if is_whole else text[: text.rfind("\n", 0, end) + 1]  # up to a line break
        if (part or is_whole) and (tree := _parse_in_time(part)):
            return tree if is_whole else tree._replace(end=len(part))
    return Tree([Node("program", 0, len(text))], [], 0)


def _start_of_long_pipeline(text: str) -> int:
    """Return the offset of the first pipeline with more than `PIPES_MAX` programs, or of the text's end."""
    at = 0  # the offset of the line
    start = pipes = 0  # the offset of the pipeline, and the number of its | up to this line
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


def _parse_in_time(text: str) -> Tree | None:
    """Return the syntax tree of a text; None if the parser takes more than `SECONDS_MAX`."""
    from tree_sitter import Parser

    deadline = _cpu_seconds() + SECONDS_MAX
    data, parser = _prepare(text), Parser(_language())  # a parser for each call: threads can't share one
    try:
        tree = parser.parse(
            lambda at, _: data[at : at + 65536], progress_callback=lambda *_: _cpu_seconds() > deadline
        )
    except ValueError:  # the callback has stopped the parser
        return None
    return _to_tree(tree, text)


def unfold(nodes: Iterable[Node], kinds: frozenset[str]) -> Iterator[Node]:
    """Yield the nodes in the order of the text. After a node of these kinds, yield its children too."""
    stack = [*nodes][::-1]
    while stack:
        node = stack.pop()
        yield node
        if node.kind in kinds:
            stack += node.children[::-1]


def _to_tree(tree: tree_sitter.Tree, text: str) -> Tree:  # noqa: C901 (a walk with a cursor)
    """Return tree-sitter's tree of a text as a `Tree`, without the kinds of nodes that no caller needs."""
    kind_of, find_expansion = _kinds().get, _EXPANSION_SIGN.search
    nodes: list[Node] = []
    faults: list[tuple[str, int]] = []
    siblings: list[Node] = []  # the children of the parent of the current node, up to the current node
    ancestors: list[list[Node]] = []  # such lists for the parent, its parent and so on
    cursor = tree.walk()
    to_child, to_sibling, to_parent = cursor.goto_first_child, cursor.goto_next_sibling, cursor.goto_parent
    while True:
        source: tree_sitter.Node = cursor.node  # type: ignore[assignment] # a cursor is always at a node
        start, end, kind = source.start_byte, source.end_byte, kind_of(source.kind_id)
        if start == end and source.is_missing:
            faults.append((f"{source.type} is missing", start))
        elif kind:
            is_kept = True
            if kind in EXPANSIONS:
                while text[start] in " \t\n\\":  # in a string, the node begins at the blanks before the $
                    start += 1
                is_kept = text[start - 1] != "\\" or not _is_escaped(text, start)
            elif kind == "ERROR":
                faults.append(("not understood as bash", start))
            if is_kept:
                node = Node(kind, start, end)
                nodes.append(node)
                siblings.append(node)
                is_leaf = kind in _LEAVES or (
                    kind in _TEXTS and not find_expansion(text, start, end) and not source.has_error
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

    The grammar overlooks a backslash at the start of a line, and takes the escaped $ for an expansion.
    """
    first = at  # the offset of the first of the backslashes before the character
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
    """Return the kinds of nodes that are kept: the number in tree-sitter's grammar -> the name."""
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

# A value in an assignment: plain characters, quoted strings and simple expansions.
_VALUE = (
    rb"""(?:[^\s;&|<>()"'`$\\]|"(?:[^"\\`$]|\\.|\$\w|\$\{[^}]*\})*"|'[^']*'"""
    rb"""|\$\w|\$\{[^}]*\}|\$\([^()]*\))*"""
)
_ASSIGNMENT = rb"[A-Za-z_]\w*\+?=" + _VALUE
# Several assignments in a line without a command, such as A=1 B=2. The grammar takes the next line for their
# command. Group 1 is the start of the line or command, and group 2 the assignments. Each alternative begins
# with a literal, for which the search is fast. The searched text starts with a line break.
_ASSIGNMENT_LINE = re.compile(
    rb"((?:\n(?<!\\\n)|;|\{|\(|then(?<=\bthen)[ \t]|else(?<=\belse)[ \t]|do(?<=\bdo)[ \t])[ \t]*)("
    + _ASSIGNMENT
    + rb"(?:[ \t]+"
    + _ASSIGNMENT
    + rb")+)(?=[ \t]*(?:[#;][^\n]*)?$)",
    re.MULTILINE,
)
# A quick test for such lines: the end of a value, a blank and the start of the next assignment. A text
# without such a pair is not searched for lines. The first pattern is for values without quotes, the second
# for values that end in a quote or a bracket.
_ASSIGNMENT_PAIRS = (
    re.compile(rb"""=[^\s;&|<>()"'`\\=]*[ \t]+[A-Za-z_]\w*\+?="""),
    re.compile(rb"""["')}][^\s;&|<>()"'`\\}]*[ \t]+[A-Za-z_]\w*\+?="""),
)
# In a line such as A="x y" B=2: a part of a value that may have blanks (group 1), or the blank before an
# assignment.
_VALUE_OR_BLANK = re.compile(rb"""("[^"]*"|'[^']*'|\$\([^()]*\)|\$\{[^}]*\})|[ \t](?=[A-Za-z_]\w*\+?=)""")
# A backslash and its character. Group 1 is a blank or a backslash. The grammar can overlook that such a
# character is escaped, and in $'\\' it takes \' for a quote.
_ESCAPE = re.compile(rb"\\([\\ \t])|\\.", re.DOTALL)
# The start of a here-document: <<END, <<-END or <<'END'.
_HEREDOC_START = re.compile(rb"""<<(?<!<<<)-?[ \t]*['"\\]?([A-Za-z_]\w*)""")
# The start of $(((N > 1)) && echo yes). This is a substitution whose first command is the test ((N > 1)). The
# grammar takes it for an arithmetic expansion.
_TEST_IN_SUBSTITUTION = re.compile(rb"\$\(\(\(([^()\n]*)\)\)(\s*(?:&&|\|\|)\s*[a-z]\w*\s+\w)")


def _prepare(text: str) -> bytes:
    """Return the text, rewritten so that the grammar reads it correctly, with one byte for each character."""
    data = text.encode("ascii", "replace")
    data = data.replace(b"\0", b"?").replace(b"<>", b"> ")  # the grammar does not know <>
    if any(pair.search(data) for pair in _ASSIGNMENT_PAIRS):
        data = _ASSIGNMENT_LINE.sub(_separate_by_semicolons, b"\n" + data)[1:]
    data = _ESCAPE.sub(lambda match: b".." if match[1] else match[0], data)
    data = _TEST_IN_SUBSTITUTION.sub(rb"$( (\1 )\2", data)
    data = _mask_delimiters(data) if b"<<" in data else data
    stripped = data.rstrip()
    ends_in_backslash = stripped.endswith(b"\\")  # it continues no line, as the text ends here
    return stripped[:-1] + b" " + data[len(stripped) :] if ends_in_backslash else data


def _mask_delimiters(data: bytes) -> bytes:
    """Return the text with dots in place of delimiters that begin longer lines of here-documents.

    The grammar would end the here-document of <<END at a line such as ENDING, which then is ...ING.
    """
    delimiters, text = {match[1] for match in _HEREDOC_START.finditer(data)}, data + b"\n"
    if all(text.count(b"\n" + name) == text.count(b"\n" + name + b"\n") for name in delimiters):
        return data  # no line begins with a delimiter and continues
    lines = data.split(b"\n")
    stripped_lines = {line.lstrip(b"\t") for line in lines}
    delimiter = b""  # of the here-document around the line; empty outside of here-documents
    for at, line in enumerate(lines):
        if not delimiter and b"<<" in line:
            names = (match[1] for match in _HEREDOC_START.finditer(line))
            delimiter = next((name for name in names if name in stripped_lines), b"")
        elif delimiter and line.lstrip(b"\t") == delimiter:
            delimiter = b""
        elif delimiter and line.startswith(delimiter):
            lines[at] = b"." * len(delimiter) + line[len(delimiter) :]
    return b"\n".join(lines)


def _separate_by_semicolons(match: re.Match[bytes]) -> bytes:
    """Return the match of `_ASSIGNMENT_LINE`, such as A=1 B=2, as A=1;B=2."""
    return match[1] + _VALUE_OR_BLANK.sub(lambda part: part[1] or b";", match[2])
