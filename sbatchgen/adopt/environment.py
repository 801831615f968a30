"""What stands before the training -> modules, runtime, variables, and setup that stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbatchgen.adopt.block import Block
from sbatchgen.adopt.draft import SUBMIT_DIR, Draft, parsed
from sbatchgen.units import EnvName

if TYPE_CHECKING:
    from sbatchgen.bash import Assignment, Command
    from sbatchgen.job.launches import Launch

_MEETING = ("MASTER_ADDR", "MASTER_PORT", "MST_ADDR")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
_RENDEZVOUS = ("rdzv-id", "rdzv-endpoint", "master-addr", "master-port", "node-rank", "rdzv-conf")
_NETWORK = {
    "NCCL_SOCKET_IFNAME": "nccl_socket_ifname",
    "GLOO_SOCKET_IFNAME": "gloo_socket_ifname",
    "NCCL_IB_HCA": "nccl_ib_hca",
}
# Variables that count where they are set: before modules and conda, or on top of what these set.
_ORDERED = re.compile(r"(?<!^PYTHON)PATH$|^(?:CONDA|MAMBA|LMOD|MODULE)")
# What a virtual environment or conda sets, and what they unset here.
_OF_ACTIVATION = frozenset(
    ("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "PATH", "PYTHONPATH", "PYTHONHOME")
)


@dataclass(kw_only=True)
class _Runtime:
    """What activates an environment."""

    name: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


def read(draft: Draft, before: Sequence[Block], launch: Launch | None) -> None:
    """Take over the blocks that stand before the launch."""
    meeting = _meeting(draft, before, launch)
    rest = list(before) if draft.setup else _without_modules(draft, before, meeting)
    runtime = _Runtime() if "runtime" in draft.profile else _activated(draft, rest)
    free = [block for block in rest if block not in runtime.blocks]
    kept = _kept(draft, free, meeting)
    if runtime.blocks and not _may_move(runtime, kept):
        runtime, free = _Runtime(), rest
        kept = _kept(draft, free, meeting)
    _take_runtime(draft, runtime)
    for block in free:
        if block in kept:
            _keep(draft, block)
        else:
            _take_variables(draft, block, meeting)


def move(draft: Draft, before: Iterable[Block]) -> None:
    """Where the launch's relative paths count from, after each cd."""
    if "chdir" in draft.options:
        draft.folder = str(draft.options["chdir"])
    for command in (one for block in before for one in block.commands):
        if command.name not in ("cd", "pushd", "popd"):
            continue
        plain = command.name == "cd" and command.context.top and len(command.words) == 2
        target = draft.path(command.words[1], draft.script.body) if plain else None
        draft.folder = target if target and target.startswith(("/", "${")) else None


def _without_modules(draft: Draft, before: Sequence[Block], meeting: frozenset[str]) -> list[Block]:
    """The other blocks; modules are understood where nothing before them may change what they load."""
    found = [block for block in before if _loads(block) is not None]
    if not found:
        return list(before)
    earlier = before[: before.index(found[-1])]
    others = [block for block in earlier if block not in found and not _is_of(block, meeting)]
    if any(not block.is_inert or block.is_about_modules or block.sets_paths for block in others):
        return list(before)
    loaded = [name for block in found for name in _loads(block) or ()]
    if not loaded:
        return list(before)
    draft.profile["modules"] = loaded
    for block in found:
        loads = _loads(block)
        draft.add(
            block.lines,
            "understood",
            f"modules: {', '.join(loads or ())}" if loads else "modules: purge first",
        )
    if not any("purge" in block.text for block in found):
        draft.note("the modules are loaded after a module purge, which the old script did not do")
    return [block for block in before if block not in found]


def _is_of(block: Block, meeting: frozenset[str]) -> bool:
    """Whether a block only sets variables of the rendezvous."""
    return block.only_sets and block.assigned <= meeting


def _loads(block: Block) -> list[str] | None:
    """The modules that a block loads, if it does nothing else but purge."""
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
        if verb not in ("purge", "load", "add") or any(one.startswith("-") or not one for one in rest):
            return None
        if verb == "purge" and (rest or loaded):
            return None
        loaded += rest
    return loaded if block.commands and not block.sets else None


