"""The rehearsal of a job: its script runs in a sandbox, and this machine plays all nodes."""

import contextlib
import json
import marshal
import math
import os
import site
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from sbatchgen.base.errors import FitError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine import child, search_path
from sbatchgen.base.machine.temporary import temporary_folder
from sbatchgen.base.quoting import words
from sbatchgen.check.executables.program import programs
from sbatchgen.check.sbatch.values import read_signal
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import Request
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runs.folder_check import filled_path
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.jobs.slurm.client import submit_environment
from sbatchgen.lab.plan.batch_job import JOB_ID, Grant, grant_of
from sbatchgen.lab.plan.stand_ins import facts_of_steps
from sbatchgen.lab.plan.visible_folders import ShownFolders, VisibleFolders, visible_folders
from sbatchgen.lab.rehearsal.added_folders import added_folders
from sbatchgen.lab.rehearsal.controller import PlayedJob
from sbatchgen.lab.sandbox.box import PLACE, Box, BoxLimits, Ended, run

MOST_PROCESSES = 4  # processes for each CPU of this machine; more processes take minutes to start
KILL_WAIT = 30  # seconds between SIGTERM and SIGKILL, as Slurm's KillWait
_PACKAGE = Path(__file__).parents[3]  # the folder that this package is in
_BIN = f"{PLACE}/bin"
_GPU_DEVICES = ("nvidiactl", "nvidia-uvm", "kfd", *(f"nvidia{number}" for number in range(16)))
_SCONTROL = """#!/bin/bash
case "$1 $2" in
    "requeue "*) touch {place}/requeued ;;
    "show hostname"*) printf '%s\\n' {nodes} ;;
esac
"""
_SQUEUE = """#!/bin/bash
[[ " $* " != *" --steps "* ]] || for step in {place}/steps/*; do echo "{job}.${{step##*/}} $(<"$step")"; done
"""
# The children of a step's srun are its tasks, each in a session of its own.
_SCANCEL = """#!/bin/bash
[[ $1 == --signal=* ]] || exit 0
for step in "${@:2}"; do
    for task in $(<"/proc/${step##*.}/task/${step##*.}/children"); do kill -s "${1#*=}" -- "-$task"; done
done
"""


@frozen(kw_only=True)
class Rehearsal:
    """The facts that a rehearsal found."""

    resolved: ResolvedJob  # the job as it was rehearsed
    starts: tuple[Mapping[str, Any], ...]  # the report of each start, from controller.py
    processes: int  # the number of processes of the training
    unproven: tuple[tuple[str, str], ...]  # parts that a rehearsal can't show, with the reasons
    seconds: float  # the seconds that the rehearsal took
    memory: int  # the largest number of bytes that all processes together had in memory
    limit: str  # the limit that ended the job: "time", "memory" or "disk"; "" if no limit did
    disk: int  # the number of bytes that the run folder may have
    failure: str  # the errors of the controller; "" if it did not fail
    hidden: str = ""  # the folder of the job, if the sandbox hides it as the user's home


@frozen(kw_only=True)
class _Play:
    """A job that this machine plays: its script, its resources, and the user who submits it."""

    resolved: ResolvedJob
    job: JobScript  # the script of the job
    grant: Grant  # the resources of the job
    batch: Mapping[str, str]  # the environment of the batch script
    folder: Path  # the folder of the submission
    home: str
    user: str

    @property
    def run_dir(self) -> str:
        """The run folder of the job."""
        return os.path.join(self.folder, self.resolved.run_dir.filled(self.batch))  # noqa: PTH118 - an absolute path wins


