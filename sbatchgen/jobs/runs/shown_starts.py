"""Compares the starts that were forecast for jobs with their real starts, in a file next to the index.

A dependency, --begin or a hold keeps a job from being eligible. The time until the job is eligible does not
count as an error of the forecast.
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
from sbatchgen.jobs.runs.index import BUSY_S, index_file
from sbatchgen.jobs.runs.record import Record, as_typed
from sbatchgen.jobs.slurm.queue import SlurmJob

T = TypeVar("T")
FILE = "starts.json"
MAX_BYTES = 1 << 22  # bytes of the file that are read
OFFER_S = 1800.0  # a forecast for a command counts for a submission within this time
MAX_KEPT = 200  # submissions that are kept, and as many forecasts of commands
MAX_COMPARED = 10  # the newest starts that are compared with their forecasts
MIN_COMPARED = 5  # with fewer starts there is no comparison
NEAR_S = 1200.0  # a forecast is right if it differs by at most this time
_ADDED_OPTIONS = {"--output", "--snapshot-dir"}  # options that a submission adds to its command


@frozen(kw_only=True)
class ShownStart:
    """A forecast of a start that was shown; times are in seconds since 1970."""

    kind: str  # its source: "hole", "plan" or "bound"
    start: float  # when the job would start
    at: float  # when the forecast was shown
    words: tuple[str, ...] = ()  # the words of the command; empty once the command is submitted


@frozen(kw_only=True)
class KeptStart:
    """A submission with the forecasts of its start and its real start; times are 0 until they are known."""

    job: str  # the id of the job
    submitted: float
    shown: tuple[ShownStart, ...] = ()  # the forecasts
    eligible: float = 0.0  # from when on it waited only for free nodes
    started: float = 0.0

    def late_s(self, kind: str) -> float | None:
        """Return how many seconds longer the job waited, once eligible, than this kind of forecast said.

        Return None if the job has not started, or has no such forecast.
        """
        waits = (max(0.0, start.start - self.submitted) for start in self.shown if start.kind == kind)
        forecast_s = next(waits, None) if self.started else None
        return None if forecast_s is None else self.started - max(self.eligible, self.submitted) - forecast_s


@frozen(kw_only=True)
class KeptStarts:
    """The contents of the file, the oldest first."""

    offers: tuple[ShownStart, ...] = ()  # forecasts of commands that are not submitted yet
    starts: tuple[KeptStart, ...] = ()  # submissions


def keep_offers(environment: Mapping[str, str], offers: Iterable[tuple[Sequence[str], str, float]]) -> None:
    """Keep forecasts of commands: each has the command, the kind of forecast and the start."""
    now = time.time()
    shown = [
        ShownStart(kind=kind, start=start, words=_words(argv), at=now) for argv, kind, start in offers if argv
    ]
    if shown:
        _change(environment, lambda old: replace(old, offers=(*old.offers, *shown)[-MAX_KEPT:]))


def keep_submission(environment: Mapping[str, str], record: Record) -> None:
    """Keep a submission, with the forecasts that were shown for its command a moment ago."""
    words = _words(record.command)

    def add_submission(old: KeptStarts) -> KeptStarts:
        fresh = [offer for offer in old.offers if offer.at > record.submitted - OFFER_S]
        by_kind = {offer.kind: offer for offer in fresh if words and offer.words == words}
        start = KeptStart(job=record.job, submitted=record.submitted, shown=(*by_kind.values(),))
        # In a chain, several jobs are submitted with the command, and the forecasts are about the first job.
        offers = tuple(offer for offer in fresh if offer.words != words)
        return KeptStarts(offers=offers, starts=(*old.starts, start)[-MAX_KEPT:])

    _change(environment, add_submission)


def keep_rows(environment: Mapping[str, str], rows: Iterable[SlurmJob]) -> None:
    """Keep Slurm's first plan for each waiting job, and when jobs started, from rows of squeue or sacct."""
    by_job: dict[str, SlurmJob] = {}
    for row in rows:  # the first task counts for an array
        first = by_job.setdefault(str(row.base_id), row)
        by_job[str(row.base_id)] = min(first, row, key=_start_order)
    _change_each(environment, by_job, _with_row)