def _activated(draft: Draft, blocks: Iterable[Block]) -> _Runtime:
    """The environment that blocks activate, if they do so in a way that is known here."""
    runtime = _Runtime()
    for block in blocks:
        outer = list(block.outer)
        found = [_activation(draft, command) for command in outer]
        if not outer or block.sets or any(one is None for one in found):
            continue
        for name, keys in (one for one in found if one):
            if runtime.name and (runtime.name != name or runtime.keys.keys() & keys.keys()):
                return _Runtime()  # one after the other: kept as it stands
            runtime.name = name
            runtime.keys |= keys
        runtime.blocks.append(block)
    ready = "env" in runtime.keys or "path" in runtime.keys
    return runtime if ready else _Runtime()


def _activation(draft: Draft, command: Command) -> tuple[str, dict[str, str]] | None:  # noqa: PLR0911 (a return for each)
    """The runtime and the keys that a command of an activation stands for."""
    words, body = command.words, draft.script.body
    if not command.context.top or command.redirects or command.prefix or command.pipe:
        return None
    if command.name == "conda" and (words[1].value if len(words) > 1 else "") == "activate":
        env = draft.path(words[2], body) if len(words) == 3 else "base" if len(words) == 2 else None
        return ("conda", {"env": env}) if env else None
    if command.name == "eval" and len(words) == 2:
        path = body.text_of(words[1])
        inner = path.strip().removeprefix("$(").removesuffix(")").removesuffix(" 2> /dev/null").split()
        if len(inner) == 3 and inner[1:] in (["shell.bash", "hook"], ["shell.posix", "hook"]):
            return _conda_root(inner[0].strip('"'), "/bin/conda")
        return None
    if command.name not in ("source", ".") or not 2 <= len(words) <= 3:
        return None
    file = draft.file(words[1], body)
    if file is None or (
        draft.folder != SUBMIT_DIR and not (draft.path(words[1], body) or "").startswith(("/", "$"))
    ):
        return None
    if file.endswith("/etc/profile.d/conda.sh") and len(words) == 2:
        return _conda_root(file, "/etc/profile.d/conda.sh")
    if file.rpartition("/")[2] != "activate":
        return None
    if len(words) == 3 or file == "activate":
        env = draft.path(words[2], body) if len(words) == 3 else None
        root = {"root": file.removesuffix("/bin/activate")} if "/" in file else {}
        return ("conda", {**root, "env": env}) if env else None
    return ("venv", {"path": file.removesuffix("/bin/activate")}) if file.endswith("/bin/activate") else None


def _conda_root(path: str, end: str) -> tuple[str, dict[str, str]] | None:
    """An installation of conda, of the path of a file in it; of the bare word, the one on PATH."""
    if path == "conda":
        return "conda", {}
    root = path.removesuffix(end).replace("$HOME", "${HOME}").replace("${{HOME}}", "${HOME}")
    root = "${HOME}" + root[1:] if root.startswith("~/") else root
    return ("conda", {"root": root}) if path.endswith(end) and parsed(root) else None


def _may_move(runtime: _Runtime, kept: Sequence[Block]) -> bool:
    """Whether an activation may come after everything that is kept."""
    first = min(block.first for block in runtime.blocks)
    if any(_OF_ACTIVATION & (block.uses | block.assigned) for block in kept if block.first > first):
        return False
    if any({"PYTHONPATH", "PYTHONHOME"} & block.assigned for block in kept):
        return False
    return all(block.is_inert for block in kept if block.first > first)


def _take_runtime(draft: Draft, runtime: _Runtime) -> None:
    if not runtime.blocks:
        return
    draft.profile["runtime"] = runtime.name
    draft.profile["runtimes"] = {runtime.name: dict(sorted(runtime.keys.items(), reverse=True))}
    told = runtime.keys.get("env") or runtime.keys.get("path")
    for block in runtime.blocks:
        draft.add(block.lines, "understood", f"runtime {runtime.name}: {told}")


