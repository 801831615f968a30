"""Compares the forecasts of jobs' starts with the real starts, to tell how far the forecasts can be trusted.

A file next to the index keeps the forecasts that were shown, and the starts that squeue and sacct report. A
job is not eligible as long as a dependency, --begin or a hold keeps it from starting. The time until the job
is eligible does not count as an error of the forecast.
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from sbatchgen.base import files
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs.index import STATES_LOCK_S, index_file
from sbatchgen.jobs.runs.record import Record, as_typed
from sbatchgen.jobs.slurm.queue import SlurmJob

T = TypeVar("T")
STARTS_FILE = "starts.json"
MAX_BYTES = 1 << 22  # bytes of the file that are read
MAX_FORECAST_AGE_S = 1800.0  # if a command is submitted later, the forecast for it does not count
MAX_KEPT = 200  # submissions that are kept, and as many forecasts of commands
MAX_COMPARED = 10  # how many of the newest starts are compared with their forecasts
MIN_COMPARED = 5  # with fewer starts there is no comparison
MAX_ERROR_S = 1200.0  # a forecast is right if its error is at most this time
_ADDED_OPTIONS = {"--output", "--snapshot-dir"}  # options that a submission adds to its command


@frozen(kw_only=True)
class Forecast:
    """A forecast of a start that was shown; times are in seconds since 1970."""

    # Its source: "hole" (a hole in the queue), "plan" (Slurm's plan) or "bound" (a rough bound)
    kind: str
    start: float  # when the job would start
    at: float  # when the forecast was shown
    words: tuple[str, ...] = ()  # the command's words that are compared; empty once the command is submitted


@frozen(kw_only=True)
class SubmissionStart:
    """A submission with the forecasts of its start and its real start; times are 0 until they are known."""

    job: str  # the id of the job
    submitted: float
    shown: tuple[Forecast, ...] = ()  # the forecasts
    eligible: float = 0.0  # from when on it waited only for free nodes
    started: float = 0.0

    def delay_s(self, kind: str) -> float | None:
        """Return how many seconds the job waited longer than the forecast of this kind said.

        Only the time since the job was eligible counts as waiting. Return None if the job has not started, or
        has no such forecast.
        """
        waits = (max(0.0, start.start - self.submitted) for start in self.shown if start.kind == kind)
        forecast_s = next(waits, None) if self.started else None
        return None if forecast_s is None else self.started - max(self.eligible, self.submitted) - forecast_s


@frozen(kw_only=True)
class KeptForecasts:
    """The contents of the file, the oldest first."""

    offers: tuple[Forecast, ...] = ()  # forecasts of commands that are not submitted yet
    starts: tuple[SubmissionStart, ...] = ()  # submissions


def keep_forecasts(
    environment: Mapping[str, str], offers: Iterable[tuple[Sequence[str], str, float]]
) -> None:
    """Keep the forecasts that `when` shows for commands; each is a command, the kind and the start."""
    now = time.time()
    shown = [
        Forecast(kind=kind, start=start, words=_compared_words(argv), at=now)
        for argv, kind, start in offers
        if argv
    ]
    if shown:
        _change(environment, lambda old: replace(old, offers=(*old.offers, *shown)[-MAX_KEPT:]))


def keep_submission(environment: Mapping[str, str], record: Record) -> None:
    """Keep a submission, with the forecasts that were shown for its command a moment ago."""
    words = _compared_words(record.command)

    def add_submission(old: KeptForecasts) -> KeptForecasts:
        fresh = [offer for offer in old.offers if offer.at > record.submitted - MAX_FORECAST_AGE_S]
        by_kind = {offer.kind: offer for offer in fresh if words and offer.words == words}
        start = SubmissionStart(job=record.job, submitted=record.submitted, shown=(*by_kind.values(),))
        # A chain submits several jobs with the command. The forecasts are about the first job, so they are
        # removed now.
        offers = tuple(offer for offer in fresh if offer.words != words)
        return KeptForecasts(offers=offers, starts=(*old.starts, start)[-MAX_KEPT:])

    _change(environment, add_submission)


def keep_rows(environment: Mapping[str, str], rows: Iterable[SlurmJob]) -> None:
    """Keep the plans and the starts of jobs that rows of squeue or sacct show.

    Only Slurm's first plan for a job is kept.
    """
    by_job: dict[str, SlurmJob] = {}
    for row in rows:  # the first task counts for an array
        first = by_job.setdefault(str(row.base_id), row)
        by_job[str(row.base_id)] = min(first, row, key=_start_order)
    _change_each(environment, by_job, _with_row)


def keep_plans(environment: Mapping[str, str], starts: Mapping[str, float]) -> None:
    """Keep the planned starts of jobs that wait, by their ids; only the first plan of a job is kept."""
    _change_each(environment, {job.partition("_")[0]: at for job, at in starts.items()}, _with_plan)


def _start_order(row: SlurmJob) -> tuple[bool, float]:
    """Return the key that sorts the tasks of an array by their starts; waiting tasks come last."""
    return row.state.name == "PENDING", row.start.timestamp() if row.start else math.inf


def comparison(environment: Mapping[str, str], kind: str) -> str:
    """Return in words how often this kind of forecast was right; "" if there are too few starts."""
    delays_s = [start.delay_s(kind) for start in _read(environment).starts]
    known_s = [delay_s for delay_s in delays_s if delay_s is not None][-MAX_COMPARED:]
    if len(known_s) < MIN_COMPARED:
        return ""
    right_count = sum(abs(delay_s) <= MAX_ERROR_S for delay_s in known_s)
    counts = f"{right_count} of your last {len(known_s)} starts of this kind"
    return f"{counts} came within {MAX_ERROR_S / 60:.0f} minutes of what was shown"


def _with_row(start: SubmissionStart, row: SlurmJob) -> SubmissionStart:
    """Return a submission with the plan or the start in a row of its job."""
    at = row.start.timestamp() if row.start else 0.0
    if row.state.name == "PENDING":
        return _with_plan(start, at) if at and row.planned else start
    if start.started or not at or row.restarts or not row.node_list:
        return start  # the row is not about the first start
    return replace(start, started=at, eligible=row.eligible.timestamp() if row.eligible else 0.0)


def _with_plan(start: SubmissionStart, at: float) -> SubmissionStart:
    """Return a submission with Slurm's plan for its start, if it has none and has not started."""
    if start.started or any(shown.kind == "plan" for shown in start.shown):
        return start
    return replace(start, shown=(*start.shown, Forecast(kind="plan", start=at, at=time.time())))


