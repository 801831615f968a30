"""The lines before the training, converted into modules, a runtime and env; the other lines stay as setup."""

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field

from sbatchgen.base.keys import record
from sbatchgen.check.bash import Assignment, Command
from sbatchgen.check.script.launches import Launch
from sbatchgen.jobs.inputs.start_settings import NETWORK_VARIABLES
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.lab.adopt.block import Block
from sbatchgen.lab.adopt.draft import Draft, is_variable
from sbatchgen.lab.adopt.shape import RANK_VARIABLES

_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "MST_ADDR")
_RENDEZVOUS_OPTIONS = ("rdzv-id", "rdzv-endpoint", "master-addr", "master-port", "node-rank", "rdzv-conf")
_IP_ADDRESS = re.compile(r"\bhostname (?:-i|--ip-address)\b")
_MODULE_RESETS = ("purge", "reset")  # commands of module that unload all modules
_SCRIPT_VARIABLES = frozenset(
    ("OMP_NUM_THREADS", "PYTHONNOUSERSITE", "PYTHONUNBUFFERED")
)  # variables that the rendered script sets
_NETWORK = {key.upper(): key for key in NETWORK_VARIABLES}
# Variables whose line can't move: modules and conda read them or set them.
_ORDERED_NAMES = re.compile(r"(?<!^PYTHON)PATH$|^(?:CONDA|MAMBA|LMOD|MODULE)")
# The function `die` of a rendered script. The setup of the script can't define the function again.
_DIE = re.compile(r'die *\(\) *\{\s*echo "error: \$\*" >&2[;\n]\s*exit 1;?\s*\}')
# The variables that an activation of conda or of a virtual environment sets or unsets.
_ACTIVATION_VARIABLES = {
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "VIRTUAL_ENV",
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
}


@record
class _Activation:
    """The activation of an environment: the keys of its runtime, and the blocks that give these keys."""

    name: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


def follow_cd(draft: Draft, before: Iterable[Block]) -> None:
    """Set `draft.folder`, to which the launch's relative paths are relative."""
    if "chdir" in draft.options:
        draft.folder = str(draft.options["chdir"])
    for command in (command for block in before for command in block.commands):
        if command.name not in ("cd", "pushd", "popd"):
            continue
        plain = command.name == "cd" and command.context.top and len(command.words) == 2
        target = draft.path(command.words[1], draft.script.body) if plain else None
        draft.folder = target if target and target.startswith(("/", "${")) else None


def adopt_preamble(draft: Draft, before: Sequence[Block], launch: Launch) -> None:
    """Convert the blocks before the launch into keys; keep the other blocks as setup."""
    draft.rendezvous = _rendezvous_names(draft, before, launch)
    values = _values(draft, before)
    rest = [*before] if draft.setup else _without_modules(draft, before)
    activation = _Activation() if "runtime" in draft.profile else _activated(draft, rest)
    free = [block for block in rest if block not in activation.blocks]
    staying = _staying(draft, free, values)
    if activation.blocks and not _may_move(activation, staying):
        activation, free = _Activation(), rest
        staying = _staying(draft, free, values)
    if activation.blocks:
        name, keys = activation.name, dict(sorted(activation.keys.items(), reverse=True))
        draft.profile |= {"runtime": name, "runtimes": {name: keys}}
        for block in activation.blocks:
            draft.add(block.lines, "understood", f"runtime {name}: {keys.get('env') or keys.get('path')}")
    used = {use.name for use in draft.body.uses}
    acts = max((block.start for block in staying if not block.is_inert), default=0)
    for block in free:
        if block in staying:
            _keep(draft, block, values, alone=block.start > acts)
        elif block.only_sets:
            _take(draft, block, values, used)
        else:
            draft.add(block.lines, "dropped", "it only prints the old master address")


def _rendezvous_names(draft: Draft, before: Sequence[Block], launch: Launch) -> frozenset[str]:
    """Return the names of variables for the master address and ranks, and of variables in their values."""
    assigned = draft.script.assigned
    names = {*_RENDEZVOUS_VARIABLES, *RANK_VARIABLES} if draft.job.get("mode") == "ddp" else set()
    for option in launch.launcher.given if launch.launcher else ():
        if option.name in _RENDEZVOUS_OPTIONS and option.value_word is not None:
            names |= {*option.value_word.variables} & assigned
    for block in reversed(before):
        if block.only_sets and block.assigned & names:
            names |= block.uses & assigned
    return frozenset(names)