def rehearse(
    request: Request,
    environment: Mapping[str, str],
    folder: Path,
    *,
    seconds: float,
    patience: float,
    network: bool,
    see: Sequence[str] = (),
    tell: Callable[[str], None],
) -> Rehearsal:
    """Run a job that is submitted from `folder`: to its time limit, a requeue, scancel and its end.

    Each start may take `seconds` until its first training steps, and the last start until the end. A trainer
    that prints no steps runs for `patience` seconds. The job may read the folders that it names and the
    folders in `see`. With `network` it has the machine's network. `tell` gets a text about the job's access.
    Raises NoSandboxError if this machine allows no sandbox.
    """
    resolved, unproven = _all_on_this_machine(request.resolved, folder, environment)
    play = _play(request._replace(resolved=resolved), environment, folder)
    copies = ExitStack()  # removes the copies of the folders at its end
    visible = _visible_folders(play, see, copies)
    tell(_access([*visible.by_user, *visible.by_script, *see], play.run_dir, network=network))
    with copies, _run_folder() as (writes, room):
        played = _played_job(play, seconds=seconds, patience=patience)
        limits = _limits(room, seconds=seconds)
        box = _box(play, played, writes, limits, network=network)
        ended, not_shown = _run(visible, play, box)
    is_hidden = _is_hidden(visible, folder, see)
    unproven += [("home folder", "the job starts in it, and does not see it: --see . shows it")] * is_hidden
    unproven += [(path, f"not shown: {why}") for path, why in sorted(not_shown.items())]
    return Rehearsal(
        resolved=resolved,
        starts=_starts(ended),
        processes=processes_of(resolved),
        unproven=(*unproven, *_cluster_parts(resolved, network=network)),
        seconds=ended.seconds,
        memory=ended.memory,
        limit="time" if ended.limit == "machine" else ended.limit,  # a rehearsal sets the seconds itself
        disk=room,
        failure=ended.files.get("err", "").strip(),
        hidden=str(folder) * is_hidden,
    )


def _play(request: Request, environment: Mapping[str, str], folder: Path) -> _Play:
    """Return the job that this machine plays, on nodes that do not exist."""
    resolved = request.resolved
    job = JobScript(file="job.slurm", text=render_request(request), profile=resolved.profile)
    user = environment.get("USER", "user")
    grant = grant_of(job, user=user, uid=os.getuid(), gid=os.getgid())
    grant = replace(grant, gpus=(resolved.gpus_per_node,) * len(grant.nodes))
    exported, _ = submit_environment(environment)
    replaced = {
        "PATH": f"{_BIN}:{exported.get('PATH', os.defpath)}",
        "SLURM_SUBMIT_DIR": str(folder),
        "USER": user,
        "TMPDIR": "/tmp",  # noqa: S108 - of the sandbox
    }
    number = str(JOB_ID + os.getpid() % 9000)  # scripts make a port of the job id; other users may do so too
    variables = {name: number if value == str(JOB_ID) else value for name, value in grant.environment.items()}
    return _Play(
        resolved=resolved,
        job=job,
        grant=grant,
        batch={**exported, **variables, **replaced},
        folder=folder,
        home=exported.get("HOME", ""),
        user=user,
    )


def _visible_folders(play: _Play, see: Sequence[str], cleanup: ExitStack) -> VisibleFolders:
    """Return the folders that the job sees: its folder, `see`, this package, its Python and added folders."""
    folder, pythons = str(play.folder), [*_python_folders(play.resolved)]
    visible = visible_folders(
        play.job.text,
        folder,
        [folder],
        cleanup,
        home=play.home,
        user=play.user,
        unchecked=(*pythons, *see, "/sys"),
    )
    added = [path for place in pythons for path in added_folders(Path(place))]
    return visible.with_paths(path for path in added if not Path(path).is_relative_to(_PACKAGE))


def _limits(room: int, *, seconds: float) -> BoxLimits:
    """Return the limits of all starts together; `room`: the bytes that the run folder may have."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    limits = BoxLimits(seconds=5 * (seconds + KILL_WAIT) + 300, memory=memory, processes=4096, disk=room)
    return limits._replace(cpu=math.inf, idle=math.inf, address_space=0, file=0)


def _box(play: _Play, played: PlayedJob, writes: int, limits: BoxLimits, *, network: bool) -> Box:
    """Return the sandbox; `writes`: the descriptor of the folder that replaces the run folder."""
    resolved, grant = play.resolved, play.grant
    data = [os.path.join(play.folder, resolved.data.filled(play.batch))] * ("fake" in resolved.args)  # noqa: PTH118
    hosts = f"127.0.0.1 localhost {' '.join(grant.nodes)}\n::1 localhost\n"
    return Box(
        hostname=grant.nodes[0],
        home=play.home,
        folder=str(play.folder),
        files={**dict.fromkeys(data), **_files(play, played)},
        over={"/etc/hosts": (hosts.encode(), 0o644)},
        writable={play.run_dir: writes},
        devices=_gpus(),
        network="machine" if network else "loopback",
        trusts=True,
        limits=limits,
    )


def _run(visible: VisibleFolders, play: _Play, box: Box) -> tuple[Ended, Mapping[str, str]]:
    """Let the controller play Slurm in the sandbox.

    Returns the end of the controller, and the folders that the job could not see, with the reasons.
    """
    argv = child.python_module("sbatchgen.lab.rehearsal.controller", f"{PLACE}/play.json")

    def start(shown: ShownFolders) -> tuple[Ended, Mapping[str, str]]:
        return run(argv, play.batch, shown.in_box(box)), shown.not_shown

    return visible.run(start)


def _is_hidden(visible: VisibleFolders, folder: Path, see: Sequence[str]) -> bool:
    """Return whether the job starts in the user's home folder, which the sandbox hides."""
    return os.path.realpath(folder) in visible.homes and not any(
        folder.resolve().is_relative_to(Path(folder, place).resolve()) for place in see
    )


