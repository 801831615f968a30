"""The conversion of the lines before the training into the keys `modules`, `runtime` and `env`.

Lines that can't be converted stay shell: they become the setup of the profile, unchanged. A line may only be
converted if the new script still runs the lines in an order with the same effect.
"""

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from sbatchgen.base.keys import record
from sbatchgen.check.bash import Assignment, Command
from sbatchgen.check.script.launches import Launch
from sbatchgen.jobs.inputs.start_settings import NETWORK_VARIABLES
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.lab.adopt.block import Block
from sbatchgen.lab.adopt.draft import Draft, can_be_in_env
from sbatchgen.lab.adopt.shape import RANK_VARIABLES

_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "MST_ADDR")
# The options of torchrun for the rendezvous. Variables in their values are also about the rendezvous.
_RENDEZVOUS_OPTIONS = ("rdzv-id", "rdzv-endpoint", "master-addr", "master-port", "node-rank", "rdzv-conf")
# A command for the IP address of the master. The profile then has `master_addr: hostname -i`.
_IP_ADDRESS = re.compile(r"\bhostname (?:-i|--ip-address)\b")
_MODULE_RESETS = ("purge", "reset")  # subcommands of `module` that unload all modules
# Variables that the rendered script sets.
_SCRIPT_VARIABLES = frozenset(("OMP_NUM_THREADS", "PYTHONNOUSERSITE", "PYTHONUNBUFFERED"))
# The profile's key for each variable of the network, such as NCCL_SOCKET_IFNAME.
_NETWORK_KEYS = {key.upper(): key for key in NETWORK_VARIABLES}
# Names of variables that modules and conda read or set, such as PATH and CONDA_ENVS_PATH, but not PYTHONPATH.
# Their assignments stay shell, because they must keep their order with the lines that load modules.
_ORDERED_NAMES = re.compile(r"(?<!^PYTHON)PATH$|^(?:CONDA|MAMBA|LMOD|MODULE)")
# A function `die` with the text that a rendered script also has. The setup must not define it a second time.
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

    runtime: str = ""  # the name of the runtime, such as "conda"; "" without an activation
    keys: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


def follow_cd(draft: Draft, before: Iterable[Block]) -> None:
    """Set `draft.folder`, the working folder of the launch, from --chdir and each `cd` before the launch.

    The folder is None after a command that can't be followed, such as `pushd` or a `cd` in a branch.
    """
    if "chdir" in draft.options:
        draft.folder = str(draft.options["chdir"])
    for block in before:
        for command in block.commands:
            if command.name not in ("cd", "pushd", "popd"):
                continue
            is_plain = command.name == "cd" and command.context.is_top_level and len(command.words) == 2
            target = draft.path(command.words[1], draft.script.body) if is_plain else None
            draft.folder = target if target and target.startswith(("/", "${")) else None


def adopt_preamble(draft: Draft, before: Sequence[Block], launch: Launch) -> None:
    """Convert the blocks before the launch into keys; keep blocks that can't be converted as setup."""
    draft.rendezvous_names = _rendezvous_names(draft, before, launch)
    env_values = _env_values(draft, before)
    # A rendered script loads modules before its setup. If the setup already has lines, such as `set -e`, the
    # modules of the old script come after these lines, so they stay shell.
    unconverted = [*before] if draft.setup else _without_modules(draft, before)
    activation = _Activation() if "runtime" in draft.profile else _find_activation(draft, unconverted)
    others = [block for block in unconverted if block not in activation.blocks]
    shell_blocks = _blocks_that_stay(draft, others, env_values)
    # The rendered script activates the environment after its setup, so the activation moves to a later place.
    if activation.blocks and not _may_move(activation, shell_blocks):
        activation, others = _Activation(), unconverted  # the activation also stays shell
        shell_blocks = _blocks_that_stay(draft, others, env_values)
    if activation.blocks:
        name = activation.runtime
        keys = dict(sorted(activation.keys.items(), reverse=True))  # the profile shows root before env
        draft.profile |= {"runtime": name, "runtimes": {name: keys}}
        for block in activation.blocks:
            draft.add(block.lines, "understood", f"runtime {name}: {keys.get('env') or keys.get('path')}")
    expanded_names = {use.name for use in draft.body.variable_uses}
    # The offset of the last block whose effect depends on its place before or after the activation.
    last_acting_start = max((block.start for block in shell_blocks if not block.is_inert), default=0)
    for block in others:
        if block in shell_blocks:
            _keep(draft, block, env_values, is_last=block.start > last_acting_start)
        elif block.only_assigns:
            _convert_assignments(draft, block, env_values, expanded_names)
        else:
            draft.add(block.lines, "dropped", "it only prints the old master address")


