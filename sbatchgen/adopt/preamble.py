"""The lines before the training -> modules, runtime and env; the rest stays as setup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sbatchgen.adopt import runtime
from sbatchgen.adopt.block import Block
from sbatchgen.adopt.draft import Draft, is_variable
from sbatchgen.adopt.shape import RANKS
from sbatchgen.inputs.profile import NETWORK_VARIABLES

if TYPE_CHECKING:
    from sbatchgen.bash import Assignment
    from sbatchgen.job.launches import Launch

_MEETING = ("MASTER_ADDR", "MASTER_PORT", "MST_ADDR")
_RENDEZVOUS = ("rdzv-id", "rdzv-endpoint", "master-addr", "master-port", "node-rank", "rdzv-conf")
_OWN = frozenset(("OMP_NUM_THREADS", "PYTHONNOUSERSITE", "PYTHONUNBUFFERED"))  # the script sets them too
_NETWORK = {key.upper(): key for key in NETWORK_VARIABLES}
# Variables whose place matters: before modules and conda, or on top of what these set.
_ORDERED = re.compile(r"(?<!^PYTHON)PATH$|^(?:CONDA|MAMBA|LMOD|MODULE)")


def follow_cd(draft: Draft, before: Iterable[Block]) -> None:
    """Find the folder that the launch's relative paths are relative to."""
    if "chdir" in draft.options:
        draft.folder = str(draft.options["chdir"])
    for command in (command for block in before for command in block.commands):
        if command.name not in ("cd", "pushd", "popd"):
            continue
        plain = command.name == "cd" and command.context.top and len(command.words) == 2
        target = draft.path(command.words[1], draft.script.body) if plain else None
        draft.folder = target if target and target.startswith(("/", "${")) else None


def adopt_preamble(draft: Draft, before: Sequence[Block], launch: Launch) -> None:
    """Take over the blocks before the launch."""
    _Environment(draft, before, launch).read()