def _starts(ended: Ended) -> tuple[Mapping[str, Any], ...]:
    """Return the controller's report of each start."""
    starts = []
    for line in ended.files.get("out", "").splitlines():  # the trainer may print more lines
        with contextlib.suppress(ValueError):
            starts += [json.loads(line)] if line.startswith("{") else []
    return tuple(starts)


@contextlib.contextmanager
def _run_folder() -> Iterator[tuple[int, int]]:
    """Make the folder that the job writes; yield its descriptor, and the number of bytes that it may hold.

    The folder is in a folder that no other user can enter, and that the job does not see. So no other user
    reaches its files, even if the job changes its mode. The bytes allow several checkpoints, each as large
    as the training in memory.
    """
    with temporary_folder("sbatchgen-rehearsal-") as outside:
        inside = outside / "run"
        inside.mkdir(mode=0o700)
        number = os.open(inside, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        about, memory = os.statvfs(inside), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        try:
            yield number, min(about.f_bavail * about.f_frsize // 2, 4 * memory)
        finally:
            os.close(number)


def _access(folders: Sequence[str], run_dir: str, *, network: bool) -> str:
    """Return a text about the folders that the job reads and writes, and about its network."""
    reads = f"reads {', '.join(folders)}" if folders else "reads no folder of yours"
    reach = "has this machine's network" if network else "has no network (--network gives it one)"
    return (
        f"the job runs in a sandbox on this machine. It {reads} and programs, not the rest of your home"
        f" (--see FOLDER shows more). It writes a copy of {run_dir} that is thrown away, and {reach}"
    )


def _python_folders(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the folders of the Python that runs the job, and of this package."""
    yield from (sys.prefix, str(_PACKAGE))
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()
    for path in resolved.software.values():
        folder = Path(str(path))
        if folder.is_absolute() and any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta")):
            yield str(folder)


def processes_of(resolved: ResolvedJob) -> int:
    """Return how many processes train together."""
    main = resolved.main
    return main.nodes * main.nproc_per_node if main.mode.several_processes else 1


def computes_memory(resolved: ResolvedJob) -> bool:
    """Return whether the GPU memory can be computed: for the bundled trainer with a GPU for each process."""
    return resolved.is_bundled and resolved.gpus_per_node > 0 and not resolved.mode.replicates


def refuse_unfit(resolved: ResolvedJob) -> None:
    """Raise FitError for a job that needs no Slurm, or has too many processes for this machine."""
    if not resolved.slurm:
        what = f"profile '{resolved.profile.name}' has no Slurm: its jobs run here anyway"
        raise FitError.of(what, fix="submit the job itself")
    processes, limit = processes_of(resolved), MOST_PROCESSES * (os.cpu_count() or 1)
    if processes > limit:
        has = f"this machine has {os.cpu_count()} CPUs"
        what = f"the job has {processes} processes, and {has}: at most {limit}"
        raise FitError.of(what, fix="rehearse a smaller one: --nodes 2 --gpus-per-node 1")


def _all_on_this_machine(
    resolved: ResolvedJob, folder: Path, environment: Mapping[str, str]
) -> tuple[ResolvedJob, list[tuple[str, str]]]:
    """Return the job and its programs without things that this machine lacks, and the unproven parts."""
    played, unproven = _on_this_machine(resolved, folder, environment)
    programs = []
    for program in resolved.programs:
        job, more = _on_this_machine(program.job, folder, environment)
        programs.append(replace(program, job=job))
        unproven += [row for row in more if row not in unproven]
    return replace(played, programs=tuple(programs)), unproven


def _on_this_machine(
    resolved: ResolvedJob, folder: Path, environment: Mapping[str, str]
) -> tuple[ResolvedJob, list[tuple[str, str]]]:
    """Return a job without things that this machine lacks, and the parts that stay unproven, with reasons."""
    unproven, args = [], list(resolved.args)
    is_login_node = bool(search_path.find("sbatch", environment))
    missing = resolved.runtime.missing(resolved, partial(filled_path, folder=folder, environment=environment))
    if resolved.runtime.is_container or any(missing):
        unproven.append((resolved.runtime.name, f"this command's Python runs in its place: {sys.executable}"))
        resolved = replace(resolved, runtime=RUNTIMES["host"], software={})
    if resolved.is_bundled:
        args += ["--log-every", "1"]
        if not _gpus():
            args += ["--device", "cpu"]
        data = filled_path(resolved.data, folder, environment)
        if not is_login_node and not (data and data.is_dir()):
            args += ["--dataset", "fake", "--fake-samples", str(16 * _batch_size(resolved)), "--epochs", "2"]
            unproven.append(("data", f"{resolved.data} is not on this machine: 2 epochs of random images"))
    return replace(resolved, args=tuple(args)), unproven


def _gpus() -> list[str]:
    return [name for name in _GPU_DEVICES if Path("/dev", name).exists()]


def _batch_size(resolved: ResolvedJob) -> int:
    """Return the number of samples in a training step, from the flags of the bundled trainer."""
    words = [word for arg in resolved.args for word in arg.split("=", 1)]
    processes = processes_of(resolved)
    for flag, times in (("--batch-size", 1), ("--batch-size-per-gpu", processes)):
        if flag in words[:-1] and (value := words[words.index(flag) + 1]).isdecimal():
            return int(value) * times
    return 64


def _cluster_parts(resolved: ResolvedJob, *, network: bool) -> list[tuple[str, str]]:
    """Return the parts of the job that only the cluster can show, with the reasons."""
    rows = []
    if resolved.gpus_per_node and not _gpus():
        rows.append(("GPUs", "this machine has none: the training runs on CPUs"))
    if computes_memory(resolved):
        rows.append(("GPU memory", "computed from the tensors, with what CUDA and cuDNN took on one H200"))
    if resolved.nodes > 1:
        rows.append(("nodes", f"this machine plays all {resolved.nodes}: no network between them is used"))
    if resolved.settings.modules:
        rows.append(("modules", f"module commands do nothing here: {' '.join(resolved.settings.modules)}"))
    if not network:
        rows.append(("network", "the job has none here: --network gives it this machine's"))
    return rows


def _played_job(play: _Play, *, seconds: float, patience: float) -> PlayedJob:
    """Return the job in the form that the controller reads."""
    resolved, job = play.resolved, play.job
    asked = read_signal(job.option("signal") or "")
    return PlayedJob(
        script=f"{PLACE}/job.slurm",
        folder=str(play.folder / (job.option("chdir") or "")),
        environment=dict(play.batch),
        run_dir=play.run_dir,
        checkpoint=(resolved.checkpoint or "").rpartition("/")[2],
        metrics=resolved.metrics or "",
        signal=asked.number if asked else 0,
        lead=asked.seconds if asked else 0,
        to_batch=bool(asked and "B" in asked.flags),
        kill_wait=KILL_WAIT,
        steps=3,
        limit_s=int(asked_s) if (asked_s := job.resources.time) else 24 * 3600,
        seconds=seconds,
        patience=seconds if resolved.is_bundled else patience,
        processes=processes_of(resolved) if computes_memory(resolved) else 0,
    )


def _files(play: _Play, played: PlayedJob) -> dict[str, tuple[bytes, int]]:
    """Return the files of the sandbox: the script, stand-ins for Slurm's commands, and facts of the job."""
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
    srun = words((*child.python_module("sbatchgen.lab.rehearsal.tasks"),))
    facts = facts_of_steps(play.job, play.grant) | {"knows_cpus": False}  # this machine may have fewer CPUs
    scontrol = _SCONTROL.format(place=PLACE, nodes=" ".join(play.grant.nodes))
    files = {
        "srun": f'#!/bin/sh\nexec {srun} "$@"\n'.encode(),
        "scontrol": scontrol.encode(),
        "hostname": b'#!/bin/sh\necho "$SLURMD_NODENAME"\n',
        **dict.fromkeys(("python3", "python"), python),
        **dict.fromkeys(sorted(programs("silent")), b"#!/bin/sh\n"),  # Slurm's would wait for a controller
        "squeue": _SQUEUE.format(place=PLACE, job=JOB_ID).encode(),
        "scancel": _SCANCEL.encode(),
    }
    return {
        **{f"{_BIN}/{name}": (text, 0o755) for name, text in files.items()},
        f"{PLACE}/job.slurm": (play.job.text.encode(), 0o755),
        f"{PLACE}/job": (marshal.dumps(facts), 0o644),
        f"{PLACE}/play.json": (json.dumps(asdict(played)).encode(), 0o644),
    }
