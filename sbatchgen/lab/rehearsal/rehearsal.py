"""Rehearses a job on this machine: its script runs in a sandbox, and this machine plays all nodes.

In the sandbox, `controller.py` plays Slurm, and `tasks.py` plays srun. `outcome.py` judges their reports.
"""

import contextlib
import itertools
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
from typing import NamedTuple

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
from sbatchgen.lab.rehearsal.controller import PlayedJob, StartReport
from sbatchgen.lab.sandbox.box import PLAN_FOLDER, Box, BoxLimits, RunResult, run

MOST_PROCESSES_PER_CPU = 4  # more processes on each CPU of this machine take minutes to start
STEPS = 3  # training steps after which the controller ends a start, as Slurm would
KILL_WAIT = 30  # seconds between SIGTERM and SIGKILL, as with Slurm's KillWait
_PACKAGE_PARENT = Path(__file__).parents[3]  # the folder in which this package is
_BIN = f"{PLAN_FOLDER}/bin"
_GPU_DEVICES = ("nvidiactl", "nvidia-uvm", "kfd", *(f"nvidia{number}" for number in range(16)))
# Stand-ins for commands of Slurm. {place} is the folder of the controller's files in the sandbox.
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


class UnprovenPart(NamedTuple):
    """A part of a job that a rehearsal does not prove, such as the GPUs on a machine without GPUs."""

    name: str
    reason: str  # why the part was not rehearsed


@frozen(kw_only=True)
class Rehearsal:
    """The results of a rehearsal."""

    resolved: ResolvedJob  # the job as it was rehearsed
    starts: tuple[StartReport, ...]  # a report of each start
    processes: int  # the number of processes of the training
    unproven: tuple[UnprovenPart, ...]  # parts of the job that were not rehearsed
    seconds: float  # the seconds that the rehearsal took
    memory: int  # the largest number of bytes that all processes together had in memory
    limit: str  # the limit that ended the job, such as "time", "memory" or "disk"; "" if no limit ended it
    disk_bytes: int  # the number of bytes that the run folder was allowed to have
    failure: str  # the errors of the controller; "" if it did not fail
    # the folder in which the job starts, if the sandbox hides it because it is a home folder; else ""
    hidden_folder: str = ""


@frozen(kw_only=True)
class _RehearsedJob:
    """The job of a rehearsal: its script, its resources, and the user who submits it."""

    resolved: ResolvedJob
    script: JobScript
    grant: Grant  # the resources of the job
    batch_environment: Mapping[str, str]  # the environment of the batch script
    folder: Path  # the folder of the submission
    home: str
    user: str

    @property
    def run_dir(self) -> str:
        """The path of the job's run folder, over which a folder of the rehearsal is mounted."""
        return os.path.join(self.folder, self.resolved.run_dir.filled(self.batch_environment))  # noqa: PTH118 - an absolute path wins


