"""The last checkpoint of a job that is to be cancelled: its trainer is asked for it, and has time for it.

scancel may send TERM to all processes of a job, also to those that it lives on, such as the file system of
a container: what is saved then may be lost. So the stop file comes first, by which a trainer saves and ends
in peace.
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
WORD = b"cancelled\n"  # with it the job does not start again
LEAST_S = 60.0  # seconds that a trainer has at least
TIMES = 3  # steps and saves for which a trainer has time in addition, as long as its last ones
POLL_S, SELDOM_S = 0.5, 4.0  # between looks into the folders, and questions to Slurm
ASKS = "SBATCHGEN_STOP_FILE"  # in the source of a trainer of the user's own that looks for the file
COSTS = ("step_s", "save_s")  # of events: what a step took, and a save
_TRAINS = ("start", "train", "epoch", "save")  # events


class Waited(NamedTuple):
    """A training that was asked to save."""

    folder: Path  # its run folder
    most_s: float  # how long it has
    is_left: bool  # whether the stop file may stay: the next start removes it


def folders(record: Record, run_dir: Path, rows: Sequence[SlurmJob]) -> list[tuple[Path, SlurmJob]]:
    """Return the run folders of a job that train now, each with its row of the queue."""
    running = [row for row in rows if row.state.name == "RUNNING"]
    if not record.array or record.one_training:
        return [(run_dir, row) for row in running[:1]]
    return [(run_dir / str(int(row.task) + record.first), row) for row in running if row.task.isdecimal()]


def ask(record: Record, folder: Path, row: SlurmJob) -> Waited | None:
    """Ask the training in a run folder to save and end; None if it saves nothing, or can't be asked."""
    if not _looks(record) or not (record.value("trainer") or _trains(folder, time.time() - row.used_s)):
        return None
    try:
        files.put(folder / STOP, WORD, mode=files.PRIVATE)
    except OSError:
        return None
    return Waited(folder, _most_s(folder), record.value("resume") != "off")


def wait(asked: Sequence[Waited], runs: Callable[[], bool]) -> list[Path]:
    """Wait until the jobs run no longer; return the trainings that have not ended in their time.

    A training has saved before its job ends: launchers and containers end in peace as well, but have no more
    than LEAST_S after it. `runs` asks Slurm, so it is called now and then.
    """
    began = asks = time.monotonic()
    saved_s = float("inf")  # when all trainings had ended
    while True:
        left = [each for each in asked if not _has_ended(each.folder)]
        passed = time.monotonic() - began
        saved_s = float("inf") if left else min(saved_s, passed)
        is_late = all(passed > each.most_s for each in left) if left else passed - saved_s > LEAST_S
        if is_late:
            return [each.folder for each in left]
        if time.monotonic() - asks > SELDOM_S:
            if not runs():
                return []
            asks = time.monotonic()
        time.sleep(POLL_S)


def tidy(asked: Sequence[Waited]) -> None:
    """Remove the stop files that no start would remove, and that would end the next start at once."""
    for each in asked:
        if not each.is_left:
            with contextlib.suppress(OSError):
                (each.folder / STOP).unlink()


def _looks(record: Record) -> bool:
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
    """Return whether the bundled trainer has begun to train since its job has started, and has not ended."""
    if read_object(folder / STATUS).get("state") != "running":
        return False
    last = (event for event in some_events(folder, from_end=True) if event["event"] in _TRAINS)
    return any((number(event.get("time")) or 0.0) > started - CLOCKS_S for event in last)


def _has_ended(folder: Path) -> bool:
    return read_object(folder / STATUS).get("state") in ("preempted", "done", "failed")


def _most_s(folder: Path) -> float:
    """Return how long a training may take to end, by its last step and its last save."""
    last = some_events(folder, from_end=True)
    each = {name: number(event.get(name)) or 0.0 for event in last for name in COSTS if name in event}
    return max(LEAST_S, TIMES * sum(each.values()))