def _values(draft: Draft, before: Sequence[Block]) -> dict[str, str]:
    """Return the variables that `env` can hold: exported under no condition, with a literal value."""
    values: dict[str, str | None] = {}
    for assignment in (each for block in before for each in block.sets if not each.prefix):
        known = values.get(assignment.name, "") is not None
        values[assignment.name] = _literal(draft, assignment) if known else None
    return {name: value for name, value in values.items() if value is not None}


def _literal(draft: Draft, assignment: Assignment) -> str | None:
    """Return the literal value of an exported variable; None if `env` of a job can't hold the variable."""
    name, word = assignment.name, assignment.word
    plain = assignment.exported and assignment.by in ("export", "") and assignment.context.top
    if not plain or assignment.append or assignment.items is not None or assignment.subscript:
        return None
    if word is None or not is_variable(name) or _ORDERED_NAMES.search(name):  # export NAME has no word
        return None
    value = draft.body.value(word)
    return draft.known(word, draft.body) if value is None and name == "OMP_NUM_THREADS" else value


def _staying(draft: Draft, blocks: Sequence[Block], values: Mapping[str, str]) -> set[Block]:
    """Return the blocks that must stay shell: blocks that act, and blocks that set variables for them."""
    staying: set[Block] = set()
    needed = set(draft.needed)
    acts = False  # whether a kept program follows, which may read any variable
    for block in reversed(blocks):
        if block.sets_only(draft.rendezvous):
            stays = bool(block.assigned & needed)
        elif block.only_assigns:
            exported = {assignment.name for assignment in block.sets if assignment.exported}
            taken = exported <= values.keys() | draft.rendezvous
            stays = bool(block.assigned & needed) or not taken or (acts and bool(exported))
        else:
            stays = not (block.only_prints and block.uses & draft.rendezvous)
        if stays:
            staying.add(block)
            needed |= block.uses | {each.name for each in block.sets if each.word is None}
            acts = acts or not block.is_inert
    return staying


def _take(draft: Draft, block: Block, values: Mapping[str, str], used: Container[str]) -> None:
    for name, exported in ((assignment.name, assignment.exported) for assignment in block.sets):
        if name in draft.rendezvous:
            if _IP_ADDRESS.search(block.text):
                draft.profile["master_addr"] = "hostname -i"
            draft.add(block.lines, "dropped", "the new script has its own master address and ranks", name)
        elif exported:
            _export(draft, block, name, values.get(name, ""))
        elif name in used:
            draft.add(block.lines, "understood", "its value is written where it is used", name)
        else:
            draft.add(block.lines, "dropped", "neither used nor exported", name)


def _export(draft: Draft, block: Block, name: str, value: str) -> None:
    """Put a variable into `env` of the job, or an interface of the cluster into the profile."""
    gloo = name == "GLOO_SOCKET_IFNAME" and any(char in value for char in "^= ")
    if name in _NETWORK and value and draft.job.get("mode") == "ddp" and not gloo:
        draft.profile.setdefault("network", {})[_NETWORK[name]] = value
        draft.add(block.lines, "understood", "network", name)
    elif block.first in draft.secrets:
        draft.env[name] = None
        draft.add(block.lines, "mended", "a secret is not copied, export it where you submit", name)
    elif "${" in value:  # the value has a literal ${, which `env` would expand
        _keep(draft, block, {}, alone=True)
    else:
        draft.env[name] = value
        draft.add(block.lines, "understood", "env", name)


