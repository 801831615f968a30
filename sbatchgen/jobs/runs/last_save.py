"""Lets a job save a last checkpoint before it is cancelled: writes the stop file, and waits.

scancel may send TERM to all processes of a job, also to the file system of its container. A checkpoint that
is saved then may be lost. So the trainer first sees the stop file, saves and ends by itself.
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
from sbatchgen.jobs.runs.stall import CLOCKS_S
from sbatchgen.jobs.slurm.queue import SlurmJob

STOP = "stop"  # the stop file, in the run folder
WORD = b"cancelled\n"  # the text of the stop file that keeps the job from starting again
LEAST_S = 60.0  # seconds that a trainer has to end, at least
TIMES = 3  # a trainer has this many times the time of its last step and its last save
POLL_S, SELDOM_S = 0.5, 4.0  # seconds between looks into the folders, and between calls of squeue
ASKS = "SBATCHGEN_STOP_FILE"  # a user's own trainer that looks for the stop file has this in its source
COSTS = ("step_s", "save_s")  # fields of events: how long a step and a save took
_TRAINS = ("start", "train", "epoch", "save")  # events of a training that has begun


class StoppedTraining(NamedTuple):
    """A training that was asked to save and end."""

    folder: Path  # its run folder
    most_s: float  # how many seconds it has to end
    is_left: bool  # whether the stop file may stay, because the next start removes it


def folders(record: Record, run_dir: Path, rows: Sequence[SlurmJob]) -> list[tuple[Path, SlurmJob]]:
    """Return the run folders in which a job is training now, each with its row of squeue."""
    running = [row for row in rows if row.state.name == "RUNNING"]
    if not record.array or record.one_training:
        return [(run_dir, row) for row in running[:1]]
    return [(run_dir / str(int(row.task) + record.first), row) for row in running if row.task.isdecimal()]


def ask(record: Record, folder: Path, row: SlurmJob) -> StoppedTraining | None:
    """Ask the training in a run folder to save and end; return None if it saves nothing or can't be asked."""
    if not _looks_for_stop_file(record) or not (
        record.value("trainer") or _trains(folder, time.time() - row.used_s)
    ):
        return None
    try:
        files.put(folder / STOP, WORD, mode=files.PRIVATE)
    except OSError:
        return None
    return StoppedTraining(folder, _most_s(folder), record.value("resume") != "off")


def wait(trainings: Sequence[StoppedTraining], runs: Callable[[], bool]) -> list[Path]:
    """Wait until the jobs have ended; return the run folders of trainings that have not ended in their time.

    Launchers and containers end after the training, and have LEAST_S seconds to end. `runs` returns whether a
    job still runs; it calls squeue, so it is called seldom.
    """
    began = last_call = time.monotonic()
    saved_s = float("inf")  # when all trainings had ended
    while True:
        left = [training for training in trainings if not _has_ended(training.folder)]
        passed = time.monotonic() - began
        saved_s = float("inf") if left else min(saved_s, passed)
        is_late = all(passed > training.most_s for training in left) if left else passed - saved_s > LEAST_S
        if is_late:
            return [training.folder for training in left]
        if time.monotonic() - last_call > SELDOM_S:
            if not runs():
                return []
            last_call = time.monotonic()
        time.sleep(POLL_S)


def tidy(trainings: Sequence[StoppedTraining]) -> None:
    """Remove the stop files that the next start would not remove: they would end this start at once."""
    for training in trainings:
        if not training.is_left:
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
        return ASKS.encode() in files.read_start(Path(record.folder, trainer), MAX_BYTES)
    except OSError:
        return False


def _trains(folder: Path, started: float) -> bool:
    """Return whether the bundled trainer has begun to train since its job started, and has not ended."""
    if read_object(folder / STATUS).get("state") != "running":
        return False
    last = (event for event in some_events(folder, from_end=True) if event["event"] in _TRAINS)
    return any((number(event.get("time")) or 0.0) > started - CLOCKS_S for event in last)


def _has_ended(folder: Path) -> bool:
    return read_object(folder / STATUS).get("state") in ("preempted", "done", "failed")


def _most_s(folder: Path) -> float:
    """Return how many seconds a training may take to end, by its last step and its last save."""
    last = some_events(folder, from_end=True)
    costs = {name: number(event.get(name)) or 0.0 for event in last for name in COSTS if name in event}
    return max(LEAST_S, TIMES * sum(costs.values()))