def rehearse(
    request: Request,
    environment: Mapping[str, str],
    folder: Path,
    *,
    seconds: float,
    stop_after: float,
    has_network: bool,
    extra_folders: Sequence[str] = (),
    tell: Callable[[str], None],
) -> Rehearsal:
    """Start a job from `folder` four times, and return the results.

    The starts end in different ways: at the time limit, by a requeue, by scancel, and when the training is
    done. Each start may take `seconds` until its first training steps, and the last start until its end. A
    trainer that prints no steps runs for `stop_after` seconds. The job may read the folders that it names and
    the `extra_folders`, and has the machine's network if `has_network`. `tell` gets a text for the user about
    this access. Raises NoSandboxError if this machine allows no sandbox.
    """
    resolved, unproven = _adapted_with_programs(request.resolved, folder, environment)
    job = _rehearsed_job(request._replace(resolved=resolved), environment, folder)
    cleanup = ExitStack()  # removes the copies of the folders
    visible = _visible_folders(job, extra_folders, cleanup)
    readable = [*visible.chosen_folders, *visible.named_folders, *extra_folders]
    tell(_access_text(readable, job.run_dir, has_network=has_network))
    with cleanup, _run_folder() as (run_folder, disk_bytes):
        played_job = _played_job(job, seconds=seconds, stop_after=stop_after)
        limits = _limits(disk_bytes, seconds=seconds)
        box = _box(job, played_job, run_folder, limits, has_network=has_network)
        result, not_shown = _run(visible, job, box)
    is_hidden = _is_hidden(visible, folder, extra_folders)
    if is_hidden:
        reason = "the job starts in it, and does not see it: --see . shows it"
        unproven.append(UnprovenPart("home folder", reason))
    unproven += [UnprovenPart(path, f"not shown: {reason}") for path, reason in sorted(not_shown.items())]
    return Rehearsal(
        resolved=resolved,
        starts=_start_reports(result),
        processes=processes_of(resolved),
        unproven=(*unproven, *_parts_of_cluster(resolved, has_network=has_network)),
        seconds=result.seconds,
        memory=result.peak_bytes,
        # "machine" says that the machine is too slow for the time limit. Here the user chose the limit.
        limit="time" if result.limit == "machine" else result.limit,
        disk_bytes=disk_bytes,
        failure=result.files.get("err", "").strip(),
        hidden_folder=str(folder) if is_hidden else "",
    )


def _rehearsed_job(request: Request, environment: Mapping[str, str], folder: Path) -> _RehearsedJob:
    """Return the job of a rehearsal, on nodes that do not exist."""
    resolved = request.resolved
    script = JobScript(file="job.slurm", text=render_request(request), profile=resolved.profile)
    user = environment.get("USER", "user")
    grant = grant_of(script, user=user, uid=os.getuid(), gid=os.getgid())
    grant = replace(grant, gpus=(resolved.gpus_per_node,) * len(grant.nodes))
    exported, _ = submit_environment(environment)
    replaced_variables = {
        "PATH": f"{_BIN}:{exported.get('PATH', os.defpath)}",
        "SLURM_SUBMIT_DIR": str(folder),
        "USER": user,
        "TMPDIR": "/tmp",  # noqa: S108 - of the sandbox
    }
    # Scripts make a port from the job id, so rehearsals that run at the same time need different ids.
    job_id = str(JOB_ID + os.getpid() % 9000)
    variables = {name: job_id if value == str(JOB_ID) else value for name, value in grant.environment.items()}
    return _RehearsedJob(
        resolved=resolved,
        script=script,
        grant=grant,
        batch_environment={**exported, **variables, **replaced_variables},
        folder=folder,
        home=exported.get("HOME", ""),
        user=user,
    )


def _visible_folders(job: _RehearsedJob, extra_folders: Sequence[str], cleanup: ExitStack) -> VisibleFolders:
    """Return the folders that the job sees: its own, `extra_folders`, this package, and all of its Python."""
    folder, python_folders = str(job.folder), [*_python_folders(job.resolved)]
    visible = visible_folders(
        job.script.text,
        folder,
        [folder],
        cleanup,
        home=job.home,
        user=job.user,
        always_shown=(*python_folders, *extra_folders, "/sys"),
    )
    added_paths = [path for python in python_folders for path in added_folders(Path(python))]
    return visible.with_paths(path for path in added_paths if not Path(path).is_relative_to(_PACKAGE_PARENT))