def _kept(draft: Draft, blocks: Sequence[Block], meeting: frozenset[str]) -> list[Block]:
    """The blocks that have to stay as they are: what acts, and the variables that it uses."""
    kept: list[Block] = []
    needed: set[str] = set()
    acts = False  # whether a program follows that is kept: it may read any variable
    for block in reversed(blocks):
        if _is_of(block, meeting):
            stays = bool(block.assigned & needed)
        elif block.only_assigns:
            exported = [one for one in block.sets if one.exported]
            taken = all(_is_taken(draft, one, meeting) for one in exported)
            stays = bool(block.assigned & needed) or not taken or (acts and bool(exported))
        else:
            stays = not (block.only_tells and block.uses & meeting)
        if stays:
            kept.append(block)
            needed |= block.uses
            acts = acts or not block.is_inert
    return kept[::-1]


def _meeting(draft: Draft, blocks: Iterable[Block], launch: Launch | None) -> frozenset[str]:
    """The variables that are there for the rendezvous alone, and those that they are made of."""
    found = {*_MEETING, *_RANKS} if _meets(draft) else set()
    for option in launch.launcher.given if launch and launch.launcher else ():
        if option.name in _RENDEZVOUS and option.value_word is not None:
            found |= {*option.value_word.variables} & draft.script.assigned
    for block in reversed([block for block in blocks if block.only_sets]):
        if block.assigned & found:
            found |= block.uses & draft.script.assigned
    return frozenset(found)


def _meets(draft: Draft) -> bool:
    return draft.job.get("mode") == "ddp"


def _is_taken(draft: Draft, one: Assignment, meeting: frozenset[str]) -> bool:
    """Whether an exported variable is said otherwise in the job."""
    if one.name in meeting or (_meets(draft) and one.name in _RANKS):
        return True
    return _literal(draft, one) is not None


def _literal(draft: Draft, one: Assignment) -> str | None:
    """The value of an exported variable that a job's env can hold."""
    if one.by not in ("export", "") or one.items is not None or _ORDERED.search(one.name):
        return None
    if one.word is None:  # export NAME, of a variable that was set before
        return None
    value = draft.script.body.value(one.word)
    try:
        EnvName.parse(one.name)
    except ValueError:
        return None
    return value


def _take_variables(draft: Draft, block: Block, meeting: frozenset[str]) -> None:
    """What becomes of a block that only sets variables, or tells of those that are replaced."""
    if not block.only_sets:
        draft.add(block.lines, "dropped", "it tells of the meeting point, which is the script's own")
    for one in block.sets if block.only_sets else ():
        if one.name in meeting or (one.exported and one.name in _RANKS):
            draft.add(block.lines, "dropped", f"{one.name}: the script has its own")
        elif one.exported:
            _export(draft, block, one.name, _literal(draft, one) or "")
        elif any(use.name == one.name for use in draft.script.body.uses):
            draft.add(block.lines, "understood", f"{one.name}: where it was used")
        else:
            draft.add(block.lines, "dropped", f"{one.name}: neither used nor exported")


def _export(draft: Draft, block: Block, name: str, value: str) -> None:
    """A variable of the job; the interfaces of the cluster are the profile's."""
    gloo = name == "GLOO_SOCKET_IFNAME" and any(one in value for one in "^= ")
    if name in _NETWORK and value and _meets(draft) and not gloo:
        draft.profile.setdefault("network", {})[_NETWORK[name]] = value
        draft.add(block.lines, "understood", f"network.{_NETWORK[name]}: {value}")
    elif block.first in draft.secrets:
        draft.env[name] = None
        draft.add(block.lines, "mended", f"env.{name}: a secret is not copied: export it where you submit")
    else:
        draft.env[name] = value
        draft.add(block.lines, "understood", f"env.{name}: {value}")


def _keep(draft: Draft, block: Block) -> None:
    """Its lines as they stand, in the profile's setup."""
    lines = dict(zip(block.lines, block.text.split("\n"), strict=True))
    if {"PYTHONPATH", "PYTHONHOME"} & block.assigned and draft.profile.get("runtime", "host") != "host":
        draft.add(
            block.lines, "lost", "PYTHONPATH is unset before the runtime starts: set it in the job's env"
        )
        return
    for number, text in lines.items():
        rest = text.lstrip("\t")
        line = "    " * (len(text) - len(rest)) + rest
        if any(ord(char) < 32 or ord(char) == 127 for char in line):
            draft.add((number,), "lost", "a tab or another control character: a profile can't hold the line")
        else:
            draft.setup.append(line)
            draft.add((number,), "kept", "setup, as it stands")
