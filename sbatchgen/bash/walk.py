"""From the tree to the commands: one pass over the nodes that matter."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from sbatchgen.bash.command import ASSIGNED, Command, Context, Pipe
from sbatchgen.bash.text import ShellText


class Walk(NamedTuple):
    """What a pass over the tree finds, in the order of the text.

    Attributes:
        commands: The commands.
        standing: Where assignments and loops stand that are no part of a command, and what they stand in.
        timeless: Where functions and loops start and end: in them the order of the text is not that of time.
        function_spans: Those of them that are functions.
        source: The text.
        end: Where the script ends, if that is before its text does.
    """

    commands: tuple[Command, ...]
    standing: tuple[tuple[int, Context], ...]
    timeless: tuple[tuple[int, int], ...]
    function_spans: frozenset[tuple[int, int]]
    source: ShellText
    end: int = sys.maxsize


def walk(source: ShellText, context: Context) -> Walk:
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
_SIMPLE = frozenset(("command", "declaration_command", "unset_command", "test_command"))
_PARTS_OF_COMMANDS = frozenset(("command", "declaration_command"))
_LOOPS = frozenset(("while_statement", "for_statement", "c_style_for_statement"))
_COMPOUND = _LOOPS | {"compound_statement", "if_statement", "case_statement"}
_CHANGES: dict[str, dict[str, Any]] = {
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
_ALL: dict[str, dict[str, Any]] = _CHANGES | {
    "background": {"background": True},
    "then": {"branch": True, "condition": False},
    "right": {"branch": True},
}
_PASSED = frozenset(
    ("string", "simple_expansion", "expansion", "arithmetic_expansion", "comment", "heredoc_body", "$")
)


class _Walker:
    """One pass over the nodes that matter, each before those in it."""

    def __init__(self, source: ShellText, context: Context) -> None:
        self.source = source
        self.context = context
        self.commands: list[Command] = []
        self.standing: list[tuple[int, Context]] = []
        self.timeless: list[tuple[int, int]] = []
        self.function_spans: list[tuple[int, int]] = []

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
            context = _changed(context, "background")
        if kind in _COMPOUND and (frame.kind == "pipeline" or context.background):
            context = _changed(context, "subshell")
        if kind in _LOOPS:
            self.timeless.append((start, end))
            self.standing.append((start, context))
        if changes := _CHANGES[kind]:
            context = _changed(context, kind)
            if "substitution" in changes:
                pipe, stage = None, 0
        elif kind == "pipeline":
            pipe, stage = self.pipeline(frame)
        elif kind in _SIMPLE or (kind == "compound_statement" and text.startswith("((", start)):
            command = Command(self.source, start, end, context, pipe=pipe, stage=stage, test=kind in _TESTS)
            if kind == "command" and ASSIGNED.match(text, start) and not command.words:
                # What the grammar takes for a command's assignments stands on a line of its own.
                self.standing += [(assignment.at, context) for assignment in command.prefix]
                return _Frame("program", end, context, pipe, stage)
            self.commands.append(command)
            if pipe:
                pipe.add(command)
        return _Frame(kind, end, context, pipe, stage)

    def pipeline(self, frame: _Frame) -> tuple[Pipe, int]:
        """A new pipeline; after a here-document's delimiter, the command before it is the first of it."""
        if frame.kind != "heredoc_redirect" or not self.commands:
            return Pipe(), 0
        first = self.commands[-1]
        if first.pipe is None:
            first.pipe = Pipe()
            first.pipe.add(first)
        return first.pipe, first.stage

    def define(self, start: int, end: int, frame: _Frame) -> _Frame:
        source = self.source
        self.timeless.append((start, end))
        self.function_spans.append((start, end))
        match = _FUNCTION.match(source.text, start)
        name = match[1] if match else ""
        context = Context(function=name, trap=frame.context.trap)
        return _Frame("function_definition", end, context, None, 0)

    def token(self, kind: str, frame: _Frame, outer: _Frame) -> None:
        if frame.kind == "pipeline":
            frame.stage += kind[0] == "|"
        elif kind == "then":
            frame.context = _changed(frame.context, "then")
        elif frame.kind in ("list", "heredoc_redirect") and kind in ("&&", "||"):
            frame.context = _changed(outer.context, "right")


@lru_cache(maxsize=4096)
def _changed(context: Context, kind: str) -> Context:
    """The context with a kind's changes; the same one each time."""
    return replace(context, **_ALL[kind])


_FUNCTION = re.compile(r"(?:function[ \t]+)?([^\s()]+)")
