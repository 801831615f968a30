"""Plays Slurm in a rehearsal: starts, stops, requeues and cancels a job in the sandbox, with a report each.

To stop a job, Slurm sends SIGTERM to the batch shell and all tasks, and SIGKILL after KillWait. Source:
docs/design/slurm.md, "Signals".
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypedDict

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs.events import EVENTS, events
from sbatchgen.jobs.runs.metrics import line_events
from sbatchgen.jobs.runs.program_states import read_programs
from sbatchgen.lab.plan.step import PLAN_FOLDER
from sbatchgen.lab.rehearsal.tasks import MEMORY, STEPS

REQUEUED = Path(PLAN_FOLDER, "requeued")  # the stand-in for `scontrol requeue` makes this file
# The ways in which the controller ends a start of the job. With END, the job runs to its own end.
LIMIT, REQUEUE, CANCEL, END = "limit", "requeue", "cancel", "end"
_POLL_S = 0.1  # seconds between two checks of the job
_EXIT_S = 1.0  # seconds that a script has to end itself after `scontrol requeue`
_CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npz", ".pkl", ".distcp", ".tar")
# Files that the job script or the bundled trainer writes into a run folder, and that are not checkpoints.
_OTHER_FILES = ("stop", "again", "exit", "events.jsonl", "status.json", "config.json", "lock.json")
_MAX_FILES = 20_000  # files of a folder that are looked at to find a checkpoint
_MAX_SLOWDOWN = 4.0  # the largest factor by which a busy machine lengthens a wait
_MAX_LOG = 40_000  # characters of the log in the report of a start


@frozen(kw_only=True)
class PlayedJob:
    """The facts of a job that the controller reads from play.json."""

    script: str  # the file of the script
    folder: str  # the folder in which the job starts
    environment: Mapping[str, str]  # the environment of its batch script
    run_dir: str
    checkpoint: str  # a pattern for the names of checkpoints; "" without a pattern
    metrics: str  # a regular expression for the numbers in the log; "" if the log is not read
    signal: int  # the number of the signal of --signal; 0 without --signal
    signal_lead_s: int  # seconds between this signal and the time limit
    only_batch_gets_signal: bool  # whether this signal goes only to the batch shell, not to the tasks
    kill_wait: int  # seconds between SIGTERM and SIGKILL
    limit_s: int  # the time limit in seconds
    steps: int  # training steps after which Slurm ends a start
    seconds: float  # seconds that a start may take for these steps
    stop_after: float  # seconds that a trainer runs if it prints no steps
    processes: int  # processes that train on GPUs; 0 if the GPU memory can't be computed


class StartReport(TypedDict, total=False):
    """The report of a start of the job. The start that computes the GPU memory has only some of the keys."""

    ending: str  # "limit", "requeue", "cancel" or "end"; "memory" for the start that computes the GPU memory
    signal_lead_s: int  # seconds between the signal of --signal and the time limit
    is_ready: bool  # whether the job did its steps, or printed no steps for `stop_after` seconds
    trained_s: float  # seconds from the start until the job was ready or ended
    silent_before_stop_s: float  # seconds since the trainer last printed something, at the stop
    silent_at_end_s: float  # seconds since the trainer last printed something, at the end of the start
    events_before_stop: int  # the number of `events` before the stop
    stopped_at: float | None  # the time at which Slurm stopped the job; None if the job ended by itself
    stop_took_s: float | None  # seconds from the stop until the job ended or was killed
    was_killed: bool  # whether the job still ran at the end, and did not ask to be requeued
    was_requeued: bool  # whether the job asked to be requeued
    status: int  # the exit status
    events: list[dict[str, Any]]  # the events that the trainer reported
    log: str  # the end of the log
    programs: list[dict[str, Any]]  # the states of the programs of a job with several
    checkpoint: str  # the path of the newest checkpoint of this start; "" without one
    saved_at: float | None  # the time of this checkpoint
    memory: dict[str, Any] | None  # the answer of training/memory.py; None without an answer


def play(job: PlayedJob) -> Iterator[StartReport]:
    """Start the job once for each ending, and yield a report of each start.

    One more start computes the GPU memory at the end, if this is possible.
    """
    restarts = 0  # how often Slurm has restarted the job, as SLURM_RESTART_COUNT
    for ending in (LIMIT, REQUEUE, CANCEL, END):
        start = _JobStart(job, restarts)
        yield start.play(ending)
        if start.has_failed_early:
            return
        is_restarted = ending == REQUEUE or (start.is_requeued and ending != CANCEL)
        restarts = restarts + 1 if is_restarted else 0
    if job.processes:
        yield _JobStart(job, 0, {MEMORY: "1", "WORLD_SIZE": str(job.processes)}).compute_memory()


class _JobStart:
    """A start of the job, which begins when the object is made."""

    def __init__(self, job: PlayedJob, restarts: int, variables: Mapping[str, str] | None = None) -> None:
        self.job = job
        REQUEUED.unlink(missing_ok=True)
        self.log = Path(PLAN_FOLDER, "log")
        self.log.touch()
        self.log_start = self.log.stat().st_size  # the byte at which the log of this start begins
        self.earlier_event_count = len(_written_events(job))  # how many events earlier starts wrote
        self.started_at = self.log_grew_at = time.time()
        added_variables = {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
        added_variables |= variables or {}
        if "SLURM_JOB_END_TIME" in job.environment:
            added_variables["SLURM_JOB_START_TIME"] = str(int(self.started_at))
            added_variables["SLURM_JOB_END_TIME"] = str(int(self.started_at) + job.limit_s)
        with self.log.open("ab") as log:
            self.batch_process = subprocess.Popen(
                [job.script], cwd=job.folder, env={**job.environment, **added_variables}, stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    @property
    def is_requeued(self) -> bool:
        """Whether the job asked to be requeued."""
        return REQUEUED.exists()

    @property
    def has_failed_early(self) -> bool:
        """Whether the job failed by itself before its first step."""
        return self.batch_process.returncode not in (0, None) and not self.events()

    def play(self, ending: str) -> StartReport:
        """Let the job train, end it as Slurm does, and return the report of this start."""
        job = self.job
        is_ready = self._wait(job.seconds, until_ready=ending != END)
        trained_s, events_before_stop = time.time() - self.started_at, self.events()
        silent_before_stop_s = time.time() - self.log_grew_at
        stopped_at = time.time() if ending != END and self.batch_process.poll() is None else None
        if stopped_at:
            self._stop(ending)
        is_running = self.batch_process.poll() is None
        self._kill_all()  # a script that has ended may have left processes
        status = self.batch_process.wait()
        checkpoint, saved_at = self._newest_checkpoint()
        return {
            "ending": ending,
            "signal_lead_s": job.signal_lead_s,
            "is_ready": is_ready,
            "trained_s": trained_s,
            "silent_before_stop_s": silent_before_stop_s,
            "silent_at_end_s": time.time() - self.log_grew_at,
            "events_before_stop": len(events_before_stop),
            "stopped_at": stopped_at,
            "stop_took_s": time.time() - stopped_at if stopped_at else None,
            "was_killed": is_running and not self.is_requeued,
            "was_requeued": self.is_requeued,
            "status": status if status >= 0 else 128 - status,
            "events": self.events(),
            "log": self._log_text()[-_MAX_LOG:],
            "programs": [
                asdict(program) for program in read_programs(Path(job.run_dir), int(self.started_at))
            ],
            "checkpoint": checkpoint,
            "saved_at": saved_at,
        }

    def _stop(self, ending: str) -> None:
        """Send the signal with which Slurm stops the job, and wait until the job ends or must be killed."""
        job = self.job
        if ending == LIMIT and job.signal and job.signal_lead_s:
            # Slurm sends this signal either to the batch shell or to the tasks.
            only_batch = job.only_batch_gets_signal
            self._send_signal(job.signal, to_tasks=not only_batch, to_batch=only_batch)
            self._wait(min(job.signal_lead_s, job.seconds))
        else:
            self._send_signal(signal.SIGTERM)
            self._wait(job.kill_wait)

    def compute_memory(self) -> StartReport:
        """Wait until the start has computed the GPU memory of the training, and return the report."""
        self._wait(self.job.seconds)
        if self.batch_process.poll() is None:
            self._kill_all()
        self.batch_process.wait()
        # training/memory.py prints its answer as a line of JSON.
        answers = [line for line in self._log_text().splitlines() if line.startswith('{"peak_bytes"')]
        return {
            "ending": "memory",
            "memory": json.loads(answers[-1]) if answers else None,
            "status": self.batch_process.returncode,
            "log": self._log_text()[-_MAX_LOG:],
        }

    def events(self) -> list[dict[str, Any]]:
        """Return the events of this start from the trainer's file of events, or else from the log."""
        if Path(self.job.run_dir, EVENTS).exists():
            return _written_events(self.job)[self.earlier_event_count :]
        pattern = re.compile(self.job.metrics) if self.job.metrics else None
        lines = self._log_text().splitlines()
        return [event for line in lines for event in line_events(line[:4000], pattern)]

    def _wait(self, seconds: float, *, until_ready: bool = False) -> bool:
        """Wait at most `seconds` until the job ends, or with `until_ready` until it has done its steps.

        Returns whether the job has done its steps. A trainer that prints no steps counts as ready after
        `stop_after` seconds. A job that was requeued and does not end itself gets SIGTERM.
        """
        deadline, ready_at = time.time() + seconds, self.started_at + self.job.stop_after * _slowdown()
        log_size, has_sigterm = 0, False
        while self.batch_process.poll() is None and time.time() < deadline:
            if (size := self.log.stat().st_size) != log_size:
                log_size, self.log_grew_at = size, time.time()
            if until_ready:
                steps = sum(event.get("event") == "train" for event in self.events())
                if steps >= self.job.steps or (not steps and time.time() > ready_at):
                    return True
            if not has_sigterm and self.is_requeued and time.time() - REQUEUED.stat().st_mtime > _EXIT_S:
                has_sigterm, deadline = True, time.time() + self.job.kill_wait
                self._send_signal(signal.SIGTERM)
            time.sleep(_POLL_S)
        return False

    def _send_signal(self, number: int, *, to_tasks: bool = True, to_batch: bool = True) -> None:
        """Send a signal as Slurm does: to the batch shell, and to each process of the steps."""
        pids = [self.batch_process.pid] * to_batch + (list(_processes_of_steps()) if to_tasks else [])
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_all(self) -> None:
        """Kill all processes that are left, as Slurm does after KillWait."""
        self._send_signal(signal.SIGKILL)
        for pid in _pids():
            if pid not in (1, os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _newest_checkpoint(self) -> tuple[str, float | None]:
        """Return the newest checkpoint that this start wrote, and its time; "" and None without one."""
        newest_time, newest_path = self.started_at, ""
        for root in dict.fromkeys((self.job.run_dir, self.job.folder)):
            for path in _files(root):
                if self._may_be_checkpoint(root, path[len(root) + 1 :]):
                    with contextlib.suppress(OSError):
                        time_and_path = Path(path).stat().st_mtime, path
                        newest_time, newest_path = max((newest_time, newest_path), time_and_path)
        return newest_path, newest_time if newest_path else None

    def _may_be_checkpoint(self, folder: str, name: str) -> bool:
        """Return whether a file may be a checkpoint; `name` is its path below the folder."""
        return (
            (folder == self.job.run_dir and name not in _OTHER_FILES)
            or name.endswith(_CHECKPOINT_SUFFIXES)
            or "checkpoint" in name
            or fnmatch(name.rpartition("/")[2], self.job.checkpoint)
        )

    def _log_text(self) -> str:
        """Return the log of this start."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_start)
            return stream.read(1 << 20).decode("utf-8", "replace")


def _slowdown() -> float:
    """Return the factor by which the load of this machine may slow down a program."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), _MAX_SLOWDOWN)


def _written_events(job: PlayedJob) -> list[dict[str, Any]]:
    """Return the events in the run folder of a job."""
    with contextlib.suppress(DocumentError):
        return list(events(Path(job.run_dir)))
    return []


def _files(folder: str) -> Iterator[str]:
    """Yield the paths of at most `_MAX_FILES` files below a folder, without those in hidden folders."""
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        for name in names:
            count += 1
            if count > _MAX_FILES:
                return
            yield os.path.join(root, name)  # noqa: PTH118 - there are many


def _pids() -> list[int]:
    """Return the ids of all processes in the sandbox."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def _processes_of_steps() -> Iterator[int]:
    """Yield the ids of the processes below each running srun, without srun itself."""
    children_of: dict[int, list[int]] = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            parent = int(text.rpartition(")")[2].split()[1])
            children_of.setdefault(parent, []).append(pid)
    parents = [int(file.name) for file in STEPS.iterdir()]  # first the process of each srun
    while parents:
        children = children_of.get(parents.pop(), [])
        yield from children
        parents += children


def main() -> None:
    """Play Slurm for the job in the file that argv names; print a report of each start as a line of JSON."""
    STEPS.mkdir(exist_ok=True)
    for start in play(PlayedJob(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))):
        print(json.dumps(start), flush=True)