def _keep(draft: Draft, block: Block, values: Mapping[str, str], *, alone: bool) -> None:
    """Keep a block's lines unchanged in the setup of the profile; `alone`: no acting block follows."""
    if _DIE.fullmatch(block.text.strip()):
        draft.add(block.lines, "understood", "the new script has the same function", "die")
        return
    runtime = draft.profile.get("runtime", "host")
    if {"PYTHONPATH", "PYTHONHOME"} & block.assigned and runtime != "host":
        if RUNTIMES[runtime].is_container or not alone:
            what = "PYTHONPATH is unset before the runtime starts: set it in the job's env"
            draft.add(block.lines, "lost", what)
        else:
            lines = draft.shell(block, "in setup_after_runtime")
            draft.profile["setup_after_runtime"] = [*lines, *draft.profile.get("setup_after_runtime", ())]
        return
    for name in _SCRIPT_VARIABLES & block.assigned:  # the job exports the value of these lines again
        draft.env[name] = values.get(name, f"${{{name}}}")
    draft.setup += draft.shell(block, "in setup")


def _without_modules(draft: Draft, before: Sequence[Block]) -> list[Block]:
    """Convert blocks that load modules, and return the other blocks.

    All blocks are returned if an earlier block may change which modules are found.
    """
    loads = {block: names for block in before if (names := _loads(block)) is not None}
    if not loads:
        return list(before)
    earlier = before[: before.index([*loads][-1])]
    others = [block for block in earlier if block not in loads and not block.sets_only(draft.rendezvous)]
    if any(not block.is_inert or block.changes_modules for block in others):
        return list(before)
    start, loaded = "keep", list[str]()
    for block, names in loads.items():
        draft.add(block.lines, "understood", "modules", *names)
        for name in names:
            if name in _MODULE_RESETS:
                start = name
                loaded = [entry for entry in loaded if name == "purge" and entry.startswith("use ")]
            else:
                loaded.append(name)
    draft.profile |= {"modules": loaded, "module_start": start}
    return [block for block in before if block not in loads]


def _loads(block: Block) -> list[str] | None:
    """Return the modules that a block loads, with `use PATH`, purge and reset.

    None for a block that does anything else.
    """
    loaded: list[str] = []
    for command in block.commands:
        words = [word.value for word in command.words]
        is_plain = command.context.top and not command.redirects and None not in words
        if command.name not in ("module", "ml") or not is_plain:
            return None
        verb, *rest = [str(word) for word in words[1:]] or [""]
        if command.name == "ml" and verb not in (*_MODULE_RESETS, "load", "use"):
            verb, rest = "load", [verb, *rest]
        if verb not in (*_MODULE_RESETS, "load", "add", "use") or any(name[:1] in ("-", "") for name in rest):
            return None
        if bool(rest) is (verb in _MODULE_RESETS):
            return None
        loaded += (
            [verb] if verb in _MODULE_RESETS else [f"use {name}" for name in rest] if verb == "use" else rest
        )
    return loaded if block.commands and not block.sets else None


def _activated(draft: Draft, blocks: Iterable[Block]) -> _Activation:
    """Return the environment that blocks activate; an empty activation if its way is not known."""
    runtime = _Activation()
    for block in blocks:
        outer = list(block.outer)
        steps = [_activation(draft, command) for command in outer]
        if not outer or block.sets or any(step is None for step in steps):
            continue
        for name, keys in (step for step in steps if step):
            if runtime.name and (runtime.name != name or runtime.keys.keys() & keys.keys()):
                return _Activation()  # two environments: all lines are kept unchanged
            runtime.name = name
            runtime.keys |= keys
        runtime.blocks.append(block)
    ready = "env" in runtime.keys or "path" in runtime.keys
    return runtime if ready else _Activation()


def _activation(draft: Draft, command: Command) -> tuple[str, dict[str, str]] | None:
    """Return the runtime and the keys that a command of an activation gives; None for another command."""
    if not command.context.top or command.redirects or command.prefix or command.pipe:
        return None
    for name, runtime in RUNTIMES.items():
        keys = runtime.activation(command, draft)
        if keys is not None:
            return name, keys
    return None


def _may_move(runtime: _Activation, staying: Collection[Block]) -> bool:
    first = min(block.start for block in runtime.blocks)
    if any(_ACTIVATION_VARIABLES & (block.uses | block.assigned) for block in staying if block.start > first):
        return False
    if any({"PYTHONPATH", "PYTHONHOME"} & block.assigned for block in staying):
        return False
    return all(block.is_inert for block in staying if block.start > first)
