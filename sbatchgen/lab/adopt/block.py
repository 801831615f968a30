"""The statements of a script as blocks.

`adopt` reads a script block by block. A block knows its lines, its commands and its variables, and says what
effects it has: whether it only sets variables, only prints, or only ends the script.
"""

from bisect import bisect_left
from collections.abc import Container, Iterator
from typing import TypeVar

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash import Assignment, Body, Command, VariableUse
from sbatchgen.check.executables.program import programs
from sbatchgen.check.script.launches import HELPERS

_Part = TypeVar("_Part", Command, Assignment, VariableUse)

_PRINTING_PROGRAMS = programs("prints")  # programs that only print text, such as echo
_HARMLESS_PROGRAMS = programs("prints", "looks")  # programs that only print text or look up facts
# Programs that no job needs after the training, such as echo and exit: the job ends with the training's
# status. awk, sed and sort are not among them, because they may write files.
CLOSING = (_HARMLESS_PROGRAMS - {"awk", "sed", "sort"}) | programs("closes")
# Commands that have the same effect before and after the activation of an environment, such as hostname.
_INERT = HELPERS - {"pip", "which"} | programs("builtin")


@frozen(eq=False)
class Block:
    """A statement of a script, such as a command, a loop or a function; several may share a line."""

    body: Body  # the body of the script
    first_line: int  # the number of its first line
    last_line: int  # the number of its last line
    start: int  # the offset of its first character
    end: int  # the offset after its last character

    @property
    def lines(self) -> range:
        """The numbers of the block's lines."""
        return range(self.first_line, self.last_line + 1)

    @cached_property
    def text(self) -> str:
        """The block's text, with the indentation and the comments of its lines."""
        text = self.body.source.text
        line_start = text.rfind("\n", 0, self.start) + 1
        line_end = text.find("\n", max(self.start, self.end - 1))
        line_end = len(text) if line_end < 0 else line_end
        # The rest of a line belongs to the block only if the line holds no other statement.
        starts_line = not text[line_start : self.start].strip()
        ends_line = text[self.end : line_end].lstrip(" \t;")[:1] in ("", "#")
        return text[line_start if starts_line else self.start : line_end if ends_line else self.end]

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """The block's commands, including those in substitutions and functions."""
        return self._within(self.body.commands)

    @cached_property
    def assignments(self) -> tuple[Assignment, ...]:
        """The block's assignments; `unset NAME` also counts as an assignment."""
        return self._within(self.body.assignments)

    @cached_property
    def used_names(self) -> frozenset[str]:
        """The names of the variables that the block expands."""
        return frozenset(use.name for use in self._within(self.body.variable_uses))

    def _within(self, parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
        """Return the commands, assignments or uses of variables among `parts` that begin in the block.

        `parts` are those of the whole script, in the order of the text.
        """
        begin, end = (bisect_left(parts, at, key=lambda part: part.at) for at in (self.start, self.end))
        return parts[begin:end]

    @cached_property
    def assigned_names(self) -> frozenset[str]:
        """The names of the variables that the block sets."""
        return frozenset(assignment.name for assignment in self.assignments)

    @property
    def defines_function(self) -> bool:
        """Whether the block defines a function, which has its own arguments."""
        return any(command.context.function for command in self.commands)

    @property
    def outer_commands(self) -> Iterator[Command]:
        """The block's commands without those in substitutions, such as $(hostname)."""
        return (command for command in self.commands if not command.context.in_substitution)

    @cached_property
    def only_assigns(self) -> bool:
        """Whether the block does nothing but set variables, under no condition."""
        are_plain = all(
            assignment.context.is_top_level and not assignment.subscript and not assignment.is_append
            for assignment in self.assignments
        )
        declarations = ("export", "declare", "readonly", "typeset")
        only_declares = all(command.name in declarations for command in self.outer_commands)
        return bool(self.assignments) and are_plain and only_declares

    def only_assigns_names(self, names: Container[str]) -> bool:
        """Return whether the block does nothing but set variables that are among `names`."""
        return self.only_assigns and all(name in names for name in self.assigned_names)

    @cached_property
    def only_assigns_harmlessly(self) -> bool:
        """Whether the block only sets variables, and the commands in their values change nothing."""
        substituted = (command for command in self.commands if command.context.in_substitution)
        return self.only_assigns and all(map(_is_harmless, substituted))

    @cached_property
    def is_inert(self) -> bool:
        """Whether the block has the same effect before and after the activation of an environment."""
        return all(command.name in _INERT or _is_harmless(command) for command in self.commands)

    @property
    def changes_modules(self) -> bool:
        """Whether the block loads modules, or sets a variable such as PATH that modules also change."""
        calls_module = any(command.name in ("module", "ml") for command in self.commands)
        return calls_module or any(name.endswith("PATH") for name in self.assigned_names)

    @cached_property
    def only_prints(self) -> bool:
        """Whether the block only prints to the log."""
        commands = list(self.outer_commands)
        all_print = all(
            command.name in _PRINTING_PROGRAMS and not _writes_file(command) for command in commands
        )
        return bool(commands) and all_print and not self.assignments

    @cached_property
    def only_prints_harmlessly(self) -> bool:
        """Whether the block only prints, without side effects.

        A command in a substitution may have an effect, and an expansion such as ${1:?} may end the script.
        """
        substituted = (command for command in self.commands if command.context.in_substitution)
        may_end = any("?" in use.operator for use in self._within(self.body.variable_uses))
        return self.only_prints and all(map(_is_harmless, substituted)) and not may_end

    @cached_property
    def only_closes(self) -> bool:
        """Whether a block after the training only prints or sets the exit status, so that no job needs it."""
        return all(
            (command.is_test or command.name in CLOSING or _is_env_or_scontrol_show(command))
            and not _writes_file(command)
            for command in self.outer_commands
        )


def _writes_file(command: Command) -> bool:
    """Return whether a command writes a file other than /dev/null."""
    output_operators = (">", ">>", "&>", "&>>", ">|")
    targets = (redirect.target for redirect in command.redirects if redirect.operator in output_operators)
    return any(target is not None and target.text != "/dev/null" for target in targets)


def _is_harmless(command: Command) -> bool:
    """Return whether a command only looks up facts, such as hostname, scontrol, head or `srun hostname`."""
    if command.is_test:
        return True
    if _writes_file(command):
        return False
    words = [word.value or "" for word in command.words]
    if command.name == "srun":  # harmless if it starts a program that looks up a name or an address
        return any(word in ("hostname", "ip", "getent") for word in words)
    return command.name in _HARMLESS_PROGRAMS or _is_env_or_scontrol_show(command)


def _is_env_or_scontrol_show(command: Command) -> bool:
    """Return whether a command is `env` without arguments, or `scontrol show`."""
    if command.name == "env":
        return len(command.words) == 1
    return command.name == "scontrol" and [word.value for word in command.words[1:2]] == ["show"]


def blocks(body: Body) -> list[Block]:
    """Return the blocks of a script up to its end, in order; [] if bash can't read the script."""
    statements: list[Block] = []
    for node in body.source.nodes[0].children:
        if node.kind == "comment" or node.start >= body.end:
            continue
        start, end = node.start, node.end
        # The & of a background command is a node of its own, and some nodes overlap the node before. Both
        # belong to the block before.
        if statements and (node.kind == "&" or start < statements[-1].end):
            start = statements.pop().start
        first_line = body.source.position(start)[0]
        last_line = body.source.position(max(start, end - 1))[0]
        statements.append(Block(body, first_line, last_line, start, end))
    return statements
