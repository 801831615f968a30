"""The commands of a syntax tree with their contexts, found in one pass over the tree."""

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
from sbatchgen.check.bash.word import ASSIGNED


@dataclass
class Walk:
    """The commands, assignments, loops and functions of a text, in the order of the text."""

    source: ShellText
    commands: list[Command] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)  # the assignments outside of commands
    loops: list[tuple[Node, Context]] = field(default_factory=list)  # the loops, each with its context
    functions: list[Node] = field(default_factory=list)
    end: int = sys.maxsize  # the offset after an unconditional exit; without one, beyond any text


class _Place(NamedTuple):
    """The place of a node in the tree."""

    parent: str  # the kind of the parent; "" at the top of a text, a function or a substitution
    context: Context  # the constructs around the node
    pipe: Pipe | None = None  # the pipeline around the node
    stage: int = 0  # the number of the node's stage in the pipeline


_BACKGROUND = re.compile(r"[ \t]*&(?![&>])")  # the text after a command in the background
# The head of a function, up to its name.
_FUNCTION = re.compile(r"(?:function[ \t]+)?([^\s()]+)")
# Kinds of nodes: commands, loops, other constructs with commands inside, and nodes around other statements.
_SIMPLE = frozenset(("command", "declaration_command", "unset_command", "test_command"))
_LOOPS = frozenset(("while_statement", "for_statement", "c_style_for_statement"))
_COMPOUND = _LOOPS | {"compound_statement", "if_statement", "case_statement"}
_WRAPPERS = frozenset(("redirected_statement", "list", "pipeline", "negated_command"))
_STATEMENTS = _SIMPLE | _COMPOUND | _WRAPPERS | {"subshell"}
# Nodes whose own reader also reads the assignments among their children.
_ASSIGNMENT_HOLDERS = frozenset(("command", "declaration_command", "c_style_for_statement"))
_SUBSTITUTIONS = frozenset(("command_substitution", "process_substitution"))
# Kinds of nodes for words and parts of words.
_WORD_KINDS = frozenset(("command_name", "string", "concatenation", "expansion"))
_SUBSTITUTION_START = re.compile(r"\$\(|`|[<>]\(")
# Nodes that `record` looks at.
_RECORDED = _STATEMENTS | _SUBSTITUTIONS | {"function_definition"}
_FOR_CONTEXT = {"loop": True, "branch": True, "condition": False}
_SUBSTITUTION_CONTEXT = {"substitution": True, "condition": False, "background": False}
# A kind of node -> the changes of the context for the commands inside.
_CONTEXTS: dict[str, dict[str, Any]] = {
    "subshell": {"subshell": True},
    "command_substitution": _SUBSTITUTION_CONTEXT,
    "process_substitution": _SUBSTITUTION_CONTEXT,
    "while_statement": {"loop": True, "branch": True, "condition": True},
    "for_statement": _FOR_CONTEXT,
    "c_style_for_statement": _FOR_CONTEXT,
    "do_group": {"condition": False},
    "if_statement": {"condition": True},
    "elif_clause": {"branch": True, "condition": True},
    "case_statement": {"branch": True},
    "negated_command": {"condition": True},
    "list": {"condition": True},
}


@lru_cache(maxsize=256)
def _inner_context(kind: str, context: Context) -> Context:
    """Return the context of the commands in a node of this kind."""
    return context._replace(**_CONTEXTS[kind])


def walk(source: ShellText, context: Context) -> Walk:
    """Return the commands of a text with their contexts, its assignments, loops and functions."""
    walker = _Walker(source)
    stack = [(source.nodes[0], _Place("", context))]
    while stack:
        stack += walker.enter(*stack.pop())[::-1]
    # The last command of the script's text, unless an earlier exit ends the script.
    for command in reversed(walker.walk.commands):
        if not (command.context.function or command.context.substitution):
            command.ends_script = True
            break
    return walker.walk


def _may_hold_command(text: str, node: Node, parent: str) -> bool:
    """Return whether a node may hold a command; a whole word holds one only in a substitution.

    Most words hold none, so a search of the word saves a walk through its nodes.
    """
    is_whole_word = node.kind in _WORD_KINDS and parent not in _WORD_KINDS
    return not is_whole_word or _SUBSTITUTION_START.search(text, node.start, node.end) is not None