def _limits(disk_bytes: int, *, seconds: float) -> BoxLimits:
    """Return the limits of all starts together; `disk_bytes`: the bytes that the run folder may have."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    all_starts_s = 5 * (seconds + KILL_WAIT) + 300  # four starts, and one that computes the GPU memory
    limits = BoxLimits(seconds=all_starts_s, memory=memory, processes=4096, disk=disk_bytes)
    return limits._replace(cpu=math.inf, idle=math.inf, address_space=0, file=0)


def _box(
    job: _RehearsedJob, played_job: PlayedJob, run_folder: int, limits: BoxLimits, *, has_network: bool
) -> Box:
    """Return the sandbox; `run_folder` is the descriptor of a folder that replaces the run folder."""
    resolved, grant = job.resolved, job.grant
    data_folders = []
    # With fake data the trainer makes its own images, but the script wants to find the folder.
    if _last_value(resolved.args, "--dataset") == "fake":
        data_folders = [os.path.join(job.folder, resolved.data.filled(job.batch_environment))]  # noqa: PTH118
    hosts = f"127.0.0.1 localhost {' '.join(grant.nodes)}\n::1 localhost\n"
    return Box(
        hostname=grant.nodes[0],
        home=job.home,
        folder=str(job.folder),
        files={**dict.fromkeys(data_folders), **_sandbox_files(job, played_job)},
        covering_files={"/etc/hosts": (hosts.encode(), 0o644)},
        writable_folders={job.run_dir: run_folder},
        devices=_gpu_devices(),
        network="machine" if has_network else "loopback",
        is_trusted=True,
        limits=limits,
    )


def _run(visible: VisibleFolders, job: _RehearsedJob, box: Box) -> tuple[RunResult, Mapping[str, str]]:
    """Let the controller play Slurm in the sandbox.

    Returns the controller's result, and the folders that the job could not see, with the reasons.
    """
    argv = child.python_module("sbatchgen.lab.rehearsal.controller", f"{PLAN_FOLDER}/play.json")

    def run_controller(shown: ShownFolders) -> tuple[RunResult, Mapping[str, str]]:
        return run(argv, job.batch_environment, shown.in_box(box)), shown.not_shown

    return visible.run(run_controller)


def _is_hidden(visible: VisibleFolders, folder: Path, extra_folders: Sequence[str]) -> bool:
    """Return whether the sandbox hides the folder in which the job starts, because it is a home folder."""
    is_home = os.path.realpath(folder) in visible.homes
    extra_paths = [Path(folder, extra_folder).resolve() for extra_folder in extra_folders]
    return is_home and not any(folder.resolve().is_relative_to(path) for path in extra_paths)


def _start_reports(result: RunResult) -> tuple[StartReport, ...]:
    """Return the controller's report of each start, which is a line of its output."""
    reports: list[StartReport] = []
    for line in result.files.get("out", "").splitlines():
        if line.startswith("{"):  # otherwise it is a line of the trainer
            with contextlib.suppress(ValueError):
                reports.append(json.loads(line))
    return tuple(reports)


