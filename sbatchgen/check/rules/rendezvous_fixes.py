"""Fixes for launchers of several nodes that do not find each other, or whose nodes all have the same rank.

`rendezvous`, `process_counts` and the rules of dry runs in `sbatchgen.lab.started` share these fixes.
"""

from __future__ import annotations

from sbatchgen.base.finding import Edit
from sbatchgen.base.quoting import CODE, OR
from sbatchgen.check.bash.chain import Tool, ToolOption
from sbatchgen.check.executables.program import PROGRAMS
from sbatchgen.check.script.script import JobScript

RDZV_OPTIONS = "--rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
OWN_PORT = "$((20000 + SLURM_JOB_ID % 10000))"  # a port that few other jobs have
TORCH_LAUNCHERS = ("torchrun", "ft_launcher")  # launchers with the rendezvous of torch
_TORCHRUN = f"torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE {RDZV_OPTIONS} train.py"


def deepspeed_fix(step: str = "") -> str:
    """Return the fix for deepspeed on several nodes, which is torchrun in its place.

    `step` is the srun command that starts torchrun, with a blank at its end; "" if the script has an srun.
    """
    return (
        "start the program with torchrun, whose variables deepspeed's initialize() reads"
        f"{CODE}{step}{_TORCHRUN}{OR}write a --hostfile, and start deepspeed without srun"
    )


def missing_hosts_message(nodes: int) -> str:
    """Return the message about a deepspeed that runs on each of several nodes without a list of hosts."""
    return (
        f"without --hostfile deepspeed knows its own node only: each of the {nodes} nodes trains the same "
        "model alone"
    )


def same_rank_texts(launcher_name: str, nodes: int, same_rank: str) -> tuple[str, str]:
    """Return the message and the fix for a launcher that has the same rank on each of several nodes.

    `same_rank` is the option that gives the rank, such as node-rank=0. It is "" if the command has no such
    option, so that each node has the default rank, 0.
    """
    option = PROGRAMS[launcher_name].option_with_role("RANK")
    if launcher_name.startswith("accelerate"):  # older releases only know the option with an underscore
        option = option.replace("-", "_")
    fix = f"srun bash -c '{launcher_name} ... --{option}=$SLURM_NODEID ...', in single quotes"
    if launcher_name.startswith("accelerate"):
        what = f"without --{option} accelerate takes the rank of its own settings on all {nodes} nodes, or "
        what += "ends with a TypeError"
    else:
        what = f"without --{option} each of the {nodes} nodes has rank 0"
        fix = f"replace --master-addr and --master-port by these options{CODE}{RDZV_OPTIONS}{OR}{fix}"
    if same_rank:
        what = f"--{same_rank} gives all {nodes} nodes the same rank"
    awaited = "the others until the time limit" if same_rank[-2:] in ("", "=0") else "a node with rank 0"
    return f"{what}: they wait for {awaited}", fix


def rendezvous_edits(script: JobScript, launcher: Tool) -> tuple[Edit, ...]:
    """Return the edits that give torchrun the options of a c10d rendezvous, in place of a fixed rank.

    One edit replaces the first option of the old address and rank, and the others remove the rest. The result
    is () for other launchers, and if an edit is not safe.
    """
    host = launcher.option("rdzv-endpoint") or launcher.option("master-addr")
    if launcher.name not in TORCH_LAUNCHERS or not host or launcher.body.source is not script.body.source:
        return ()
    old_names = ("node-rank", "rdzv-backend", "rdzv-endpoint", "master-addr", "master-port")
    options = sorted(filter(None, map(launcher.option, old_names)), key=lambda option: option.word.at)
    if not all(_is_in_one_line(script, option) for option in options):
        return ()
    port = launcher.option("master-port") if host.name == "master-addr" else None
    address = _value_as_written(host)
    if host.name == "master-addr":
        address += f":{_value_as_written(port) if port else OWN_PORT}"
    first, *others = options
    return (
        _replacement(script, first, f"--rdzv-backend=c10d --rdzv-endpoint={address}"),
        *(_replacement(script, option, "") for option in others),
    )


def _is_in_one_line(script: JobScript, option: ToolOption) -> bool:
    """Return whether an option is in a single line of the script, so that an edit can replace it."""
    words = [option.word, option.value_word or option.word]
    is_in_script = all(word.source is script.body.source and word.text.strip() for word in words)
    lines = {line for word in words for line in (word.line, word.end_line)}
    return is_in_script and words[0].text.startswith("--") and len(lines) == 1


def _value_as_written(option: ToolOption) -> str:
    """Return the value of an option as written, with its quotes."""
    word = option.value_word
    return word.text if word and word is not option.word else option.word.text.partition("=")[2]


def _replacement(script: JobScript, option: ToolOption, text: str) -> Edit:
    """Return the edit that replaces an option and its value by `text`.

    With an empty text, the edit also removes the blank before the option.
    """
    start, end = option.word.column, (option.value_word or option.word).end_column
    line = script.lines[option.word.line - 1]
    if not text and line[start - 2 : start - 1] == " ":
        start -= 1
    return Edit(option.word.line, start, end, text)