class _Walker:
    """One pass over the nodes, each before its children."""

    def __init__(self, source: ShellText) -> None:
        self.walk = Walk(source)
        self.redirections: dict[Node, list[Node]] = {}  # a command -> its redirections outside of its node

    def enter(self, node: Node, place: _Place) -> list[tuple[Node, _Place]]:  # noqa: C901 (by kind)
        """Record a node, and return its children with their places."""
        source, kind, context = self.walk.source, node.kind, place.context
        if kind == "variable_assignment" and place.parent not in _ASSIGNMENT_HOLDERS:
            if ASSIGNED.match(source.text, node.start):
                self.walk.assignments.append(read_assignment(source, node, node.end, context))
            else:  # --name=value is a command
                node = Node("command", node.start, node.end, [node])
                kind = node.kind
        rest = None  # the command that the grammar joined to the assignments before it
        inner = place  # the place of the children
        if kind in _RECORDED:
            if kind in _STATEMENTS and _BACKGROUND.match(source.text, node.end):
                context = context._replace(background=True)
            if kind in _COMPOUND and (place.parent == "pipeline" or context.background):
                context = context._replace(subshell=True)  # bash starts a process for the construct
            node, rest = self.split_assignments(node) if kind == "command" else (node, None)
            inner = self.record(node, _Place(place.parent, context, place.pipe, place.stage))
        inner_context = _inner_context(kind, inner.context) if kind in _CONTEXTS else inner.context
        inner = _Place(kind, inner_context, inner.pipe, inner.stage)
        entered: list[tuple[Node, _Place]] = []
        for child in node.children:
            if (child.children or child.kind in _SIMPLE) and _may_hold_command(source.text, child, kind):
                entered.append((child, inner))
            elif child.kind == "then":
                inner = inner._replace(context=inner.context._replace(branch=True, condition=False))
            elif child.kind in ("&&", "||") and kind in ("list", "heredoc_redirect"):
                inner = inner._replace(context=context._replace(branch=True))
            elif child.kind in ("|", "|&") and kind == "pipeline":
                inner = inner._replace(stage=inner.stage + 1)
        if rest:
            entered.append((rest, place))
        return entered

    def record(self, node: Node, place: _Place) -> _Place:
        """Record a node, and return the place of its children."""
        walk, text = self.walk, self.walk.source.text
        match node.kind:
            case kind if kind in _SUBSTITUTIONS:
                return _Place("", place.context)
            case "pipeline":
                return self.first_stage(place)
            case "function_definition":
                walk.functions.append(node)
                name = _FUNCTION.match(text, node.start)
                return _Place("", Context(function=name[1] if name else "", trap=place.context.trap))
            case "redirected_statement":
                self.assign_redirections(node)
            case kind if kind in _LOOPS:
                walk.loops.append((node, place.context))
            case kind if kind in _SIMPLE:
                self.add(node, place)
            case "compound_statement" if text.startswith("((", node.start):
                self.add(node, place)
        return place

    def add(self, node: Node, place: _Place) -> None:
        """Record a command, or assignments that the grammar takes for a command."""
        nodes = (*node.children, *self.redirections.get(node, ()))
        command = Command(self.walk.source, node, nodes, place.context, place.pipe, place.stage)
        if node.kind == "command" and command.prefix and not command.words:
            self.walk.assignments.extend(replace(assignment, prefix=False) for assignment in command.prefix)
            return
        self.walk.commands.append(command)
        if command.pipe:
            command.pipe.add(command)

    def split_assignments(self, node: Node) -> tuple[Node, Node | None]:
        """Split assignments from the next line, which the grammar takes for their command.

        The tree is unchanged, as other passes read it.
        """
        source = self.walk.source
        for index, (left, right) in enumerate(pairwise(node.children), start=1):
            gap = source.text[left.end : right.start]
            if right.kind == "command_name" and "\n" in gap.replace("\\\n", ""):
                parts = node.children[index:]
                if source.text[right.start : right.end] in DECLARATIONS:
                    parts = [self.as_assignment(part) for part in parts]
                first = Node(node.kind, node.start, left.end, node.children[:index])
                rest = Node("command", right.start, node.end, parts)
                if node in self.redirections:
                    self.redirections[rest] = self.redirections.pop(node)
                return first, rest
        return node, None

    def as_assignment(self, part: Node) -> Node:
        """Return the word NAME=VALUE of export or the like as an assignment, which the grammar can miss."""
        is_assignment = ASSIGNED.match(self.walk.source.text, part.start, part.end)
        return Node("variable_assignment", part.start, part.end, part.children) if is_assignment else part

    def first_stage(self, place: _Place) -> _Place:
        """Return the place of the first stage of a pipeline.

        A pipeline after the delimiter of a here-document begins with the command before the delimiter.
        """
        if place.parent != "heredoc_redirect" or not self.walk.commands:
            return place._replace(pipe=Pipe(), stage=0)
        first = self.walk.commands[-1]
        if first.pipe is None:
            first.pipe = Pipe()
            first.pipe.add(first)
        return place._replace(pipe=first.pipe, stage=first.stage)

    def assign_redirections(self, node: Node) -> None:
        """Assign redirections to the command before them; the grammar assigns them to the whole pipeline."""
        redirections = [child for child in node.children if child.kind in REDIRECTS]
        last: Node | None = node
        while last and last.kind in _WRAPPERS:
            last = next((child for child in reversed(last.children) if child.kind not in REDIRECTS), None)
        if last:
            self.redirections.setdefault(last, []).extend(redirections)