def _compared_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command by which a forecast is found again.

    They are the sorted words after the verb, without the options that a submission adds.
    """
    words = command[2:]
    pairs = zip(("", *words), words, strict=False)  # the word before each word, and the word
    return tuple(sorted(word for before, word in pairs if not {before, word} & _ADDED_OPTIONS))


def _file(environment: Mapping[str, str]) -> Path:
    """Return the file with the forecasts and starts."""
    return index_file(environment).with_name(STARTS_FILE)


def _read(environment: Mapping[str, str]) -> KeptForecasts:
    """Return the contents of the file; empty if it can't be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        contents: KeptForecasts = as_typed(
            json.loads(files.read_own(_file(environment), MAX_BYTES)), KeptForecasts
        )
        return contents
    return KeptForecasts()


def _change_each(
    environment: Mapping[str, str],
    by_job: Mapping[str, T],
    change: Callable[[SubmissionStart, T], SubmissionStart],
) -> None:
    """Change the submissions whose jobs are in `by_job`; write the file only if a submission changes.

    `change` returns the changed submission, from the submission and the value of its job in `by_job`.
    """

    def changed(old: KeptForecasts) -> KeptForecasts:
        starts = (change(start, by_job[start.job]) if start.job in by_job else start for start in old.starts)
        return replace(old, starts=tuple(starts))

    old = _read(environment) if by_job else KeptForecasts()
    if changed(old) != old:
        _change(environment, changed)


def _change(environment: Mapping[str, str], change: Callable[[KeptForecasts], KeptForecasts]) -> None:
    """Change the contents of the file; do nothing if it can't be written, because no job depends on it."""
    with contextlib.suppress(OSError):
        file = _file(environment)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.locked(file.with_suffix(".lock"), STATES_LOCK_S):
            text = json.dumps(asdict(change(_read(environment))))
            files.put(file, text.encode(), mode=files.PRIVATE)
