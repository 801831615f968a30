"""The lines that make the software of the training ready -> modules, and the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbatchgen.adopt.block import Block
from sbatchgen.adopt.draft import Draft
from sbatchgen.runtimes import RUNTIMES

if TYPE_CHECKING:
    from sbatchgen.bash import Command

# The variables that a virtual environment or conda sets or, here, unsets.
_OF_ACTIVATION = frozenset(
    ("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "PATH", "PYTHONPATH", "PYTHONHOME")
)


@dataclass(kw_only=True)
class Activation:
    """The activation of an environment: the keys of the runtime, and the blocks that they are from."""

    name: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


def without_modules(draft: Draft, before: Sequence[Block]) -> list[Block]:
    """Take over modules, unless an earlier block may change what they load; return the other blocks."""
    loads = {block: names for block in before if (names := _loads(block)) is not None}
    loaded = [name for names in loads.values() for name in names]
    if not loaded:
        return list(before)
    earlier = before[: before.index([*loads][-1])]
    others = [block for block in earlier if block not in loads and not block.sets_only(draft.meeting)]
    if any(not block.is_inert or block.is_of_modules for block in others):
        return list(before)
    draft.profile["modules"] = loaded
    for block, names in loads.items():
        draft.add(block.lines, "understood", "modules", *(names or ("purge",)))
    if not any("purge" in block.text for block in loads):
        draft.note("modules are loaded after a module purge, which the old script did not do")
    return [block for block in before if block not in loads]


def _loads(block: Block) -> list[str] | None:
    """Return the modules that a block loads, if it does nothing else except purge."""
    loaded: list[str] = []
    for command in block.commands:
        words = [word.value for word in command.words]
        if (
            command.name not in ("module", "ml")
            or not command.context.top
            or command.redirects
            or None in words
        ):
            return None
        verb, *rest = [str(word) for word in words[1:]] or [""]
        if command.name == "ml" and verb not in ("purge", "load"):
            verb, rest = "load", [verb, *rest]
        if verb not in ("purge", "load", "add") or any(name.startswith("-") or not name for name in rest):
            return None
        if verb == "purge" and (rest or loaded):
            return None
        loaded += rest
    return loaded if block.commands and not block.sets else None


def activated(draft: Draft, blocks: Iterable[Block]) -> Activation:
    """Return the environment that blocks activate, if they do so in a known way."""
    runtime = Activation()
    for block in blocks:
        outer = list(block.outer)
        steps = [_activation(draft, command) for command in outer]
        if not outer or block.sets or any(step is None for step in steps):
            continue
        for name, keys in (step for step in steps if step):
            if runtime.name and (runtime.name != name or runtime.keys.keys() & keys.keys()):
                return Activation()  # one after the other: kept unchanged
            runtime.name = name
            runtime.keys |= keys
        runtime.blocks.append(block)
    ready = "env" in runtime.keys or "path" in runtime.keys
    return runtime if ready else Activation()


def _activation(draft: Draft, command: Command) -> tuple[str, dict[str, str]] | None:
    """The runtime and the keys that a command of an activation gives."""
    if not command.context.top or command.redirects or command.prefix or command.pipe:
        return None
    for name, runtime in RUNTIMES.items():
        keys = runtime.activation(command, draft)
        if keys is not None:
            return name, keys
    return None


def may_move(runtime: Activation, kept: Sequence[Block]) -> bool:
    """Whether an activation may come after everything that is kept."""
    first = min(block.start for block in runtime.blocks)
    if any(_OF_ACTIVATION & (block.uses | block.assigned) for block in kept if block.start > first):
        return False
    if any({"PYTHONPATH", "PYTHONHOME"} & block.assigned for block in kept):
        return False
    return all(block.is_inert for block in kept if block.start > first)


def adopt_activation(draft: Draft, runtime: Activation) -> None:
    """Take over an activation, if there is one."""
    if not runtime.blocks:
        return
    draft.profile["runtime"] = runtime.name
    draft.profile["runtimes"] = {runtime.name: dict(sorted(runtime.keys.items(), reverse=True))}
    environment = runtime.keys.get("env") or runtime.keys.get("path")
    for block in runtime.blocks:
        draft.add(block.lines, "understood", f"runtime {runtime.name}: {environment}")