def keep_plans(environment: Mapping[str, str], starts: Mapping[str, float]) -> None:
    """Keep the planned starts of jobs that wait, by their ids; only the first plan of a job is kept."""
    _change_each(environment, {job.partition("_")[0]: at for job, at in starts.items()}, _with_plan)


def _start_order(row: SlurmJob) -> tuple[bool, float]:
    """Return the key that sorts the tasks of an array by their starts, waiting tasks last."""
    return row.state.name == "PENDING", row.start.timestamp() if row.start else math.inf


def comparison(environment: Mapping[str, str], kind: str) -> str:
    """Return in words how often this kind of forecast was right; "" if there are too few starts."""
    late = [start.late_s(kind) for start in _read(environment).starts]
    measured = [seconds for seconds in late if seconds is not None][-MAX_COMPARED:]
    if len(measured) < MIN_COMPARED:
        return ""
    near = sum(abs(seconds) <= NEAR_S for seconds in measured)
    how = f"{near} of your last {len(measured)} starts of this kind"
    return f"{how} came within {NEAR_S / 60:.0f} minutes of what was shown"


def _with_row(start: KeptStart, row: SlurmJob) -> KeptStart:
    """Return a submission with the plan or the start in a row of its job."""
    at = row.start.timestamp() if row.start else 0.0
    if row.state.name == "PENDING":
        return _with_plan(start, at) if at and row.planned else start
    if start.started or not at or row.restarts or not row.node_list:
        return start  # the row is not about the first start
    return replace(start, started=at, eligible=row.eligible.timestamp() if row.eligible else 0.0)


def _with_plan(start: KeptStart, at: float) -> KeptStart:
    """Return a submission with Slurm's plan for its start, if it has none and has not started."""
    if start.started or any(shown.kind == "plan" for shown in start.shown):
        return start
    return replace(start, shown=(*start.shown, ShownStart(kind="plan", start=at, at=time.time())))


def _words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the sorted words of a command after its verb, without the options that a submission adds."""
    words = command[2:]
    pairs = zip(("", *words), words, strict=False)  # the word before each word, and the word
    return tuple(sorted(word for before, word in pairs if not {before, word} & _ADDED_OPTIONS))


def _file(environment: Mapping[str, str]) -> Path:
    return index_file(environment).with_name(FILE)


def _read(environment: Mapping[str, str]) -> KeptStarts:
    """Return the contents of the file; empty if it can't be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        contents: KeptStarts = as_typed(json.loads(files.read_own(_file(environment), MAX_BYTES)), KeptStarts)
        return contents
    return KeptStarts()


def _change_each(
    environment: Mapping[str, str], by_job: Mapping[str, T], change: Callable[[KeptStart, T], KeptStart]
) -> None:
    """Change the submissions whose jobs are in `by_job`; write the file only if a submission changes."""

    def changed(old: KeptStarts) -> KeptStarts:
        starts = (change(start, by_job[start.job]) if start.job in by_job else start for start in old.starts)
        return replace(old, starts=tuple(starts))

    old = _read(environment) if by_job else KeptStarts()
    if changed(old) != old:
        _change(environment, changed)


def _change(environment: Mapping[str, str], change: Callable[[KeptStarts], KeptStarts]) -> None:
    """Change the contents of the file; do nothing if it can't be written, because no job depends on it."""
    with contextlib.suppress(OSError):
        file = _file(environment)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.locked(file.with_suffix(".lock"), BUSY_S):
            text = json.dumps(asdict(change(_read(environment))))
            files.put(file, text.encode(), mode=files.PRIVATE)
