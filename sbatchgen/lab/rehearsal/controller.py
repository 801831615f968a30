"""The stand-in for Slurm in a rehearsal: it starts, stops, requeues and cancels a job in the sandbox.

Slurm sends TERM to the batch shell and all tasks, and KILL after KillWait. Source: docs/design/slurm.md,
"Signals".
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
from typing import Any

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs.events import EVENTS, events
from sbatchgen.jobs.runs.metrics import line_events
from sbatchgen.jobs.runs.program_states import read_programs
from sbatchgen.lab.plan.step import PLAN_FOLDER
from sbatchgen.lab.rehearsal.tasks import MEMORY, STEPS

REQUEUED = Path(PLAN_FOLDER, "requeued")  # the stand-in for `scontrol requeue` makes this file
# The ways in which Slurm ends a start. With END, Slurm lets the job run to its own end.
LIMIT, REQUEUE, CANCEL, END = "limit", "requeue", "cancel", "end"
_POLL_S = 0.1  # seconds between two looks at the job
_EXIT_S = 1.0  # seconds in which a script may end itself after `scontrol requeue`
_CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npz", ".pkl", ".distcp", ".tar")
# Files of a run folder that the job script or the bundled trainer writes, and that are no checkpoints.
_SCRIPT_FILES = ("stop", "again", "exit", "events.jsonl", "status.json", "config.json", "lock.json")
_MAX_FILES = 20_000  # files of a folder among which a checkpoint is looked for
_MAX_SLOWDOWN = 4.0  # the largest factor by which a busy machine lengthens a wait
_MAX_LOG = 40_000  # characters of the log of a start in the report


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
    lead: int  # seconds between this signal and the time limit
    to_batch: bool  # whether this signal goes only to the batch shell
    kill_wait: int  # seconds between TERM and KILL
    limit_s: int  # the time limit in seconds
    steps: int  # the least number of training steps of each start
    seconds: float  # seconds that a start may take for these steps
    patience: float  # seconds that a trainer runs if it prints no steps
    processes: int  # processes that train on GPUs; 0 if the GPU memory can't be computed


def play(job: PlayedJob) -> Iterator[dict[str, Any]]:
    """Start the job several times, end it differently each time, and yield a report of each start.

    At the end, one more start computes the GPU memory, if this is possible.
    """
    restart = 0
    for act in (LIMIT, REQUEUE, CANCEL, END):
        start = _JobStart(job, restart)
        yield start.play(act)
        if start.has_failed_early:
            return
        restart = 0 if act == CANCEL or not (start.is_requeued or act == REQUEUE) else restart + 1
    if job.processes:
        yield _JobStart(job, 0, {MEMORY: "1", "WORLD_SIZE": str(job.processes)}).compute_memory()


class _JobStart:
    """A start of the job."""

    def __init__(self, job: PlayedJob, restart: int, variables: Mapping[str, str] | None = None) -> None:
        self.job, self.restart = job, restart
        REQUEUED.unlink(missing_ok=True)
        self.log = Path(PLAN_FOLDER, "log")
        self.log.touch()
        self.from_byte = self.log.stat().st_size  # where the log of this start begins
        self.earlier_events = len(_written_events(job))  # events that earlier starts wrote
        self.began = self.log_grew_at = time.time()
        added = {"SLURM_RESTART_COUNT": str(restart)} if restart else {}
        added |= variables or {}
        if "SLURM_JOB_END_TIME" in job.environment:
            times = {"START": int(self.began), "END": int(self.began) + job.limit_s}
            added |= {f"SLURM_JOB_{name}_TIME": str(value) for name, value in times.items()}
        with self.log.open("ab") as log:
            self.batch = subprocess.Popen(
                [job.script], cwd=job.folder, env={**job.environment, **added}, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    @property
    def is_requeued(self) -> bool:
        """Whether the job asked to be requeued."""
        return REQUEUED.exists()

    @property
    def has_failed_early(self) -> bool:
        """Whether the job failed by itself before its first step."""
        return self.batch.returncode not in (0, None) and not self.events()

    def play(self, act: str) -> dict[str, Any]:
        """Let the job train, end it as Slurm does, and return the report of this start."""
        job = self.job
        is_ready = self._wait(job.seconds, until_ready=act != END)
        trained_s, events_before = time.time() - self.began, self.events()
        silent_s = time.time() - self.log_grew_at
        acted = time.time() if act != END and self.batch.poll() is None else None
        if acted:
            wait_s = float(job.kill_wait)
            if act == LIMIT and job.signal and job.lead:
                self._send_signal(job.signal, to_tasks=not job.to_batch, to_batch=job.to_batch)
                wait_s = min(job.lead, job.seconds)
            else:
                self._send_signal(signal.SIGTERM)
            self._wait(wait_s)
        is_running = self.batch.poll() is None
        self._kill_all()  # a script that has ended may have left processes
        status = self.batch.wait()
        return {
            "act": act,
            "lead": job.lead,
            "ready": is_ready,
            "trained_s": trained_s,
            "silent_s": silent_s,  # since the trainer printed something, before the end of the start
            "before": len(events_before),
            "acted": acted,  # when Slurm ended the start; None if the job ended by itself
            "took_s": time.time() - acted if acted else None,
            "killed": is_running and not self.is_requeued,
            "requeued": self.is_requeued,
            "status": status if status >= 0 else 128 - status,
            "events": self.events(),
            "log": self._log_text()[-_MAX_LOG:],
            "quiet_s": time.time() - self.log_grew_at,  # since the trainer printed something, at the end
            "programs": [asdict(program) for program in read_programs(Path(job.run_dir), int(self.began))],
            **self._newest_checkpoint(),
        }

    def compute_memory(self) -> dict[str, Any]:
        """Wait until the start has computed the GPU memory of the training, and return its report."""
        self._wait(self.job.seconds)
        if self.batch.poll() is None:
            self._kill_all()
        self.batch.wait()
        answers = [line for line in self._log_text().splitlines() if line.startswith('{"peak_bytes"')]
        answer = json.loads(answers[-1]) if answers else None
        return {
            "act": "memory",
            "memory": answer,
            "status": self.batch.returncode,
            "log": self._log_text()[-_MAX_LOG:],
        }

    def events(self) -> list[dict[str, Any]]:
        """Return the events of this start from the trainer's file of events, or else from the log."""
        if Path(self.job.run_dir, EVENTS).exists():
            return _written_events(self.job)[self.earlier_events :]
        pattern = re.compile(self.job.metrics) if self.job.metrics else None
        lines = self._log_text().splitlines()
        return [event for line in lines for event in line_events(line[:4000], pattern)]

    def _wait(self, seconds: float, *, until_ready: bool = False) -> bool:
        """Wait at most `seconds` until the job ends, or with `until_ready` until it has done enough steps.

        Returns whether the job has done the steps. A trainer that prints no steps counts as ready after
        `patience` seconds. A job that was requeued, and does not end itself, gets SIGTERM.
        """
        deadline, ready_at = time.time() + seconds, self.began + self.job.patience * _slowdown()
        log_size, has_sigterm = 0, False
        while self.batch.poll() is None and time.time() < deadline:
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
        pids = [self.batch.pid] * to_batch + (list(_processes_of_steps()) if to_tasks else [])
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

    def _newest_checkpoint(self) -> dict[str, Any]:
        """Return the keys of the report about the newest file of this start that may be a checkpoint."""
        newest_time, newest_path = self.began, ""
        for root in dict.fromkeys((self.job.run_dir, self.job.folder)):
            for path in _files(root):
                relative = path[len(root) + 1 :]
                if (
                    (root == self.job.run_dir and relative not in _SCRIPT_FILES)
                    or relative.endswith(_CHECKPOINT_SUFFIXES)
                    or "checkpoint" in relative
                    or fnmatch(relative.rpartition("/")[2], self.job.checkpoint)
                ):
                    with contextlib.suppress(OSError):
                        time_and_path = Path(path).stat().st_mtime, path
                        newest_time, newest_path = max((newest_time, newest_path), time_and_path)
        return {"checkpoint": newest_path, "saved": newest_time if newest_path else None}

    def _log_text(self) -> str:
        """Return the log of this start."""
        with self.log.open("rb") as stream:
            stream.seek(self.from_byte)
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
    """Yield the paths of files below a folder, without hidden folders."""
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
    todo = [int(file.name) for file in STEPS.iterdir()]
    while todo:
        children = children_of.get(todo.pop(), [])
        yield from children
        todo += children


def main() -> None:
    """Rehearse the job in the file that argv names; print a line of JSON for each start."""
    STEPS.mkdir(exist_ok=True)
    for start in play(PlayedJob(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))):
        print(json.dumps(start), flush=True)
