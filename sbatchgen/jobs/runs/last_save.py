"""Lets a job save a last checkpoint before it is cancelled: writes the stop file, and waits.

scancel may send TERM to all processes of a job, also to the process that is the file system of its container.
A checkpoint that is saved after that may be lost. So the trainer first sees the stop file, saves and ends by
itself.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base import files
from sbatchgen.jobs.inputs.document import MAX_BYTES
from sbatchgen.jobs.runs.events import STATUS, number, read_object, some_events
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.stall import MAX_CLOCK_DIFFERENCE_S
from sbatchgen.jobs.slurm.queue import SlurmJob

STOP = "stop"  # the stop file, in the run folder
CANCELLED = b"cancelled\n"  # the text of a stop file after which the script does not start the training again
MIN_WAIT_S = 60.0  # the least time that a trainer has to end
WAIT_FACTOR = 3  # a trainer has this many times the time of its last step and its last save
POLL_S, SQUEUE_POLL_S = 0.5, 4.0  # seconds between looks into the folders, and between calls of squeue
STOP_VARIABLE = "SBATCHGEN_STOP_FILE"  # the source of a trainer that looks for the stop file has this name
_DURATIONS = ("step_s", "save_s")  # fields of events: how long a step and a save took
_TRAINING_EVENTS = ("start", "train", "epoch", "save")  # events of a training that has begun


class StoppedTraining(NamedTuple):
    """A training that was asked to save and end."""

    folder: Path  # its run folder
    max_wait_s: float  # how many seconds it has to end
    keeps_stop_file: bool  # whether the stop file may stay, because the next start removes it


def training_folders(record: Record, run_dir: Path, rows: Sequence[SlurmJob]) -> list[tuple[Path, SlurmJob]]:
    """Return the run folders in which a job is training now, each with its row of squeue."""
    running = [row for row in rows if row.state.name == "RUNNING"]
    if not record.array or record.one_training:
        return [(run_dir, row) for row in running[:1]]
    return [(run_dir / str(int(row.task) + record.first), row) for row in running if row.task.isdecimal()]


def ask_to_stop(record: Record, folder: Path, row: SlurmJob) -> StoppedTraining | None:
    """Ask the training in a run folder to save and end; return None if it saves nothing or can't be asked."""
    if not _looks_for_stop_file(record):
        return None
    has_own_trainer = record.value("trainer")  # nothing tells whether the user's own trainer has begun
    if not has_own_trainer and not _has_begun(folder, time.time() - row.used_s):
        return None
    try:
        files.put(folder / STOP, CANCELLED, mode=files.PRIVATE)
    except OSError:
        return None
    return StoppedTraining(folder, _max_wait_s(folder), keeps_stop_file=record.value("resume") != "off")


def wait_for_end(trainings: Sequence[StoppedTraining], has_running_job: Callable[[], bool]) -> list[Path]:
    """Wait until the jobs have ended; return the run folders of trainings that have not ended in their time.

    Launchers and containers end after the training, and have MIN_WAIT_S for it. `has_running_job` returns
    whether a job still runs; it calls squeue, so it is called only every SQUEUE_POLL_S.
    """
    began = last_call = time.monotonic()
    all_ended_s = float("inf")  # the seconds after which all trainings had ended
    while True:
        left = [training for training in trainings if not _has_ended(training.folder)]
        passed_s = time.monotonic() - began
        all_ended_s = float("inf") if left else min(all_ended_s, passed_s)
        if left:
            is_late = all(passed_s > training.max_wait_s for training in left)
        else:
            is_late = passed_s - all_ended_s > MIN_WAIT_S
        if is_late:
            return [training.folder for training in left]
        if time.monotonic() - last_call > SQUEUE_POLL_S:
            if not has_running_job():
                return []
            last_call = time.monotonic()
        time.sleep(POLL_S)


def remove_stop_files(trainings: Sequence[StoppedTraining]) -> None:
    """Remove the stop files that the next start would not remove: they would end that start at once."""
    for training in trainings:
        if not training.keeps_stop_file:
            with contextlib.suppress(OSError):
                (training.folder / STOP).unlink()


def _looks_for_stop_file(record: Record) -> bool:
    """Return whether the trainer of a job looks for the stop file."""
    if not record.command or record.script:
        return False
    trainer = record.value("trainer")
    if not trainer:
        return not record.value("command")
    try:
        return STOP_VARIABLE.encode() in files.read_start(Path(record.folder, trainer), MAX_BYTES)
    except OSError:
        return False


def _has_begun(folder: Path, job_start: float) -> bool:
    """Return whether the bundled trainer has begun to train since its job started, and has not ended."""
    if read_object(folder / STATUS).get("state") != "running":
        return False
    newest = (event for event in some_events(folder, from_end=True) if event["event"] in _TRAINING_EVENTS)
    return any((number(event.get("time")) or 0.0) > job_start - MAX_CLOCK_DIFFERENCE_S for event in newest)


def _has_ended(folder: Path) -> bool:
    return read_object(folder / STATUS).get("state") in ("preempted", "done", "failed")


def _max_wait_s(folder: Path) -> float:
    """Return how many seconds a training may take to end, by its last step and its last save."""
    newest = some_events(folder, from_end=True)
    last = {name: number(event.get(name)) or 0.0 for event in newest for name in _DURATIONS if name in event}
    return max(MIN_WAIT_S, WAIT_FACTOR * sum(last.values()))