def _rendezvous_names(draft: Draft, before: Sequence[Block], launch: Launch) -> frozenset[str]:
    """Return the names of the script's variables for the master address and the ranks.

    The new script sets these variables itself. Variables from which the script computes them, such as a list
    of nodes, are also returned.
    """
    assigned = draft.script.assigned_names
    names = {*_RENDEZVOUS_VARIABLES, *RANK_VARIABLES} if draft.job.get("mode") == "ddp" else set()
    launcher_options = launch.launcher.uses if launch.launcher else ()
    for option in launcher_options:
        if option.name in _RENDEZVOUS_OPTIONS and option.value_word is not None:
            names |= {*option.value_word.variables} & assigned
    for block in reversed(before):
        if block.only_assigns and block.assigned_names & names:
            names |= block.used_names & assigned
    return frozenset(names)


def _env_values(draft: Draft, before: Sequence[Block]) -> dict[str, str]:
    """Return the values of the variables that `env` of the job can hold, by the variables' names.

    The script exports such a variable under no condition, and each value that it assigns is a literal string.
    """
    values: dict[str, str | None] = {}
    for block in before:
        for assignment in block.assignments:
            if assignment.is_prefix:  # NAME=VALUE COMMAND sets the variable only for this command
                continue
            # After a value that `env` can't hold, the variable stays None, whatever the script assigns later.
            is_literal_so_far = values.get(assignment.name, "") is not None
            values[assignment.name] = _env_value(draft, assignment) if is_literal_so_far else None
    return {name: value for name, value in values.items() if value is not None}


def _env_value(draft: Draft, assignment: Assignment) -> str | None:
    """Return the literal value of an exported variable; None if `env` of a job can't hold the variable."""
    name, word = assignment.name, assignment.word
    is_plain = (
        assignment.is_exported and assignment.setter in ("export", "") and assignment.context.is_top_level
    )
    if not is_plain or assignment.is_append or assignment.items is not None or assignment.subscript:
        return None
    if word is None or not can_be_in_env(name) or _ORDERED_NAMES.search(name):  # export NAME has no word
        return None
    value = draft.body.value(word)
    # The usual value of OMP_NUM_THREADS is $SLURM_CPUS_PER_TASK, which the directives give.
    return draft.known_text(word, draft.body) if value is None and name == "OMP_NUM_THREADS" else value


def _blocks_that_stay(draft: Draft, blocks: Sequence[Block], env_values: Mapping[str, str]) -> set[Block]:
    """Return the blocks that must stay shell.

    A block that acts must stay, for example `mkdir out`. A block that sets a variable must stay if a later
    block that stays uses the variable. So the blocks are read from the last to the first.
    """
    staying: set[Block] = set()
    needed_names = set(draft.needed_names)
    runs_program_later = False  # whether a later block runs a program, which may read any exported variable
    for block in reversed(blocks):
        if block.only_assigns_names(draft.rendezvous_names):
            stays = bool(block.assigned_names & needed_names)
        elif block.only_assigns_harmlessly:
            exported = {assignment.name for assignment in block.assignments if assignment.is_exported}
            is_convertible = exported <= env_values.keys() | draft.rendezvous_names
            is_used_later = bool(block.assigned_names & needed_names)
            may_be_read = runs_program_later and bool(exported)
            stays = is_used_later or may_be_read or not is_convertible
        else:
            prints_master_address = block.only_prints and block.used_names & draft.rendezvous_names
            stays = not prints_master_address
        if stays:
            staying.add(block)
            # An assignment without a word, such as `export NAME`, needs the variable's earlier value.
            needed_names |= block.used_names | {
                assignment.name for assignment in block.assignments if assignment.word is None
            }
            runs_program_later = runs_program_later or not block.is_inert
    return staying


