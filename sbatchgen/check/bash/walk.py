"""Finds the commands in a syntax tree of bash, and the constructs around each command.

`body` calls `find_statements` once for each text. The grammar puts some nodes elsewhere than bash does. Some
methods of `_Walker` correct this, and their docstrings show an example.
"""

import re
import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from sbatchgen.check.bash.grammar import Node
from sbatchgen.check.bash.statement import (
    DECLARATIONS,
    REDIRECTS,
    Assignment,
    Command,
    Context,
    Pipe,
    read_assignment,
)
from sbatchgen.check.bash.text import ShellText
from sbatchgen.check.bash.word import ASSIGNMENT_START


@dataclass
class Statements:
    """The commands, assignments, loops and functions of a text, each in the order of the text."""

    source: ShellText
    commands: list[Command] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)  # NAME=VALUE without a command
    loops: list[tuple[Node, Context]] = field(default_factory=list)  # each loop, and the constructs around it
    functions: list[Node] = field(default_factory=list)  # the definitions of functions
    # The offset where the script ends, after an `exit` that always runs. `body` sets the offset. Without such
    # an `exit`, the offset is beyond any text.
    end: int = sys.maxsize


class _Place(NamedTuple):
    """The surroundings of a node in the tree."""

    parent: str  # the kind of the parent node; "" at the top of a text, a function or a substitution
    context: Context  # the constructs around the node
    pipe: Pipe | None = None  # the pipeline around the node; None without a pipeline
    stage: int = 0  # the index of the node's stage in the pipeline


_BACKGROUND_SIGN = re.compile(r"[ \t]*&(?![&>])")  # the & after a command, which is not && or &>
# The head of a function, up to its name (group 1): `function NAME` or `NAME()`.
_FUNCTION_HEAD = re.compile(r"(?:function[ \t]+)?([^\s()]+)")
# The sets below are kinds of nodes in the syntax tree.
_SIMPLE = frozenset(("command", "declaration_command", "unset_command", "test_command"))
_LOOPS = frozenset(("while_statement", "for_statement", "c_style_for_statement"))
# Constructs with a part that bash reads only once, before the commands in the construct: see `_is_in_head`.
_HEADED = frozenset(("for_statement", "c_style_for_statement", "case_statement"))
_COMPOUND = _LOOPS | {"compound_statement", "if_statement", "case_statement"}
# Nodes around other statements: A >FILE, A && B, A | B, ! A.
_WRAPPERS = frozenset(("redirected_statement", "list", "pipeline", "negated_command"))
_STATEMENTS = _SIMPLE | _COMPOUND | _WRAPPERS | {"subshell"}
# Nodes whose assignments `_Walker` does not record, because `Command` or `variables` reads them.
_ASSIGNMENT_READERS = frozenset(("command", "declaration_command", "c_style_for_statement"))
_SUBSTITUTIONS = frozenset(("command_substitution", "process_substitution"))
# Words, and parts of words, that may hold a substitution.
_WORD_KINDS = frozenset(("command_name", "string", "concatenation", "expansion"))
_SUBSTITUTION_START = re.compile(r"\$\(|`|[<>]\(")  # the start of $(A), `A`, <(A) or >(A)
_RECORDED = _STATEMENTS | _SUBSTITUTIONS | {"function_definition"}  # nodes that `record` looks at
_FOR_CONTEXT = {"in_loop": True, "in_branch": True, "is_tested": False}
_SUBSTITUTION_CONTEXT = {"in_substitution": True, "is_tested": False, "in_background": False}
# A kind of node -> the fields of the context that differ for the commands in such a node.
_CONTEXT_CHANGES: dict[str, dict[str, Any]] = {
    "subshell": {"in_subshell": True},
    "command_substitution": _SUBSTITUTION_CONTEXT,
    "process_substitution": _SUBSTITUTION_CONTEXT,
    "while_statement": {"in_loop": True, "in_branch": True, "is_tested": True},
    "for_statement": _FOR_CONTEXT,
    "c_style_for_statement": _FOR_CONTEXT,
    "do_group": {"is_tested": False},
    "if_statement": {"is_tested": True},
    "elif_clause": {"in_branch": True, "is_tested": True},
    "case_statement": {"in_branch": True},
    "negated_command": {"is_tested": True},
    "list": {"is_tested": True},
}


