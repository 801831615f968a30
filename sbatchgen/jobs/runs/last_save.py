"""Lets a job save a last checkpoint before `cancel` cancels it.

scancel may send TERM to all processes of a job, also to the process that is the file system of its container.
A checkpoint that is saved after that may be lost. So this module first writes the stop file and waits: the
trainer sees the file, saves and ends by itself.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base import files
from sbatchgen.jobs.inputs.document import MAX_BYTES
from sbatchgen.jobs.runs.events import STATUS, as_number, read_object, some_events
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.stall import MAX_CLOCK_DIFFERENCE_S
from sbatchgen.jobs.slurm.queue import SlurmJob

STOP_FILE = "stop"  # the stop file, in the run folder
CANCELLED_TEXT = b"cancelled\n"  # with this text, the script does not start the training again
MIN_WAIT_S = 60.0  # how many seconds a trainer has to end at least
WAIT_FACTOR = 3  # a trainer has this many times the time of its last step and its last save
FOLDER_POLL_S, SQUEUE_POLL_S = 0.5, 4.0  # seconds between looks into the folders, and between calls of squeue
STOP_VARIABLE = "SBATCHGEN_STOP_FILE"  # a trainer that looks for the stop file has this name in its source
_DURATION_FIELDS = ("step_s", "save_s")  # fields of events: how long a step and a save took
_TRAINING_EVENTS = ("start", "train", "epoch", "save")  # events of a training that has begun


class StoppedTraining(NamedTuple):
    """A training that was asked to save and end."""

    folder: Path  # its run folder
    max_wait_s: float  # how many seconds it has to end
    keeps_stop_file: bool  # whether the stop file may stay, because the next start removes it


class RunningTraining(NamedTuple):
    """A training that runs now."""

    folder: Path  # its run folder; for a task of an array, the folder of the task
    row: SlurmJob  # the row of squeue of its job or task


def running_trainings(record: Record, run_dir: Path, rows: Sequence[SlurmJob]) -> list[RunningTraining]:
    """Return the trainings of a job that run now: each task of an array may be a training of its own."""
    running = [row for row in rows if row.state.name == "RUNNING"]
    if not record.array or record.is_one_training:
        return [RunningTraining(run_dir, row) for row in running[:1]]
    tasks = [row for row in running if row.task.isdecimal()]
    return [RunningTraining(run_dir / str(int(row.task) + record.first), row) for row in tasks]


def ask_to_stop(record: Record, folder: Path, row: SlurmJob) -> StoppedTraining | None:
    """Ask the training in a run folder to save and end, by the stop file.

    Return None, and write nothing, if the trainer would not look for the file or has not begun to train.
    """
    if not _looks_for_stop_file(record):
        return None
    has_own_trainer = record.value("trainer")  # it may write no status, so it counts as begun
    if not has_own_trainer and not _has_begun(folder, time.time() - row.used_s):
        return None
    try:
        files.put(folder / STOP_FILE, CANCELLED_TEXT, mode=files.PRIVATE)
    except OSError:
        return None
    return StoppedTraining(folder, _max_wait_s(folder), keeps_stop_file=record.value("resume") != "off")


def wait_for_end(trainings: Sequence[StoppedTraining], has_running_job: Callable[[], bool]) -> list[Path]:
    """Wait until the jobs have ended; return the run folders of trainings that did not end in their time.

    After the trainings, their launchers and containers have MIN_WAIT_S to end. `has_running_job` returns
    whether a job still runs. It calls squeue, so this function calls it only every SQUEUE_POLL_S.
    """
    began = last_call = time.monotonic()
    trainings_ended_s = float("inf")  # how many seconds passed until all trainings had ended
    while True:
        unfinished = [training for training in trainings if not _has_ended(training.folder)]
        passed_s = time.monotonic() - began
        trainings_ended_s = float("inf") if unfinished else min(trainings_ended_s, passed_s)
        if unfinished:
            is_late = all(passed_s > training.max_wait_s for training in unfinished)
        else:
            is_late = passed_s - trainings_ended_s > MIN_WAIT_S
        if is_late:
            return [training.folder for training in unfinished]
        if time.monotonic() - last_call > SQUEUE_POLL_S:
            if not has_running_job():
                return []
            last_call = time.monotonic()
        time.sleep(FOLDER_POLL_S)


def remove_stop_files(trainings: Sequence[StoppedTraining]) -> None:
    """Remove the stop files that the next start would not remove; with them, it would end at once."""
    for training in trainings:
        if not training.keeps_stop_file:
            with contextlib.suppress(OSError):
                (training.folder / STOP_FILE).unlink()


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
    """Return whether the bundled trainer trains now: it has begun since its job started, and has not ended.

    `job_start` is in seconds since 1970.
    """
    if read_object(folder / STATUS).get("state") != "running":
        return False
    newest = (event for event in some_events(folder, from_end=True) if event["event"] in _TRAINING_EVENTS)
    return any((as_number(event.get("time")) or 0.0) > job_start - MAX_CLOCK_DIFFERENCE_S for event in newest)


def _has_ended(folder: Path) -> bool:
    """Return whether the training in a run folder has reported its end."""
    return read_object(folder / STATUS).get("state") in ("preempted", "done", "failed")


def _max_wait_s(folder: Path) -> float:
    """Return how many seconds a training has to end, by the durations of its last step and its last save."""
    durations_s: dict[str, float] = {}
    for event in some_events(folder, from_end=True):
        durations_s |= {name: as_number(event[name]) or 0.0 for name in _DURATION_FIELDS if name in event}
    return max(MIN_WAIT_S, WAIT_FACTOR * sum(durations_s.values()))