def _convert_assignments(
    draft: Draft, block: Block, env_values: Mapping[str, str], expanded_names: Container[str]
) -> None:
    """Convert the assignments of a block into keys, or drop them.

    `expanded_names` are the variables whose values the script uses.
    """
    for assignment in block.assignments:
        name = assignment.name
        if name in draft.rendezvous_names:
            if _IP_ADDRESS.search(block.text):
                draft.profile["master_addr"] = "hostname -i"
            draft.add(block.lines, "dropped", "the new script has its own master address and ranks", name)
        elif assignment.is_exported:
            _convert_export(draft, block, name, env_values.get(name, ""))
        elif name in expanded_names:
            draft.add(block.lines, "understood", "its value is written where it is used", name)
        else:
            draft.add(block.lines, "dropped", "neither used nor exported", name)


def _convert_export(draft: Draft, block: Block, name: str, value: str) -> None:
    """Put a variable into `env` of the job, or the name of a network interface into the profile."""
    is_secret = block.first_line in draft.secrets
    if name in draft.launch_names and is_secret:
        draft.add(block.lines, "dropped", "the launch has its own value", name)
        return
    if name in draft.launch_names:  # in `env` this value would replace the value that the launch sets
        _keep(draft, block, {}, is_last=True)
        return
    # Only NCCL knows patterns such as ^docker, and the profile refuses them for gloo.
    is_gloo_pattern = name == "GLOO_SOCKET_IFNAME" and any(char in value for char in "^= ")
    if name in _NETWORK_KEYS and value and draft.job.get("mode") == "ddp" and not is_gloo_pattern:
        draft.profile.setdefault("network", {})[_NETWORK_KEYS[name]] = value
        draft.add(block.lines, "understood", "network", name)
    elif is_secret:
        draft.env[name] = None
        draft.add(block.lines, "mended", "a secret is not copied, export it where you submit", name)
    elif "${" in value:  # the value has a literal ${, which `env` would expand
        _keep(draft, block, {}, is_last=True)
    else:
        draft.env[name] = value
        draft.add(block.lines, "understood", "env", name)


def _keep(draft: Draft, block: Block, env_values: Mapping[str, str], *, is_last: bool) -> None:
    """Keep a block's lines unchanged in the profile's setup.

    `is_last` says that the lines may move after all other lines of the setup.
    """
    if _DIE.fullmatch(block.text.strip()):
        draft.add(block.lines, "understood", "the new script has the same function", "die")
        return
    runtime = draft.profile.get("runtime", "host")
    if {"PYTHONPATH", "PYTHONHOME"} & block.assigned_names and runtime != "host":
        if RUNTIMES[runtime].is_container or not is_last:
            # The rendered script unsets both variables before the runtime starts.
            reason = "PYTHONPATH is unset before the runtime starts: set it in the job's env"
            draft.add(block.lines, "lost", reason)
        else:
            lines = draft.keep_shell(block, "in setup_after_runtime")
            draft.profile["setup_after_runtime"] = [*lines, *draft.profile.get("setup_after_runtime", ())]
        return
    # Without a value in `env`, the rendered script would set the variable to a value of its own. ${NAME} is
    # the value that the setup gives the variable. A value of the launch stays.
    names_of_launch = draft.launch_names & draft.env.keys()
    for name in _SCRIPT_VARIABLES & block.assigned_names - names_of_launch:
        draft.env[name] = env_values.get(name, f"${{{name}}}")
    draft.setup += draft.keep_shell(block, "in setup")