@lru_cache(maxsize=256)
def _inner_context(kind: str, context: Context) -> Context:
    """Return the context of the commands in a node. `kind` and `context` are those of the node itself."""
    return context._replace(**_CONTEXT_CHANGES[kind])


def find_statements(source: ShellText, context: Context) -> Statements:
    """Return the commands, assignments, loops and functions of a text.

    `context` names the constructs around the whole text, such as the trap that runs the text.
    """
    walker = _Walker(source)
    stack = [(source.nodes[0], _Place("", context))]
    while stack:
        stack += walker.enter(*stack.pop())[::-1]
    # The script ends with the status of its last command. `body` corrects this for an earlier exit.
    for command in reversed(walker.statements.commands):
        if not (command.context.function or command.context.in_substitution):
            command.ends_script = True
            break
    return walker.statements


def _may_hold_command(text: str, node: Node, parent: str) -> bool:
    """Return whether a node may hold a command. `parent` is the kind of its parent node.

    A word holds a command only in a substitution. A search for the start of a substitution in the word's text
    is faster than entering the nodes of the word, and most words have no substitution.
    """
    is_whole_word = node.kind in _WORD_KINDS and parent not in _WORD_KINDS
    return not is_whole_word or _SUBSTITUTION_START.search(text, node.start, node.end) is not None


def _is_in_head(text: str, parent: Node, child: Node) -> bool:
    """Return whether bash reads a part of a `for` or `case` only once, before the first command in it.

    In `for x in A; do B; done`, `case A in x) B;; esac` and `for ((A; B; B)); do B; done`, this is A.
    """
    if parent.kind == "c_style_for_statement":
        return ";" not in text[parent.start : child.start]
    return child.kind not in ("do_group", "case_item")


