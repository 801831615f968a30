"""What a script starts in a dry run, as two scripts can have it in common, and in what two starts differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.documented.facts import MEETING
from sbatchgen.base.errors import SbatchgenError
from sbatchgen.check.executables.command_options import program_name, read_options
from sbatchgen.check.executables.launcher import LauncherCall
from sbatchgen.check.executables.program import LAUNCHERS, MODULES, PROGRAMS, commands
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.lab.plan.dry_run import DryRunInputs
from sbatchgen.lab.plan.planning import plan_of
from sbatchgen.lab.plan.started import StartedProcess, Step

HOME = {"HOME": "/home/user", "USER": "user"}
# Beside how processes meet: what Slurm, a shell and a runtime say, and masks of GPUs, which `gpus` counts.
_OF_PLACE = re.compile(
    r"(?:SLURM|SRUN|PET|BASH|APPTAINER|SINGULARITY|ENROOT|PYXIS)_.*|MST_ADDR|\w*RANK|PS1|HOME"
    r"|\w+_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK|CONDA_\w+"
)
_RENDEZVOUS = re.compile(r"(?:rdzv-.*|master-.*|nnodes|nproc-per-node|node-rank|standalone|module|m|use-env)")
_CONTAINERS = commands("container")
_MOUNTS = ("bind", "volume", "container-mounts")


@dataclass(frozen=True, kw_only=True)
class Start:
    """A process of a training."""

    node: str
    rank: int
    ranks: int  # that it is, or starts; 0 if the launcher's options do not say it
    gpus: int  # that the processes of its node see together
    tasks: int  # of its step, of which a dry run shows the first and the last if there are many
    launcher: tuple[str, ...]  # its name and options, but for how the processes meet
    program: tuple[str, ...]  # the trainer and its arguments
    words: tuple[str, ...]  # what follows the launcher's name
    env: Mapping[str, str]  # what the script has set for it
    container: str  # the image
    mounts: tuple[str, ...]  # SRC:DST


def starts(
    script: JobScript, profile: Profile, folder: Path, files: Iterable[str] = ()
) -> list[Start] | None:
    """Return what the last step of a script starts, by rank; None if a dry run does not come so far.

    The files are there, and empty.
    """
    given = DryRunInputs(arguments=(), variables={}, files=dict.fromkeys(files, b""))
    try:
        done = plan_of(replace(script, profile=profile), HOME, folder, given)
    except SbatchgenError:
        return None
    steps = [step for step in done.steps if step.processes and not step.refusal]
    if not steps:
        return None
    step, nodes = steps[-1], len(done.grant.nodes)
    seen: dict[str, set[int]] = {}
    for process in step.processes:
        seen.setdefault(process.node, set()).update(process.gpus)
    return [
        replace(_start(process, step, nodes, str(folder)), gpus=len(seen[process.node]))
        for process in step.processes
    ]


def pairs(documented: Sequence[Start], made: Sequence[Start]) -> list[tuple[Start, Start]] | None:
    """Return the starts that correspond; None if there is another number of them.

    Of a step with many tasks a dry run shows some: those that it shows of both scripts are compared.
    """
    if len(documented) != len(made) and documented[0].tasks == made[0].tasks > min(
        len(documented), len(made)
    ):
        both = {start.rank for start in documented} & {start.rank for start in made}
        documented, made = ([start for start in each if start.rank in both] for each in (documented, made))
    return [*zip(documented, made, strict=True)] if len(documented) == len(made) else None


def differences(documented: Start, made: Start) -> Iterator[str]:
    """Yield what of a documented start is not in the other one; that has more variables and mounts."""
    for part in ("node", "rank", "tasks", "gpus", "launcher", "program", "container"):
        old, new = getattr(documented, part), getattr(made, part)
        if old != new:
            yield f"{part}: {old}, rendered {new}"
    if documented.ranks != made.ranks and 0 not in (documented.ranks, made.ranks):
        yield f"ranks: {documented.ranks}, rendered {made.ranks}"
    for name, value in documented.env.items():
        if made.env.get(name) != value:
            yield f"environment: {name}={value}, rendered {made.env.get(name)}"
    yield from (f"mounts: {mount}" for mount in documented.mounts if mount not in made.mounts)


def _start(process: StartedProcess, step: Step, nodes: int, folder: str) -> Start:
    argv = _without_task(process.argv)
    call = LauncherCall.from_argv(argv, job_nodes=nodes)
    launcher, program = _parts(argv)
    names = {
        name.removeprefix("APPTAINERENV_").removeprefix("SINGULARITYENV_"): value
        for name, value in process.env.items()
    }
    env = {
        name: _plain(value, folder)
        for name, value in names.items()
        if value is not None and not (MEETING.fullmatch(name) or _OF_PLACE.fullmatch(name))
    }
    return Start(
        node=process.node,
        rank=process.rank,
        ranks=call.workers if call else 1,
        gpus=0,
        tasks=step.tasks,
        launcher=launcher,
        words=tuple(process.argv[2 if launcher[:1] == ("accelerate launch",) else 1 :]),
        program=tuple(_plain(word, folder) for word in program),
        env=env,
        container=_plain(process.container, folder),
        mounts=tuple(_plain(mount, folder) for mount in _mounts(step.command)),
    )


def _plain(text: str, folder: str) -> str:
    """Return text as it is in any folder: that of submission is ".", those in /tmp have their own names."""
    text = re.sub(r"/tmp/(?!\.)[^/:]+", "/tmp/...", text.replace(folder, "."))  # noqa: S108
    return re.sub(r"^\./", "", text)


def _without_task(argv: Sequence[str]) -> list[str]:
    """Return the words of a process that a rendered task starts, as it starts them."""
    own = any(word.endswith("/training/task.py") for word in argv)
    return ["python3", *argv[argv.index("--") + 1 :]] if own else list(argv)


def _parts(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the launcher with its options, and the trainer with its arguments."""
    words = list(argv)
    name, at = program_name(words, PROGRAMS)
    if name == "python":
        given, at = read_options(words, at, PROGRAMS[name])
        module = next((value or "" for option, value, *_ in given if option == "m"), "")
        words = [*([module] if module else []), *words[at:]]
        name = (
            "torchrun"
            if words[:1] and words[0].endswith("/training/torchrun.py")
            else MODULES.get(module, "")
        )
        at = 1
        if name not in LAUNCHERS:
            return (), (*(["-m"] if module else []), *words)
    elif name not in LAUNCHERS:
        return (), tuple(words)
    options, at = read_options(words, at, PROGRAMS[name])
    words = words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:]
    kept = sorted(f"--{option}={value}" for option, value, *_ in options if not _RENDEZVOUS.fullmatch(option))
    return (name, *kept), (
        *(["-m"] if any(option in ("m", "module") for option, *_ in options) else []),
        *words,
    )


def _mounts(command: Sequence[str]) -> Iterator[str]:
    """Yield the mounts that a step asks srun and the command of a container for."""
    for at, word in enumerate(command):
        if word != "srun" and word.rpartition("/")[2] not in _CONTAINERS:
            continue
        name, start = program_name(command[at:], PROGRAMS)
        given = read_options(command[at:], start, PROGRAMS[name])[0] if name in PROGRAMS else []
        for option, value, *_ in given:
            if option in _MOUNTS and value:
                yield from (mount if ":" in mount else f"{mount}:{mount}" for mount in value.split(","))