def _without_modules(draft: Draft, before: Sequence[Block]) -> list[Block]:
    """Convert the blocks that load modules into keys of the profile, and return the other blocks.

    The new script loads its modules first. If another block before a module may change which modules are
    found, no block is converted, and all blocks are returned.
    """
    # By block: the modules that it loads. Other blocks are left out.
    modules_of = {block: names for block in before if (names := _loaded_modules(block)) is not None}
    if not modules_of:
        return list(before)
    last_load = [*modules_of][-1]
    for block in before[: before.index(last_load)]:
        is_converted = block in modules_of or block.only_assigns_names(draft.rendezvous_names)
        if not is_converted and (not block.is_inert or block.changes_modules):
            return list(before)
    module_start, modules = "keep", list[str]()  # the keys of the profile
    for block, names in modules_of.items():
        draft.add(block.lines, "understood", "modules", *names)
        for name in names:
            if name in _MODULE_RESETS:
                module_start = name
                # Modules before a reset have no effect. But `module purge` keeps the folders of `module use`.
                modules = [entry for entry in modules if name == "purge" and entry.startswith("use ")]
            else:
                modules.append(name)
    draft.profile |= {"modules": modules, "module_start": module_start}
    return [block for block in before if block not in modules_of]


def _loaded_modules(block: Block) -> list[str] | None:
    """Return the modules that a block loads, such as ["purge", "use /apps/modules", "cuda/12.4"], in order.

    Returns None for a block that does anything else.
    """
    modules: list[str] = []
    for command in block.commands:
        words = [word.value for word in command.words]
        is_plain = command.context.is_top_level and not command.redirects and None not in words
        if command.name not in ("module", "ml") or not is_plain:
            return None
        subcommand, *names = [str(word) for word in words[1:]] or [""]
        if command.name == "ml" and subcommand not in (*_MODULE_RESETS, "load", "use"):
            subcommand, names = "load", [subcommand, *names]  # `ml NAME` loads NAME
        has_option = any(name[:1] in ("-", "") for name in names)  # such as `module use -a PATH`
        if subcommand not in (*_MODULE_RESETS, "load", "add", "use") or has_option:
            return None
        takes_names = subcommand not in _MODULE_RESETS
        if takes_names != bool(names):  # `module load` without a name, or `module purge NAME`
            return None
        if subcommand in _MODULE_RESETS:
            modules.append(subcommand)
        elif subcommand == "use":
            modules += [f"use {name}" for name in names]
        else:
            modules += names
    return modules if block.commands and not block.assignments else None


def _find_activation(draft: Draft, blocks: Iterable[Block]) -> _Activation:
    """Return the activation of the environment that some blocks activate.

    The activation is empty if they activate no environment or two environments, or if the name and the path
    of the environment are not known.
    """
    activation = _Activation()
    for block in blocks:
        parts = [_activation_part(draft, command) for command in block.outer_commands]
        # A block that also does something else does not count as an activation.
        if not parts or block.assignments or any(part is None for part in parts):
            continue
        known_parts = [part for part in parts if part]
        for runtime, keys in known_parts:
            if activation.runtime and (activation.runtime != runtime or activation.keys.keys() & keys.keys()):
                return _Activation()  # two environments: all lines are kept unchanged
            activation.runtime = runtime
            activation.keys |= keys
        activation.blocks.append(block)
    is_complete = "env" in activation.keys or "path" in activation.keys
    return activation if is_complete else _Activation()


class _ActivationPart(NamedTuple):
    """A command of an activation, such as `conda activate NAME`: a runtime, and keys of the runtime."""

    runtime: str
    keys: dict[str, str]


def _activation_part(draft: Draft, command: Command) -> _ActivationPart | None:
    """Return the runtime and its keys that a command such as `conda activate NAME` gives; None for others."""
    if not command.context.is_top_level or command.redirects or command.prefix_assignments or command.pipe:
        return None
    for name, runtime in RUNTIMES.items():
        keys = runtime.facts_of_command(command, draft)
        if keys is not None:
            return _ActivationPart(name, keys)
    return None


def _may_move(activation: _Activation, shell_blocks: Collection[Block]) -> bool:
    """Return whether the rendered script may activate the environment after the blocks that stay shell.

    No block after the activation may depend on the environment, for example by starting its Python.
    """
    activation_start = min(block.start for block in activation.blocks)
    later_blocks = [block for block in shell_blocks if block.start > activation_start]
    if any(_ACTIVATION_VARIABLES & (block.used_names | block.assigned_names) for block in later_blocks):
        return False
    # With a runtime, the rendered script would unset these variables before the runtime starts.
    if any({"PYTHONPATH", "PYTHONHOME"} & block.assigned_names for block in shell_blocks):
        return False
    return all(block.is_inert for block in later_blocks)
