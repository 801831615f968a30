"""What stands before the training -> modules, runtime, variables, and setup that stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sbatchgen.adopt import runtime
from sbatchgen.adopt.block import Block
from sbatchgen.adopt.draft import Draft, is_variable
from sbatchgen.adopt.shape import RANKS

if TYPE_CHECKING:
    from sbatchgen.bash import Assignment
    from sbatchgen.job.launches import Launch

_MEETING = ("MASTER_ADDR", "MASTER_PORT", "MST_ADDR")
_RENDEZVOUS = ("rdzv-id", "rdzv-endpoint", "master-addr", "master-port", "node-rank", "rdzv-conf")
_OWN = frozenset(("OMP_NUM_THREADS", "PYTHONNOUSERSITE", "PYTHONUNBUFFERED"))  # the script sets them again
_NETWORK = {
    "NCCL_SOCKET_IFNAME": "nccl_socket_ifname",
    "GLOO_SOCKET_IFNAME": "gloo_socket_ifname",
    "NCCL_IB_HCA": "nccl_ib_hca",
}
# Variables that count where they are set: before modules and conda, or on top of what these set.
_ORDERED = re.compile(r"(?<!^PYTHON)PATH$|^(?:CONDA|MAMBA|LMOD|MODULE)")


def follow_cd(draft: Draft, before: Iterable[Block]) -> None:
    """Find the folder that the launch's relative paths count from."""
    if "chdir" in draft.options:
        draft.folder = str(draft.options["chdir"])
    for command in (one for block in before for one in block.commands):
        if command.name not in ("cd", "pushd", "popd"):
            continue
        plain = command.name == "cd" and command.context.top and len(command.words) == 2
        target = draft.path(command.words[1], draft.script.body) if plain else None
        draft.folder = target if target and target.startswith(("/", "${")) else None


def read(draft: Draft, before: Sequence[Block], launch: Launch) -> None:
    """Take over the blocks that stand before the launch."""
    _Environment(draft, before, launch).read()


class _Environment:
    """The blocks before a launch.

    Attributes:
        meets: Whether processes connect to each other: then the new script sets the master address and ranks.
        used: The variables that the script expands.
        values: The variables that a job's env can hold: always exported, and told by the text.
    """

    def __init__(self, draft: Draft, before: Sequence[Block], launch: Launch) -> None:
        self.draft = draft
        self.before = before
        self.meets = draft.job.get("mode") == "ddp"
        draft.meeting = self._meeting(launch)
        self.used = {use.name for use in draft.script.body.uses}
        found: dict[str, str] = {}
        rest: set[str] = set()
        for one in (one for block in before for one in block.sets if not one.prefix):
            value = self._literal(one)
            if value is None:
                rest.add(one.name)
            else:
                found[one.name] = value
        self.values = {name: value for name, value in found.items() if name not in rest}

    def read(self) -> None:
        """Take over what has a key, and keep the rest."""
        draft = self.draft
        rest = [*self.before] if draft.setup else runtime.without_modules(draft, self.before)
        found = runtime.Activation() if "runtime" in draft.profile else runtime.activated(draft, rest)
        free = [block for block in rest if block not in found.blocks]
        kept = self._kept(free)
        if found.blocks and not runtime.may_move(found, kept):
            found, free = runtime.Activation(), rest
            kept = self._kept(free)
        runtime.take(draft, found)
        stays = {*kept}
        for block in free:
            if block in stays:
                self._keep(block)
            elif block.only_sets:
                self._take(block)
            else:
                draft.add(block.lines, "dropped", "it only prints the old master address")

    def _meeting(self, launch: Launch) -> frozenset[str]:
        assigned = self.draft.script.assigned
        found = {*_MEETING, *RANKS} if self.meets else set()
        for option in launch.launcher.given if launch.launcher else ():
            if option.name in _RENDEZVOUS and option.value_word is not None:
                found |= {*option.value_word.variables} & assigned
        for block in reversed([block for block in self.before if block.only_sets]):
            if block.assigned & found:
                found |= block.uses & assigned
        return frozenset(found)

    def _literal(self, one: Assignment) -> str | None:
        """The value of an exported variable that a job's env can hold."""
        plain = one.exported and one.by in ("export", "") and one.context.top and not one.append
        if not plain or one.items is not None or one.subscript or _ORDERED.search(one.name):
            return None
        if one.word is None or not is_variable(one.name):  # export NAME, of a variable that was set before
            return None
        body = self.draft.script.body
        value = body.value(one.word)
        if value is None and one.name == "OMP_NUM_THREADS":
            return self.draft.argument(one.word, body)
        return value

    def _kept(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks that have to stay as they are: what acts, and the variables that it uses."""
        kept: list[Block] = []
        needed = set(self.draft.needed)
        acts = False  # whether a program follows that is kept: it may read any variable
        for block in reversed(blocks):
            if block.sets_only(self.draft.meeting):
                stays = bool(block.assigned & needed)
            elif block.only_assigns:
                exported = [one for one in block.sets if one.exported]
                taken = all(one.name in self.values or one.name in self.draft.meeting for one in exported)
                stays = bool(block.assigned & needed) or not taken or (acts and bool(exported))
            else:
                stays = not (block.only_tells and block.uses & self.draft.meeting)
            if stays:
                kept.append(block)
                needed |= block.uses | {one.name for one in block.sets if one.word is None}
                acts = acts or not block.is_inert
        return kept[::-1]

    def _take(self, block: Block) -> None:
        """What becomes of a block that only sets variables."""
        for one in block.sets:
            if one.name in self.draft.meeting:
                self.draft.add(
                    block.lines, "dropped", "the new script has its own master address and ranks", one.name
                )
            elif one.exported:
                self._export(block, one.name, self.values.get(one.name, ""))
            elif one.name in self.used:
                self.draft.add(block.lines, "understood", "filled in where it is used", one.name)
            else:
                self.draft.add(block.lines, "dropped", "neither used nor exported", one.name)

    def _export(self, block: Block, name: str, value: str) -> None:
        """A variable of the job; the interfaces of the cluster are the profile's."""
        draft = self.draft
        gloo = name == "GLOO_SOCKET_IFNAME" and any(one in value for one in "^= ")
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
        """Its lines as they stand, in the profile's setup."""
        draft = self.draft
        if {"PYTHONPATH", "PYTHONHOME"} & block.assigned and draft.profile.get("runtime", "host") != "host":
            what = "PYTHONPATH is unset before the runtime starts: set it in the job's env"
            draft.add(block.lines, "lost", what)
            return
        draft.env |= {name: self.values[name] for name in _OWN & block.assigned & self.values.keys()}
        for number, text in zip(block.lines, block.text.split("\n"), strict=True):
            rest = text.lstrip("\t")
            line = "    " * (len(text) - len(rest)) + rest
            if any(ord(char) < 32 or ord(char) == 127 for char in line):
                what = "a tab or another control character: a profile can't hold the line"
                draft.add((number,), "lost", what)
            else:
                draft.setup.append(line)
                ends = ": if it fails, the job ends" if line.endswith("|| exit") else ", as it stands"
                draft.add((number,), "kept", f"in setup{ends}")