@contextlib.contextmanager
def _run_folder() -> Iterator[tuple[int, int]]:
    """Make the folder that the job writes; yield its descriptor, and the number of bytes that it may hold.

    A private folder around it, which the job does not see, keeps out other users even if the job changes the
    folder's mode. The bytes suffice for several checkpoints that are as large as the memory of the training.
    """
    with temporary_folder("sbatchgen-rehearsal-") as private_folder:
        folder = private_folder / "run"
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        disk, memory = os.statvfs(folder), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        try:
            yield descriptor, min(disk.f_bavail * disk.f_frsize // 2, 4 * memory)
        finally:
            os.close(descriptor)


def _access_text(folders: Sequence[str], run_dir: str, *, has_network: bool) -> str:
    """Return a text about the folders that the job may read and write, and about its network."""
    reading = f"reads {', '.join(folders)}" if folders else "reads no folder of yours"
    networking = "has this machine's network" if has_network else "has no network (--network gives it one)"
    return (
        f"the job runs in a sandbox on this machine. It {reading} and programs, not the rest of your home"
        f" (--see FOLDER shows more). It writes a copy of {run_dir} that is thrown away, and {networking}"
    )


def _python_folders(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the folders of the Python that runs the job, and of this package."""
    yield from (sys.prefix, str(_PACKAGE_PARENT))
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()
    for value in resolved.software.values():
        folder = Path(str(value))
        if folder.is_absolute() and any((folder / name).exists() for name in ("pyvenv.cfg", "conda-meta")):
            yield str(folder)


def processes_of(resolved: ResolvedJob) -> int:
    """Return how many processes of a job train together."""
    main = resolved.main
    return main.nodes * main.nproc_per_node if main.mode.several_processes else 1


def can_compute_memory(resolved: ResolvedJob) -> bool:
    """Return whether the GPU memory can be computed: it needs the bundled trainer with a GPU per process."""
    return resolved.is_bundled and resolved.gpus_per_node > 0 and not resolved.mode.replicates


def refuse_unfit(resolved: ResolvedJob) -> None:
    """Raise FitError for a job whose profile has no Slurm, or with too many processes for this machine."""
    if not resolved.uses_slurm:
        what = f"profile '{resolved.profile.name}' has no Slurm: its jobs run here anyway"
        raise FitError.of(what, fix="submit the job itself")
    processes, cpus = processes_of(resolved), os.cpu_count() or 1
    if processes > (limit := MOST_PROCESSES_PER_CPU * cpus):
        what = f"the job has {processes} processes, and this machine has {cpus} CPUs: at most {limit}"
        raise FitError.of(what, fix="rehearse a smaller job: --nodes 2 --gpus-per-node 1")


def _adapted_with_programs(
    resolved: ResolvedJob, folder: Path, environment: Mapping[str, str]
) -> tuple[ResolvedJob, list[UnprovenPart]]:
    """Return the job and its programs as this machine can run them, and the parts that stay unproven."""
    adapted, unproven = _adapted_to_machine(resolved, folder, environment)
    adapted_programs = []
    for program in resolved.programs:
        adapted_program, unproven_parts = _adapted_to_machine(program.job, folder, environment)
        adapted_programs.append(replace(program, job=adapted_program))
        unproven += [part for part in unproven_parts if part not in unproven]
    return replace(adapted, programs=tuple(adapted_programs)), unproven


def _adapted_to_machine(
    resolved: ResolvedJob, folder: Path, environment: Mapping[str, str]
) -> tuple[ResolvedJob, list[UnprovenPart]]:
    """Return a job as this machine can run it, and the parts that stay unproven."""
    unproven, args = [], list(resolved.args)
    # A login node has the folders of the job: if the data are missing there, the rehearsal must show it.
    is_login_node = bool(search_path.find("sbatch", environment))
    missing_files = resolved.runtime.missing_files(
        resolved, partial(filled_path, folder=folder, environment=environment)
    )
    if resolved.runtime.is_container or any(missing_files):
        reason = f"this command's Python runs in its place: {sys.executable}"
        unproven.append(UnprovenPart(resolved.runtime.name, reason))
        resolved = replace(resolved, runtime=RUNTIMES["host"], software={})
    if resolved.is_bundled:
        args += ["--log-every", "1"]
        if not _gpu_devices():
            args += ["--device", "cpu"]
        data = filled_path(resolved.data, folder, environment)
        if not is_login_node and not (data and data.is_dir()):
            args += ["--dataset", "fake", "--fake-samples", str(16 * _batch_size(resolved)), "--epochs", "2"]
            reason = f"{resolved.data} is not on this machine: 2 epochs of random images"
            unproven.append(UnprovenPart("data", reason))
    return replace(resolved, args=tuple(args)), unproven


def _gpu_devices() -> list[str]:
    """Return the names in /dev of this machine's GPUs and their drivers; [] without GPUs."""
    return [name for name in _GPU_DEVICES if Path("/dev", name).exists()]


def _batch_size(resolved: ResolvedJob) -> int:
    """Return the number of samples in a training step, from the flags of the bundled trainer."""
    processes = processes_of(resolved)
    for flag, factor in (("--batch-size", 1), ("--batch-size-per-gpu", processes)):
        if (value := _last_value(resolved.args, flag)).isdecimal():
            return int(value) * factor
    return 64  # the trainer's own default


def _last_value(args: Sequence[str], flag: str) -> str:
    """Return the last value of a flag, given as --flag VALUE or --flag=VALUE; "" without the flag."""
    values = [
        arg.partition("=")[2] or next_arg
        for arg, next_arg in itertools.pairwise((*args, ""))
        if arg == flag or arg.startswith(f"{flag}=")
    ]
    return values[-1] if values else ""


def _parts_of_cluster(resolved: ResolvedJob, *, has_network: bool) -> Iterator[UnprovenPart]:
    """Yield the parts of the job that only the cluster can show."""
    if resolved.gpus_per_node and not _gpu_devices():
        yield UnprovenPart("GPUs", "this machine has none: the training runs on CPUs")
    if can_compute_memory(resolved):
        reason = "computed from the tensors, with what CUDA and cuDNN took on one H200"
        yield UnprovenPart("GPU memory", reason)
    if resolved.nodes > 1:
        reason = f"this machine plays all {resolved.nodes}: no network between them is used"
        yield UnprovenPart("nodes", reason)
    if modules := resolved.settings.modules:
        yield UnprovenPart("modules", f"module commands do nothing here: {' '.join(modules)}")
    if not has_network:
        yield UnprovenPart("network", "the job has none here: --network gives it this machine's")


def _played_job(job: _RehearsedJob, *, seconds: float, stop_after: float) -> PlayedJob:
    """Return the job in the form that the controller reads."""
    resolved, script = job.resolved, job.script
    signal_option = read_signal(script.option("signal") or "")
    return PlayedJob(
        script=f"{PLAN_FOLDER}/job.slurm",
        folder=str(job.folder / (script.option("chdir") or "")),
        environment=dict(job.batch_environment),
        run_dir=job.run_dir,
        checkpoint=(resolved.checkpoint or "").rpartition("/")[2],
        metrics=resolved.metrics or "",
        signal=signal_option.number if signal_option else 0,
        signal_lead_s=signal_option.seconds if signal_option else 0,
        only_batch_gets_signal=bool(signal_option and "B" in signal_option.flags),
        kill_wait=KILL_WAIT,
        steps=STEPS,
        limit_s=int(time_s) if (time_s := script.resources.time) else 24 * 3600,
        seconds=seconds,
        stop_after=seconds if resolved.is_bundled else stop_after,
        processes=processes_of(resolved) if can_compute_memory(resolved) else 0,
    )


def _sandbox_files(job: _RehearsedJob, played_job: PlayedJob) -> dict[str, tuple[bytes, int]]:
    """Return the files of the sandbox: the script, stand-ins for Slurm's commands, and facts of the job."""
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
    srun = words((*child.python_module("sbatchgen.lab.rehearsal.tasks"),))
    # This machine may have fewer CPUs, so the CPUs do not limit the tasks of a step.
    facts = facts_of_steps(job.script, job.grant) | {"knows_cpus": False}
    scontrol = _SCONTROL.format(place=PLAN_FOLDER, nodes=" ".join(job.grant.nodes))
    stand_ins = {
        "srun": f'#!/bin/sh\nexec {srun} "$@"\n'.encode(),
        "scontrol": scontrol.encode(),
        "hostname": b'#!/bin/sh\necho "$SLURMD_NODENAME"\n',
        **dict.fromkeys(("python3", "python"), python),
        # These stand-ins do nothing. The programs themselves would wait for a controller of Slurm.
        **dict.fromkeys(sorted(programs("silent")), b"#!/bin/sh\n"),
        "squeue": _SQUEUE.format(place=PLAN_FOLDER, job=job.batch_environment["SLURM_JOB_ID"]).encode(),
        "scancel": _SCANCEL.encode(),
    }
    return {
        **{f"{_BIN}/{name}": (text, 0o755) for name, text in stand_ins.items()},
        f"{PLAN_FOLDER}/job.slurm": (job.script.text.encode(), 0o755),
        f"{PLAN_FOLDER}/job": (marshal.dumps(facts), 0o644),
        f"{PLAN_FOLDER}/play.json": (json.dumps(asdict(played_job)).encode(), 0o644),
    }
