"""Finds the state of each point of a sweep, for `status`, by its folder and squeue; ranks the points."""

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import CommandLineError, SbatchgenError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import first_names
from sbatchgen.jobs.resolved.sweep import Sweep, read_points
from sbatchgen.jobs.runs.events import EVENTS, STATUS
from sbatchgen.jobs.runs.job_log import newest_logs
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.runs.record import MAX_TASKS, Record, point_numbers, records
from sbatchgen.jobs.slurm.queue import SlurmJob

POINTS_FILE = "points.csv"  # the file with the points, in the run folder
EXIT_FILE = "exit"  # the file with the exit status of a point's last start, in the folder of the point
DONE, FAILED, STOPPED, NEW = "done", "failed", "stopped", "not submitted"  # states of points without a job
# The names of metrics whose smaller values are better, such as val_loss, test/rmse and train-time: a word of
# such a name ends so.
_LOWER_IS_BETTER = re.compile(
    r"(?:loss|err|errors?|perplexity|ppl|mae|mse|nll|seconds|(?<![^\W_])(?:wall|run)?time)\d*(?![^\W_])",
    re.IGNORECASE,
)
_STOPPED_STATUS = "75"  # the script's exit status if the training was stopped with more to do


@frozen()
class Point:
    """A point of a sweep, as it is now."""

    number: int  # its number, from 0
    values: tuple[str, ...]  # the values of the sweep's parameters, in the order of SweepState.names
    state: str  # DONE, FAILED, STOPPED or NEW; or a state of Slurm in plain words
    says: str = ""  # more about the state, such as "exit status 1"
    row: SlurmJob | None = None  # its row of squeue; None if it neither waits nor runs
    progress: Progress | None = None  # how far its training is; None if the training reports nothing

    @property
    def is_active(self) -> bool:
        """Whether the point waits or runs."""
        return self.row is not None


@frozen()
class SweepState:
    """A sweep as it is now."""

    names: tuple[str, ...]  # the names of its parameters
    points: tuple[Point, ...]

    @property
    def numbers_by_state(self) -> dict[str, list[int]]:
        """The numbers of the points in each state."""
        numbers: dict[str, list[int]] = {}
        for point in self.points:
            numbers.setdefault(point.state, []).append(point.number)
        return numbers

    def metric(self, point: Point, name: str) -> float | None:
        """Return a point's value of a metric or a parameter; None if it has none, or it is not a number."""
        if name not in self.names:
            return point.progress.metrics.get(name) if point.progress else None
        try:
            return float(point.values[self.names.index(name)])
        except ValueError:
            return None

    def sorted_by(self, name: str, *, reverse: bool = False) -> list[Point]:
        """Return the points sorted by a metric, the best first, or by a parameter, the smallest first.

        Points without a value of `name` are excluded. Raises CommandLineError if no point has a value.
        """
        numbers = ((self.metric(point, name), point) for point in self.points)
        measured = [(number, point) for number, point in numbers if number is not None]
        if not measured:
            metrics = {metric for point in self.points if point.progress for metric in point.progress.metrics}
            fix = f"choose one of {first_names([*self.names, *sorted(metrics)], 20)}"
            what = f"no point of this sweep has a value for '{name}'"
            raise CommandLineError.of(what, at="--sort", fix=fix)
        is_higher_better = name not in self.names and not _LOWER_IS_BETTER.search(name)
        highest_first = is_higher_better != reverse
        return [point for _, point in sorted(measured, key=lambda pair: pair[0], reverse=highest_first)]

    @property
    def best_first(self) -> list[Point]:
        """The points, the best first, sorted by their best accuracies.

        If no point has an accuracy, they are sorted by their losses. Points without a value are excluded.
        """
        trained = [(point.progress, point) for point in self.points if point.progress]
        by_accuracy = [(-progress.best, point) for progress, point in trained if progress.best is not None]
        by_loss = [(progress.loss, point) for progress, point in trained if progress.loss is not None]
        return [point for _, point in sorted(by_accuracy or by_loss, key=lambda pair: pair[0])]


def read_sweep(run_dir: Path) -> Sweep | None:
    """Return the sweep of a run folder; None without a sweep. Raises DocumentError if it can't be read."""
    file = run_dir / POINTS_FILE
    return read_points(file) if os.path.lexists(file) else None


def has_number(run_dir: Path, task: str, job: str = "") -> bool:
    """Return whether a run has the point of a sweep, or the task of an array, with a number.

    `job` is the id of the array that must have the task; "" for any array of the run.
    """
    if not (task.isdecimal() and len(task) <= len(str(MAX_TASKS)) and str(int(task)) == task):
        return False
    if os.path.lexists(run_dir / POINTS_FILE):
        with contextlib.suppress(SbatchgenError):  # what can't be read refuses no number
            sweep = read_sweep(run_dir)
            return sweep is not None and int(task) < len(sweep.points)
        return True
    arrays = records(run_dir)
    arrays = [record for record in arrays if record.job == job] or arrays
    return any(int(task) in point_numbers(record, record.array) for record in arrays)


def sweep_state(
    sweep: Sweep,
    run_dir: Path,
    records: Sequence[Record],
    rows: Iterable[SlurmJob],
    only_point: str = "",
) -> SweepState:
    """Return the state of a sweep, from its run folder, its submissions and their rows of squeue.

    With `only_point`, the number of a point, the state has no other point.
    """
    by_job = {record.job: record for record in records}
    active_rows = {
        number: row
        for row in rows
        if str(row.base_id) in by_job and not row.state.ended
        for number in point_numbers(by_job[str(row.base_id)], row.task)
    }
    by_point: dict[int, list[Record]] = {}
    for record in records:
        for number in point_numbers(record, record.array, len(sweep.points)):
            by_point.setdefault(number, []).append(record)
    points = []
    for number, values in enumerate(sweep.points):
        if only_point and str(number) != only_point:
            continue
        folder, submissions, row = run_dir / str(number), by_point.get(number, ()), active_rows.get(number)
        names = _names_in_folder(folder)
        state, says = row.state.words if row else NEW, ""
        if submissions and not row:
            state, says = _state_of_ended_point(folder, names)
        has_output = not names.isdisjoint((STATUS, EVENTS))
        if not has_output:
            has_output = any(newest_logs(record, str(number)) for record in submissions)
        progress = read_progress(folder, submissions, str(number)) if has_output else None
        points.append(Point(number, values, state, says, row, progress))
    return SweepState(sweep.names, tuple(points))


def _names_in_folder(folder: Path) -> frozenset[str]:
    """Return the names in the folder of a point; none if there is no folder.

    With them, the caller opens only files that exist. That is faster for a sweep with thousands of points.
    """
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries)
    except OSError:
        return frozenset()


def _state_of_ended_point(folder: Path, names: frozenset[str]) -> tuple[str, str]:
    """Return the state of an ended point and more words about the state.

    `names` has the names of the files in its folder.
    """
    if EXIT_FILE not in names:
        return FAILED, "killed, or never started"
    try:
        status = files.read_run_file(folder / EXIT_FILE, 16).decode("ascii", "replace").strip()
    except OSError:
        return FAILED, "killed, or never started"
    if status == "0":
        return DONE, ""
    return (STOPPED, "") if status == _STOPPED_STATUS else (FAILED, f"exit status {status}")
