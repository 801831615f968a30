"""Rules for the options of srun and the arguments of torchrun that start a training: SB040 to SB042.

Sources: srun(1) of Slurm 22.05 to 26.05. tests/rules/test_starts.py compares the rules with the real srun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.finding import Place
from sbatchgen.base.quoting import counted
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.jobs.judge.job_check import JudgedJob
from sbatchgen.jobs.modes import AGENTS
from sbatchgen.jobs.resolved.resolved_job import GPU_CPUS, ResolvedJob

RULES: Rules[JudgedJob] = Rules(source="docs/reference/job.md")

# The words that srun accepts in --cpu-bind and --gpu-bind.
CPU_BIND = frozenset(
    """
    none no q quiet v verbose rank rank_ldom sockets socket cores core threads thread ldoms ldom one_thread
    map_cpu mask_cpu map_ldom mask_ldom
    """.split()  # noqa: SIM905
)
GPU_BIND = frozenset(("none", "closest", "single", "per_task", "map_gpu", "mask_gpu"))
# A number in a list such as map_cpu:0,1: "0", "0x3" or "0*4". srun ignores text after the digits.
_NUMBER = re.compile(r"(?:0x)?[0-9a-f]+(?:[*:].*)?")
_FLAGS_WITH_VALUE = ("overlap", "pty", "x11")  # flags of srun that may have a value, such as --x11=all
# Options with which srun does not start the training, each with the reason.
_BREAKING_OPTIONS = {
    "multi-prog": "srun would take the training's program for a file of programs",
    **dict.fromkeys(("jobid", "no-allocate"), "the training starts in the job's own allocation"),
    **dict.fromkeys(("test-only", "help", "usage", "version"), "srun would start nothing"),
}
# Options of torchrun that sbatchgen sets, or with which torchrun does not start the trainer.
_RESERVED_OPTIONS = ("nnodes", "nproc-per-node", "node-rank", "module", "no-python", "run-path", "help")


@RULES.add("SB040", "error", "an option of the step that srun refuses or that breaks the job")
def _step_options(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    if not resolved.step:
        return
    if not resolved.uses_slurm:
        what = f"step is for srun, and profile '{resolved.profile.name}' has no Slurm"
        yield Hit(job.at(f"step.{next(iter(resolved.step))}"), what, "remove step")
        return
    from sbatchgen.check.executables.program import PROGRAMS  # slow to load; few jobs have options of srun

    srun, plugins = PROGRAMS["srun"], _plugin_options(resolved)
    for name, value in resolved.step.items():
        at = job.at(f"step.{name}")
        if name not in srun.values | srun.flags | plugins.keys():
            yield _unknown_option(job, name)
        elif value == "false":
            continue
        elif why := _BREAKING_OPTIONS.get(name) or _why_broken(resolved, name, value):
            yield Hit(at, f"--{name}={value}: {why}".replace("=true:", ":"), f"remove {name}")
        else:
            needs_value = name in srun.values - srun.optional_values or plugins.get(name, False)
            yield from _value_faults(job, name, value, needs_value=needs_value)


def _value_faults(job: JudgedJob, name: str, value: str, *, needs_value: bool) -> Iterator[Hit]:
    """Yield a hit if an option of srun has a wrong value; "true" stands for an option without a value."""
    from sbatchgen.check.executables.program import PROGRAMS

    at = job.at(f"step.{name}")
    if name in PROGRAMS["srun"].flags and name not in _FLAGS_WITH_VALUE and value != "true":
        yield Hit(at, f"--{name} takes no value, but has '{value}'", f"write {name}: true")
    elif needs_value and value in ("true", ""):
        yield Hit(at, f"--{name} needs a value: srun would take the next word for it", "give it one")
    elif name == "cpu-bind" and value == GPU_CPUS:
        yield from _gpu_cpu_faults(job, at)
    elif name in ("cpu-bind", "gpu-bind") and (what := _binding_fault(name, value)):
        yield Hit(at, what, f"see --{name} in srun(1)")


@RULES.add("SB041", "warning", "tasks that see only some of the GPUs")
def _binding(job: JudgedJob) -> Iterator[Hit]:
    resolved, bound = job.resolved, job.resolved.step.get("gpu-bind", "false").lower()
    if resolved.launcher != "srun" or resolved.gpus_per_node < 2 or resolved.gpu_visibility == "task":
        return
    if not {"none", "false"} & {*bound.split(",")}:
        what = f"with --gpu-bind={bound} a task sees only some GPUs, but rank N of a node uses GPU N"
        yield Hit(job.at("step.gpu-bind"), what, "add gpu_visibility: task")


@RULES.add("SB042", "error", "an argument of torchrun that can't work")
def _launcher_args(job: JudgedJob) -> Iterator[Hit]:
    resolved, at = job.resolved, job.at("launcher_args")
    if not resolved.launcher_args:
        return
    if resolved.launcher not in AGENTS:
        which = f"launcher '{resolved.launcher}'" if resolved.launcher else f"mode '{resolved.mode.name}'"
        yield Hit(at, f"launcher_args are for torchrun: {which} ignores them", "remove them", "warning")
        return
    from sbatchgen.check.executables.program import PROGRAMS

    torchrun = PROGRAMS["torchrun"]
    allowed = {"nnodes"} if resolved.launcher == "ft_launcher" else set()  # --nnodes=6:8 allows spare nodes
    is_value = False  # whether `arg` is the value of the option before it
    for arg in resolved.launcher_args:
        option, equals, _ = arg.partition("=")
        name = option.lstrip("-").replace("_", "-")
        name = torchrun.name_of_letter.get(name, name) if not arg.startswith("--") else name
        if not arg.startswith("-") and not is_value:
            what = f"torchrun would take '{arg}' for the program that it starts"
            yield Hit(at, what, "give the trainer's arguments in args")
        elif arg.startswith("-") and name in {*_RESERVED_OPTIONS} - allowed:
            yield Hit(at, f"sbatchgen sets torchrun's {option} itself", f"remove {option}")
        is_value = arg.startswith("-") and not equals and name in torchrun.values


def _gpu_cpu_faults(job: JudgedJob, at: Place) -> Iterator[Hit]:
    """Yield a hit if `cpu-bind: gpu_cpus` can't bind the job's tasks to the CPUs of their GPUs."""
    resolved = job.resolved
    if resolved.launcher != "srun" or not resolved.gpus_per_node:
        return
    if not resolved.partition.gpu_cpus:
        what = f"partition '{resolved.partition_name}' has no gpu_cpus, so tasks can't be bound to them"
        yield Hit(at, what, "write gpu_cpus into the partition, or remove cpu-bind", "warning")
    elif not resolved.binds_to_gpu_cpus:
        gpus_on_node = len(resolved.partition.gpu_cpus)
        what = f"the job has {resolved.gpus_per_node} of {gpus_on_node} GPUs of a node: its tasks are "
        what += "not bound to the CPUs of their GPUs, which Slurm may not have given it"
        yield Hit(at, what, "ask for all GPUs of the node", "info")


def _plugin_options(resolved: ResolvedJob) -> dict[str, bool]:
    """Return the options that plugins add to srun, each with whether it needs a value."""
    from sbatchgen.check.sbatch.option_table import HasArgument
    from sbatchgen.check.script.known_options import PYXIS, known_plugins, plugin_specs

    specs = (*PYXIS, *known_plugins(), *plugin_specs(resolved.profile.plugin_options or ()))
    return {spec.name: spec.argument is HasArgument.REQUIRED for spec in specs}


def _unknown_option(job: JudgedJob, name: str) -> Hit:
    """Return the hit for an option that srun lacks: a mistyped option, or perhaps an option of a plugin."""
    from sbatchgen.base.errors import nearest
    from sbatchgen.check.executables.program import PROGRAMS

    near = nearest(name.replace("_", "-"), sorted(PROGRAMS["srun"].values | PROGRAMS["srun"].flags), 0.8)
    what, at = f"srun has no option --{name}", job.at(f"step.{name}")
    if near:
        return Hit(at, what, f"did you mean '{near}'?")
    return Hit(at, what, f"if a plugin adds it, write plugin_options: [{name}] in the profile", "warning")


def _why_broken(resolved: ResolvedJob, name: str, value: str) -> str:
    """Return why an option of srun with this value breaks the start of the training; "" if it does not."""
    tasks = resolved.nproc_per_node if resolved.launcher == "srun" else 1
    numbers = {"nodes": resolved.nodes, "ntasks-per-node": tasks, "ntasks": resolved.nodes * tasks}
    if name in numbers and value != str(numbers[name]):
        return f"the training starts {counted(tasks, 'task')} on each of {counted(resolved.nodes, 'node')}"
    if name == "export" and "ALL" not in value.upper().split(","):
        return "the training would not get the variables that the script sets; write ALL,NAME=VALUE"
    lines = [line for line in resolved.runtime.command(resolved, (), ()) if line.startswith("--")]
    words = (word.partition("=")[0] for line in lines for word in line.split())
    return f"runtime '{resolved.runtime.name}' sets it" if f"--{name}" in words else ""


def _binding_fault(name: str, value: str) -> str:
    """Return why srun refuses a word of --cpu-bind or --gpu-bind; "" for a word that srun takes."""
    if name == "gpu-bind":
        value, known_words = re.sub(r"^verbose,", "", value, flags=re.IGNORECASE), GPU_BIND
    else:
        known_words = CPU_BIND
    has_list = False  # whether the word before `item` takes a list of numbers, such as map_cpu:0,1
    for item in value.lower().split(","):
        if has_list and _NUMBER.fullmatch(item):
            continue
        word, _, numbers = item.replace("=", ":", 1).partition(":")
        has_list = word.startswith(("map_", "mask_"))
        if word not in known_words:
            return f"srun has no --{name}={word}"
        if not numbers and (has_list or word in ("single", "per_task")):
            return f"--{name}={word} needs numbers, as {word}:1"
        if has_list and not _NUMBER.fullmatch(numbers):
            return f"'{numbers}' of --{name}={word} is not a number"
    return ""
