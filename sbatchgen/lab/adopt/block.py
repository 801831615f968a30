"""The blocks of a script: its statements, with the lines of each."""

from bisect import bisect_left
from collections.abc import Container, Iterator
from typing import TypeVar

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash import Assignment, Body, Command, VariableUse
from sbatchgen.check.executables.program import programs
from sbatchgen.check.script.launches import HELPERS

_Part = TypeVar("_Part", Command, Assignment, VariableUse)


# These only print something; the next ones only look something up as well.
_PRINTING = programs("prints")
_LOOKING = programs("prints", "looks")
# After the training, whose status is the job's, they have no effect; awk, sed and sort may write files.
CLOSING = (_LOOKING - {"awk", "sed", "sort"}) | programs("closes")
# They do the same before and after an environment is activated.
_INERT = HELPERS - {"pip", "which"} | programs("builtin")


@frozen(eq=False)
class Block:
    """A statement of a script; several may share a line."""

    body: Body  # of the script
    first: int  # the number of its first line
    last: int  # the number of its last line
    start: int  # where it starts, in characters from 0
    end: int  # where it ends

    @property
    def lines(self) -> range:
        """The numbers of its lines."""
        return range(self.first, self.last + 1)

    @cached_property
    def text(self) -> str:
        """Its text, with the indentation and the comment of its lines."""
        text = self.body.source.text
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", max(self.start, self.end - 1))
        last = len(text) if last < 0 else last
        alone = text[self.end : last].lstrip(" \t;")[:1] in ("", "#")
        return text[self.start if text[first : self.start].strip() else first : last if alone else self.end]

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """Its commands, also commands in substitutions and functions."""
        return self._inside(self.body.commands)

    @cached_property
    def sets(self) -> tuple[Assignment, ...]:
        """The variables that it sets or unsets."""
        return self._inside(self.body.sets)

    @cached_property
    def uses(self) -> frozenset[str]:
        """The names of the variables that it expands."""
        return frozenset(use.name for use in self._inside(self.body.uses))

    def _inside(self, parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
        """Return the parts, given in the order of the text, that are inside the block."""
        first, last = (bisect_left(parts, at, key=lambda part: part.at) for at in (self.start, self.end))
        return parts[first:last]

    @cached_property
    def assigned(self) -> frozenset[str]:
        """The names of the variables that it sets."""
        return frozenset(assignment.name for assignment in self.sets)

    @property
    def defines(self) -> bool:
        """Whether it defines a function, which has arguments of its own."""
        return any(command.context.function for command in self.commands)

    @property
    def outer(self) -> Iterator[Command]:
        """Its commands outside of substitutions."""
        return (command for command in self.commands if not command.context.substitution)

    @cached_property
    def only_sets(self) -> bool:
        """Whether it only sets variables, each time that it runs."""
        plain = all(each.context.top and not each.subscript and not each.append for each in self.sets)
        declarations = ("export", "declare", "readonly", "typeset")
        return bool(self.sets) and plain and all(command.name in declarations for command in self.outer)

    def sets_only(self, names: Container[str]) -> bool:
        """Return whether it only sets some of these variables."""
        return self.only_sets and all(name in names for name in self.assigned)

    @cached_property
    def only_assigns(self) -> bool:
        """Whether it only sets variables, with commands that change nothing."""
        inner = (command for command in self.commands if command.context.substitution)
        return self.only_sets and all(map(_is_harmless, inner))

    @cached_property
    def is_inert(self) -> bool:
        """Whether it does the same before and after an environment is activated."""
        return all(command.name in _INERT or _is_harmless(command) for command in self.commands)

    @property
    def changes_modules(self) -> bool:
        """Whether it is about modules, or a list of folders that they change too."""
        named = any(command.name in ("module", "ml") for command in self.commands)
        return named or any(name.endswith("PATH") for name in self.assigned)

    @cached_property
    def only_prints(self) -> bool:
        """Whether it only prints to the log."""
        outer = list(self.outer)
        plain = all(command.name in _PRINTING and not _writes(command) for command in outer)
        return bool(outer) and plain and not self.sets

    @cached_property
    def only_shows(self) -> bool:
        """Whether it only prints, also in its substitutions, and ends nothing, as ${1:?} does."""
        inner = (command for command in self.commands if command.context.substitution)
        asks = any("?" in use.operator for use in self._inside(self.body.uses))
        return self.only_prints and all(map(_is_harmless, inner)) and not asks

    @cached_property
    def only_closes(self) -> bool:
        """Whether, after the training, it only prints something or sets the exit status."""
        return all(
            (command.test or command.name in CLOSING or _shows(command)) and not _writes(command)
            for command in self.outer
        )


def _writes(command: Command) -> bool:
    targets = (each.target for each in command.redirects if each.operator in (">", ">>", "&>", "&>>", ">|"))
    return any(target is not None and target.text != "/dev/null" for target in targets)


def _is_harmless(command: Command) -> bool:
    """Return whether it only looks something up, also by srun on a node.

    Hostname, scontrol, head and so on.
    """
    if command.test or _writes(command):
        return command.test
    words = [word.value or "" for word in command.words]
    if command.name == "srun":
        return any(word in ("hostname", "ip", "getent") for word in words)
    return command.name in _LOOKING or _shows(command)


def _shows(command: Command) -> bool:
    if command.name == "env":
        return len(command.words) == 1
    return command.name == "scontrol" and [word.value for word in command.words[1:2]] == ["show"]


def blocks(body: Body) -> list[Block]:
    """Return the blocks of a script up to its end, in order; no blocks if it can't be read as bash."""
    blocks: list[Block] = []
    for node in body.source.nodes[0].children:
        if node.kind == "comment" or node.start >= body.end:
            continue
        start, end = node.start, node.end
        if blocks and (node.kind == "&" or start < blocks[-1].end):
            start = blocks.pop().start
        first = body.source.position(start)[0]
        last = body.source.position(max(start, end - 1))[0]
        blocks.append(Block(body, first, last, start, end))
    return blocks
