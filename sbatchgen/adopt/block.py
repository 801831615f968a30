"""The blocks of a script: its statements, with the lines of each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from sbatchgen.job.launches import HELPERS

if TYPE_CHECKING:
    from sbatchgen.bash import Assignment, Body, Command
    from sbatchgen.bash.command import VariableUse

_Found = TypeVar("_Found", "Command", "Assignment", "VariableUse")

_SHELL = ": [ [[ (( cd declare exit export let local readonly return set shift shopt trap ulimit umask unset"
_TELL = "date df du echo free hostname id lscpu nproc nvidia-smi printf ps pwd uname uptime whoami"
_CLOSE = """
: [ [[ (( conda deactivate declare exit export false kill module ml sacct seff set sleep sstat squeue sync
test true wait
"""
_LOOK = """
awk basename cat cut dirname expr getent grep head ip jq ls readlink realpath sed seq shuf sort ss tail tr
uniq wc
"""
_TELLING = frozenset(_TELL.split())  # they only tell something
_LOOKING = _TELLING | frozenset(_LOOK.split())  # they change nothing
# Behind the training, whose status is the job's, they do nothing; awk, sed and sort may write files.
_CLOSING = (_LOOKING - {"awk", "sed", "sort"}) | frozenset(_CLOSE.split())
# They do the same before and after an environment is activated.
_INERT = HELPERS - {"pip", "which"} | frozenset(_SHELL.split())


@dataclass(frozen=True, eq=False)
class Block:
    """A statement of a script; several may share a line.

    Attributes:
        body: The script.
        first: The number of the first line.
        last: That of the last one.
        start: Where it starts, in characters from 0.
        end: Where it ends.
    """

    body: Body
    first: int
    last: int
    start: int
    end: int

    @property
    def lines(self) -> range:
        """The numbers of its lines."""
        return range(self.first, self.last + 1)

    @cached_property
    def text(self) -> str:
        """It as it is written, with the indentation and the comment of its lines."""
        text = self.body.source.text
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", max(self.start, self.end - 1))
        last = len(text) if last < 0 else last
        alone = text[self.end : last].lstrip(" \t;")[:1] in ("", "#")
        return text[self.start if text[first : self.start].strip() else first : last if alone else self.end]

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """Its commands, also those in substitutions and functions."""
        return self._of(self.body.commands)

    @cached_property
    def sets(self) -> tuple[Assignment, ...]:
        """The variables that it sets or unsets."""
        return self._of(self.body.sets)

    @cached_property
    def uses(self) -> frozenset[str]:
        """The variables that it expands."""
        return frozenset(one.name for one in self._of(self.body.uses))

    def _of(self, found: tuple[_Found, ...]) -> tuple[_Found, ...]:
        """What of these, in the order of the text, stands in it."""
        first, last = (bisect_left(found, at, key=lambda one: one.at) for at in (self.start, self.end))
        return found[first:last]

    @cached_property
    def assigned(self) -> frozenset[str]:
        """The names of the variables that it sets."""
        return frozenset(one.name for one in self.sets)

    @property
    def outer(self) -> Iterator[Command]:
        """Its commands outside of substitutions."""
        return (one for one in self.commands if not one.context.substitution)

    @cached_property
    def only_sets(self) -> bool:
        """Whether it does nothing but set variables, each time."""
        made = all(one.context.top and not one.subscript and not one.append for one in self.sets)
        outer = [one for one in self.outer if one.name not in ("export", "declare", "readonly", "typeset")]
        return bool(self.sets) and made and not outer

    def sets_only(self, names: Container[str]) -> bool:
        """Whether it does nothing but set some of these variables."""
        return self.only_sets and all(name in names for name in self.assigned)

    @cached_property
    def only_assigns(self) -> bool:
        """Whether it only sets variables, with commands that change nothing."""
        inner = (one for one in self.commands if one.context.substitution)
        return self.only_sets and all(_is_harmless(one) for one in inner)

    @cached_property
    def is_inert(self) -> bool:
        """Whether it does the same before and after an environment is activated."""
        return all(one.test or one.name in _INERT or _is_harmless(one) for one in self.commands)

    @property
    def is_of_modules(self) -> bool:
        """Whether it has to do with modules, or a list of folders that they change as well."""
        named = any(one.name in ("module", "ml") for one in self.commands)
        return named or any(name.endswith("PATH") for name in self.assigned)

    @cached_property
    def only_tells(self) -> bool:
        """Whether it only prints to the log."""
        outer = list(self.outer)
        plain = all(one.name in _TELLING and not _writes(one) for one in outer)
        return bool(outer) and plain and not self.sets

    @cached_property
    def only_closes(self) -> bool:
        """Whether, behind the training, it only tells something or sets the exit status."""
        named = all(one.test or one.name in _CLOSING for one in self.outer)
        return named and not any(_writes(one) for one in self.outer)


def _writes(command: Command) -> bool:
    """Whether it writes a file."""
    written = (one.target for one in command.redirects if one.operator in (">", ">>", "&>", "&>>", ">|"))
    return any(target is not None and target.text != "/dev/null" for target in written)


def _is_harmless(command: Command) -> bool:
    """Whether it only looks something up, also by srun on a node: hostname, scontrol, head and the like."""
    if command.test or _writes(command):
        return command.test
    words = [word.value or "" for word in command.words]
    if command.name == "srun":
        return any(word in ("hostname", "ip", "getent") for word in words)
    return command.name in _LOOKING or (command.name == "scontrol" and words[1:2] == ["show"])


def blocks(body: Body) -> list[Block]:
    """The blocks of a script up to its end, in order; none if its text can't be read as bash."""
    tree = body.source.tree
    if tree is None:
        return []
    found: list[Block] = []
    for node in tree.root_node.children:
        if node.type in ("comment", "\n", ";") or node.start_byte >= body.end:
            continue
        start, end = node.start_byte, node.end_byte
        if found and (node.type == "&" or start < found[-1].end):
            start = found.pop().start
        first = body.source.position(start)[0]
        last = body.source.position(max(start, end - 1))[0]
        found.append(Block(body, first, last, start, end))
    return found