class _Walker:
    """Visits the nodes of a text, each before its children, and records the statements."""

    def __init__(self, source: ShellText) -> None:
        self.statements = Statements(source)
        # A command -> its redirections that are outside of the command's node: see `move_redirections`.
        self.redirections: dict[Node, list[Node]] = {}

    def enter(self, node: Node, place: _Place) -> list[tuple[Node, _Place]]:  # noqa: C901 (by kind)
        """Record a node if it is a statement, and return the children to enter next, with their places."""
        source, kind, context = self.statements.source, node.kind, place.context
        if kind == "variable_assignment" and place.parent not in _ASSIGNMENT_READERS:
            if ASSIGNMENT_START.match(source.text, node.start):
                self.statements.assignments.append(read_assignment(source, node, node.end, context))
            else:  # the grammar takes the command --name=value for an assignment
                node = Node("command", node.start, node.end, [node])
                kind = node.kind
        next_command = None  # the command of the next line, if `split_assignments` finds one in this node
        inner = place  # the place of the children
        if kind in _RECORDED:
            if kind in _STATEMENTS and _BACKGROUND_SIGN.match(source.text, node.end):
                context = context._replace(in_background=True)
            if kind in _COMPOUND and (place.parent == "pipeline" or context.in_background):
                context = context._replace(in_subshell=True)  # bash starts a process for the construct
            node, next_command = self.split_assignments(node) if kind == "command" else (node, None)
            inner = self.record(node, _Place(place.parent, context, place.pipe, place.stage))
        changes_context = kind in _CONTEXT_CHANGES
        inner_context = _inner_context(kind, inner.context) if changes_context else inner.context
        inner = _Place(kind, inner_context, inner.pipe, inner.stage)
        entered: list[tuple[Node, _Place]] = []
        for child in node.children:
            if (child.children or child.kind in _SIMPLE) and _may_hold_command(source.text, child, kind):
                is_in_head = kind in _HEADED and _is_in_head(source.text, node, child)
                entered.append((child, inner._replace(context=context) if is_in_head else inner))
            elif child.kind == "then":  # the children of an `if` before its `then` are the test
                inner = inner._replace(context=inner.context._replace(in_branch=True, is_tested=False))
            # B of `A && B` may not run. In `A <<END && B`, the grammar puts && B below the here-document.
            elif child.kind in ("&&", "||") and kind in ("list", "heredoc_redirect"):
                inner = inner._replace(context=context._replace(in_branch=True))
            elif child.kind in ("|", "|&") and kind == "pipeline":
                inner = inner._replace(stage=inner.stage + 1)
        if next_command:
            entered.append((next_command, place))
        return entered

    def record(self, node: Node, place: _Place) -> _Place:
        """Record a statement, a substitution or a function, and return the place of its children."""
        statements, text = self.statements, self.statements.source.text
        match node.kind:
            case kind if kind in _SUBSTITUTIONS:
                return _Place("", place.context)  # its commands are in no stage of a pipeline around it
            case "pipeline":
                return self.place_of_first_stage(place)
            case "function_definition":
                statements.functions.append(node)
                head = _FUNCTION_HEAD.match(text, node.start)
                function, trap_signals = head[1] if head else "", place.context.trap_signals
                return _Place("", Context(function=function, trap_signals=trap_signals))
            case "redirected_statement":
                self.move_redirections(node)
            case kind if kind in _LOOPS:
                statements.loops.append((node, place.context))
            case kind if kind in _SIMPLE:
                self.add_command(node, place)
            case "compound_statement" if text.startswith("((", node.start):
                self.add_command(node, place)
        return place

    def add_command(self, node: Node, place: _Place) -> None:
        """Record a command. The grammar also takes A=1 B=2 for a command: then record the assignments."""
        nodes = (*node.children, *self.redirections.get(node, ()))
        command = Command(self.statements.source, node, nodes, place.context, place.pipe, place.stage)
        if node.kind == "command" and command.prefix_assignments and not command.words:
            own = (replace(assignment, is_prefix=False) for assignment in command.prefix_assignments)
            self.statements.assignments.extend(own)
            return
        self.statements.commands.append(command)
        if command.pipe:
            command.pipe.add(command)

    def split_assignments(self, node: Node) -> tuple[Node, Node | None]:
        """Return the node itself and None, or two nodes if assignments and a command are in different lines.

        The grammar reads the lines `A=1` and `srun B` as the single command `A=1 srun B`. The two nodes are
        new, because other modules read the tree too.
        """
        source = self.statements.source
        for index, (left, right) in enumerate(pairwise(node.children), start=1):
            gap = source.text[left.end : right.start]
            if right.kind == "command_name" and "\n" in gap.replace("\\\n", ""):
                parts = node.children[index:]
                if source.text[right.start : right.end] in DECLARATIONS:
                    parts = [self.corrected_word(part) for part in parts]
                assignments = Node(node.kind, node.start, left.end, node.children[:index])
                next_command = Node("command", right.start, node.end, parts)
                if node in self.redirections:
                    self.redirections[next_command] = self.redirections.pop(node)
                return assignments, next_command
        return node, None

    def corrected_word(self, word: Node) -> Node:
        """Return a word of a command such as `export`. A word NAME=VALUE becomes an assignment.

        In a node that `split_assignments` divides, the grammar takes NAME=VALUE for a plain word.
        """
        is_assignment = ASSIGNMENT_START.match(self.statements.source.text, word.start, word.end)
        return Node("variable_assignment", word.start, word.end, word.children) if is_assignment else word

    def place_of_first_stage(self, place: _Place) -> _Place:
        """Return the place of the first stage that is below the node of a pipeline.

        In `cat <<END | sort`, the grammar puts the node of the pipeline below the here-document, and `cat`
        outside of it. The command recorded last is then `cat`, and the pipeline begins with it.
        """
        if place.parent != "heredoc_redirect" or not self.statements.commands:
            return place._replace(pipe=Pipe(), stage=0)
        first = self.statements.commands[-1]
        if first.pipe is None:
            first.pipe = Pipe()
            first.pipe.add(first)
        return place._replace(pipe=first.pipe, stage=first.stage)

    def move_redirections(self, node: Node) -> None:
        """Note the redirections of a statement for the last command in the statement.

        In `A | B >FILE`, bash gives >FILE to B, but the grammar gives it to the whole pipeline.
        """
        redirections = [child for child in node.children if child.kind in REDIRECTS]
        last: Node | None = node
        while last and last.kind in _WRAPPERS:
            last = next((child for child in reversed(last.children) if child.kind not in REDIRECTS), None)
        if last:
            self.redirections.setdefault(last, []).extend(redirections)
