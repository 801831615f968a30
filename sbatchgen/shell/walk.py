"""From the tree to the commands: one pass over the nodes that matter."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from sbatchgen.shell.command import ASSIGNED, Command, Context, Function, Pipe
from sbatchgen.shell.source import Source


class Walk(NamedTuple):
    """What a pass over the tree finds, in the order of the text.

    Attributes:
        commands: The commands.
        functions: The functions.
        standing: Where assignments and loops stand that are no part of a command, and what they stand in.
        timeless: Where functions and loops start and end: in them the order of the text is not that of time.
        function_spans: Those of them that are functions.
        source: The text.
    """

    commands: tuple[Command, ...]
    functions: tuple[Function, ...]
    standing: tuple[tuple[int, Context], ...]
    timeless: tuple[tuple[int, int], ...]
    function_spans: frozenset[tuple[int, int]]
    source: Source


def walk(source: Source, context: Context) -> Walk:
    """The commands of a text that stands in a context."""
    return _Walker(source, context).run()


class _Frame:
    """A node that the walk is in."""

    __slots__ = ("context", "end", "kind", "pipe", "stage")

    def __init__(self, kind: str, end: int, context: Context, pipe: Pipe | None, stage: int) -> None:
        self.kind = kind
        self.end = end
        self.context = context
        self.pipe = pipe
        self.stage = stage


_BACKGROUND = re.compile(r"[ \t]*&(?![&>])")
_TESTS = frozenset(("test_command", "compound_statement"))
_SIMPLE = frozenset(["command", "declaration_command", "unset_command", "test_command"])
_PARTS_OF_COMMANDS = frozenset(("command", "declaration_command"))
_LOOPS = frozenset(("while_statement", "for_statement", "c_style_for_statement"))
_CHANGES: dict[str, dict[str, bool]] = {
    "command": {},
    "declaration_command": {},
    "unset_command": {},
    "test_command": {},
    "compound_statement": {},
    "pipeline": {},
    "redirected_statement": {},
    "subshell": {"subshell": True},
    "command_substitution": {"substitution": True, "condition": False, "background": False},
    "process_substitution": {"substitution": True, "condition": False, "background": False},
    "while_statement": {"loop": True, "branch": True, "condition": True},
    "for_statement": {"loop": True, "branch": True, "condition": False},
    "c_style_for_statement": {"loop": True, "branch": True, "condition": False},
    "do_group": {"condition": False},
    "if_statement": {"condition": True},
    "elif_clause": {"branch": True, "condition": True},
    "case_statement": {"branch": True},
    "negated_command": {"condition": True},
    "list": {"condition": True},
}


_ALL = _CHANGES | {
    "background": {"background": True},
    "then": {"branch": True, "condition": False},
    "right": {"branch": True},
}
_PASSED = frozenset(
    ["string", "simple_expansion", "expansion", "arithmetic_expansion", "comment", "heredoc_body"]
)


class _Walker:
    """One pass over the nodes that matter, each before those in it."""

    def __init__(self, source: Source, context: Context) -> None:
        self.source = source
        self.context = context
        self.commands: list[Command] = []
        self.functions: list[Function] = []
        self.standing: list[tuple[int, Context]] = []
        self.timeless: list[tuple[int, int]] = []
        self.function_spans: list[tuple[int, int]] = []
        self.contexts: dict[tuple[int, str], Context] = {}
        self.kept: list[Context] = []

    def run(self) -> Walk:
        source = self.source
        text = source.text
        stack = [_Frame("program", len(text) + 1, self.context, None, 0)]
        for start, end, kind in source.nodes:
            if kind in _PASSED:
                continue
            while stack[-1].end <= start and len(stack) > 1:
                stack.pop()
            frame = stack[-1]
            if kind == "variable_assignment":
                if frame.kind not in _PARTS_OF_COMMANDS:
                    self.standing.append((start, frame.context))
            elif kind in _CHANGES:
                stack.append(self.enter(kind, start, end, frame))
            elif kind == "heredoc_redirect":
                stack.append(_Frame(kind, end, frame.context, frame.pipe, frame.stage))
            elif kind == "function_definition":
                stack.append(self.define(start, end, frame))
            else:
                self.token(kind, frame, stack[-2] if len(stack) > 1 else frame)
        self.mark_last()
        return Walk(
            tuple(self.commands),
            tuple(self.functions),
            tuple(self.standing),
            tuple(self.timeless),
            frozenset(self.function_spans),
            self.source,
        )

    def mark_last(self) -> None:
        for command in reversed(self.commands):
            if not (command.context.function or command.context.substitution):
                command.last = True
                return

    def enter(self, kind: str, start: int, end: int, frame: _Frame) -> _Frame:
        context, pipe, stage = frame.context, frame.pipe, frame.stage
        text = self.source.text
        if _BACKGROUND.match(text, end):
            context = self.changed(context, "background")
        if kind in _LOOPS:
            self.timeless.append((start, end))
            self.standing.append((start, context))
        if _CHANGES[kind]:
            context = self.changed(context, kind)
            if "substitution" in _CHANGES[kind]:
                pipe, stage = None, 0
        elif (
            kind == "command"
            and ASSIGNED.match(text, start)
            and self.is_only_assignments(start, end, context)
        ):
            kind = "program"
        elif kind in _SIMPLE or (kind == "compound_statement" and text.startswith("((", start)):
            command = Command(self.source, start, end, context, pipe, stage, test=kind in _TESTS)
            self.commands.append(command)
            if pipe:
                pipe.add(command)
        elif kind == "pipeline":
            pipe, stage = Pipe(), 0
            if frame.kind == "heredoc_redirect" and self.commands:  # the command before it is its first
                first = self.commands[-1]
                pipe = first.pipe = first.pipe or pipe
                stage = first.stage
                if not pipe.stages:
                    pipe.add(first)
        return _Frame(kind, end, context, pipe, stage)

    def is_only_assignments(self, start: int, end: int, context: Context) -> bool:
        """Whether what the grammar takes for a command's assignments stands on a line of its own."""
        command = Command(self.source, start, end, context, None, 0, test=False)
        if command.words:
            return False
        self.standing += [(assignment.at, context) for assignment in command.prefix]
        return True

    def define(self, start: int, end: int, frame: _Frame) -> _Frame:
        source = self.source
        self.timeless.append((start, end))
        self.function_spans.append((start, end))
        match = _FUNCTION.match(source.text, start)
        name = match[1] if match else ""
        self.functions.append(Function(name, source.position(start)[0], source.position(end)[0]))
        context = Context(function=name, trap=frame.context.trap)
        self.kept.append(context)
        return _Frame("function_definition", end, context, None, 0)

    def token(self, kind: str, frame: _Frame, outer: _Frame) -> None:
        if frame.kind == "pipeline":
            frame.stage += kind[0] == "|"
        elif kind == "then":
            frame.context = self.changed(frame.context, "then")
        elif frame.kind in ("list", "heredoc_redirect") and kind in ("&&", "||"):
            frame.context = self.changed(outer.context, "right")

    def changed(self, context: Context, kind: str) -> Context:
        """The context with a kind's changes; equal ones are one."""
        key = (id(context), kind)
        found = self.contexts.get(key)
        if found is None:
            self.kept.append(context)  # its id stays its own
            found = self.contexts[key] = replace(context, **_ALL[kind])
        return found


_FUNCTION = re.compile(r"(?:function[ \t]+)?([^\s()]+)")