class _Environment:
    """The blocks before a launch.

    Attributes:
        meets: Whether processes connect to each other: then the new script sets the master address and ranks.
        used: The variables that the script expands.
        values: The variables that a job's env can hold: always exported, with a value that the text has.
    """

    def __init__(self, draft: Draft, before: Sequence[Block], launch: Launch) -> None:
        self.draft = draft
        self.before = before
        self.meets = draft.job.get("mode") == "ddp"
        self.used = {use.name for use in draft.script.body.uses}
        draft.meeting = self._meeting(launch)
        values: dict[str, str | None] = {}
        for assignment in (each for block in before for each in block.sets if not each.prefix):
            known = values.get(assignment.name, "") is not None
            values[assignment.name] = self._literal(assignment) if known else None
        self.values = {name: value for name, value in values.items() if value is not None}

    def read(self) -> None:
        """Take over what has a key, and keep the rest."""
        draft = self.draft
        rest = [*self.before] if draft.setup else runtime.without_modules(draft, self.before)
        activation = runtime.Activation() if "runtime" in draft.profile else runtime.activated(draft, rest)
        free = [block for block in rest if block not in activation.blocks]
        kept = self._kept(free)
        if activation.blocks and not runtime.may_move(activation, kept):
            activation, free = runtime.Activation(), rest
            kept = self._kept(free)
        runtime.adopt_activation(draft, activation)
        stays = {*kept}
        for block in free:
            if block in stays:
                self._keep(block)
            elif block.only_sets:
                self._take(block)
            else:
                draft.add(block.lines, "dropped", "it only prints the old master address")

    def _meeting(self, launch: Launch) -> frozenset[str]:
        """Return the variables of the master address and ranks, and those that they are made of."""
        assigned = self.draft.script.assigned
        names = {*_MEETING, *RANKS} if self.meets else set()
        for option in launch.launcher.given if launch.launcher else ():
            if option.name in _RENDEZVOUS and option.value_word is not None:
                names |= {*option.value_word.variables} & assigned
        for block in reversed(self.before):
            if block.only_sets and block.assigned & names:
                names |= block.uses & assigned
        return frozenset(names)

    def _literal(self, assignment: Assignment) -> str | None:
        """Return the value of an exported variable that a job's env can hold."""
        name, word, body = assignment.name, assignment.word, self.draft.script.body
        plain = assignment.exported and assignment.by in ("export", "") and assignment.context.top
        if not plain or assignment.append or assignment.items is not None or assignment.subscript:
            return None
        if word is None or not is_variable(name) or _ORDERED.search(name):  # export NAME has no word
            return None
        value = body.value(word)
        return self.draft.argument(word, body) if value is None and name == "OMP_NUM_THREADS" else value

    def _kept(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks that have to stay: what acts, and the variables that it uses."""
        kept: list[Block] = []
        needed = set(self.draft.needed)
        acts = False  # whether a program that is kept follows: it may read any variable
        for block in reversed(blocks):
            if block.sets_only(self.draft.meeting):
                stays = bool(block.assigned & needed)
            elif block.only_assigns:
                exported = {assignment.name for assignment in block.sets if assignment.exported}
                taken = exported <= self.values.keys() | self.draft.meeting
                stays = bool(block.assigned & needed) or not taken or (acts and bool(exported))
            else:
                stays = not (block.only_prints and block.uses & self.draft.meeting)
            if stays:
                kept.append(block)
                needed |= block.uses | {each.name for each in block.sets if each.word is None}
                acts = acts or not block.is_inert
        return kept[::-1]

    def _take(self, block: Block) -> None:
        """Take over the variables of a block that only sets some."""
        for name, exported in ((assignment.name, assignment.exported) for assignment in block.sets):
            if name in self.draft.meeting:
                what = "the new script has its own master address and ranks"
                self.draft.add(block.lines, "dropped", what, name)
            elif exported:
                self._export(block, name, self.values.get(name, ""))
            elif name in self.used:
                self.draft.add(block.lines, "understood", "filled in where it is used", name)
            else:
                self.draft.add(block.lines, "dropped", "neither used nor exported", name)

    def _export(self, block: Block, name: str, value: str) -> None:
        """Set a variable of the job; the interfaces of the cluster belong to the profile."""
        draft = self.draft
        gloo = name == "GLOO_SOCKET_IFNAME" and any(char in value for char in "^= ")
        if name in _NETWORK and value and self.meets and not gloo:
            draft.profile.setdefault("network", {})[_NETWORK[name]] = value
            draft.add(block.lines, "understood", "network", name)
        elif block.first in draft.secrets:
            draft.env[name] = None
            draft.add(block.lines, "mended", "a secret is not copied, export it where you submit", name)
        else:
            draft.env[name] = value
            draft.add(block.lines, "understood", "env", name)

    def _keep(self, block: Block) -> None:
        """Keep its lines unchanged, in the profile's setup."""
        draft = self.draft
        if {"PYTHONPATH", "PYTHONHOME"} & block.assigned and draft.profile.get("runtime", "host") != "host":
            what = "PYTHONPATH is unset before the runtime starts: set it in the job's env"
            draft.add(block.lines, "lost", what)
            return
        draft.env |= {name: self.values[name] for name in _OWN & block.assigned & self.values.keys()}
        for number, text in zip(block.lines, block.text.split("\n"), strict=True):
            line = "    " * (len(text) - len(text.lstrip("\t"))) + text.lstrip("\t")
            if any(ord(char) < 32 or ord(char) == 127 for char in line):
                what = "a tab or another control character: a profile can't hold the line"
                draft.add((number,), "lost", what)
            else:
                draft.setup.append(line)
                end = ": if it fails, the job ends" if line.endswith("|| exit") else ", unchanged"
                draft.add((number,), "kept", f"in setup{end}")
