"""When jobs were shown to start, and when they started: a file beside the index, for this user only.

A dependency, --begin or a hold keeps a job from being eligible: that wait does not count as an error.
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
from sbatchgen.jobs.runs.index import BUSY_S, place
from sbatchgen.jobs.runs.record import Record, as_typed
from sbatchgen.jobs.slurm.queue import SlurmJob

T = TypeVar("T")
FILE, MAX_BYTES = "starts.json", 1 << 22
OFFER_S = 1800.0  # how long what was shown of a command counts for its submission
KEPT = 200  # submissions, and as many offers
LAST, LEAST = 10, 5  # starts that are compared, and how few say nothing
NEAR_S = 1200.0
_ADDED = {"--output", "--snapshot-dir"}


@frozen(kw_only=True)
class ShownStart:
    """A start that was shown; times are in seconds since 1970."""

    kind: str  # "hole", "plan" or "bound"
    start: float
    at: float  # when it was shown
    words: tuple[str, ...] = ()  # of the command, if that was not submitted yet


@frozen(kw_only=True)
class KeptStart:
    """A submission, with what was shown of its start, and what came; times are 0 before they are known."""

    job: str
    submitted: float
    shown: tuple[ShownStart, ...] = ()
    eligible: float = 0.0  # when nothing but room kept it from starting
    started: float = 0.0

    def late_s(self, kind: str) -> float | None:
        """Return how much longer it waited, once it was eligible, than this kind says; None if not known."""
        waits = (max(0.0, each.start - self.submitted) for each in self.shown if each.kind == kind)
        shown = next(waits, None) if self.started else None
        return None if shown is None else self.started - max(self.eligible, self.submitted) - shown


@frozen(kw_only=True)
class KeptStarts:
    """All that is kept, the oldest first."""

    offers: tuple[ShownStart, ...] = ()
    starts: tuple[KeptStart, ...] = ()


def offer(environment: Mapping[str, str], offers: Iterable[tuple[Sequence[str], str, float]]) -> None:
    """Keep what was shown of commands, each with the kind and the start."""
    now = time.time()
    shown = [
        ShownStart(kind=kind, start=start, words=_words(argv), at=now) for argv, kind, start in offers if argv
    ]
    if shown:
        _change(environment, lambda old: replace(old, offers=(*old.offers, *shown)[-KEPT:]))


def submitted(environment: Mapping[str, str], record: Record) -> None:
    """Keep a submission, and what was shown of its command a moment ago."""
    words = _words(record.command)

    def with_it(old: KeptStarts) -> KeptStarts:
        fresh = [each for each in old.offers if each.at > record.submitted - OFFER_S]
        its = {each.kind: each for each in fresh if words and each.words == words}
        start = KeptStart(job=record.job, submitted=record.submitted, shown=(*its.values(),))
        offers = tuple(each for each in fresh if each.words != words)  # of a chain the first job alone
        return KeptStarts(offers=offers, starts=(*old.starts, start)[-KEPT:])

    _change(environment, with_it)


def seen(environment: Mapping[str, str], rows: Iterable[SlurmJob]) -> None:
    """Keep the first plan of jobs that wait, and when jobs started, as squeue or sacct shows them."""
    by_job: dict[str, SlurmJob] = {}
    for row in rows:  # of an array, its first task counts
        first = by_job.setdefault(str(row.job), row)
        by_job[str(row.job)] = min(first, row, key=_is_later)
    _change_each(environment, by_job, _seen)


def planned(environment: Mapping[str, str], starts: Mapping[str, float]) -> None:
    """Keep the plans of jobs that wait, by their ids, as they were shown; of each job the first one."""
    _change_each(environment, {job.partition("_")[0]: at for job, at in starts.items()}, _with_plan)


def _is_later(row: SlurmJob) -> tuple[bool, float]:
    return row.state.name == "PENDING", row.start.timestamp() if row.start else math.inf


def comparison(environment: Mapping[str, str], kind: str) -> str:
    """Return how true what was shown has been; "" where too few starts say so."""
    late = [each.late_s(kind) for each in _read(environment).starts]
    known = [each for each in late if each is not None][-LAST:]
    if len(known) < LEAST:
        return ""
    near = sum(abs(each) <= NEAR_S for each in known)
    how = f"{near} of your last {len(known)} starts of this kind"
    return f"{how} came within {NEAR_S / 60:.0f} minutes of what was shown"


def _seen(start: KeptStart, row: SlurmJob) -> KeptStart:
    at = row.start.timestamp() if row.start else 0.0
    if row.state.name == "PENDING":
        return _with_plan(start, at) if at and row.planned else start
    if start.started or not at or row.restarts or not row.node_list:
        return start  # which has not started, or not for the first time
    return replace(start, started=at, eligible=row.eligible.timestamp() if row.eligible else 0.0)


def _with_plan(start: KeptStart, at: float) -> KeptStart:
    if start.started or any(each.kind == "plan" for each in start.shown):
        return start
    return replace(start, shown=(*start.shown, ShownStart(kind="plan", start=at, at=time.time())))


def _words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command after its verb, without the words that a submission adds."""
    pairs = zip(("", *command[2:]), command[2:], strict=False)
    return tuple(sorted(word for pair in pairs if not {*pair} & _ADDED for word in pair[1:]))


def _file(environment: Mapping[str, str]) -> Path:
    return place(environment).with_name(FILE)


def _read(environment: Mapping[str, str]) -> KeptStarts:
    """Return what is kept; nothing where it can't be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        kept: KeptStarts = as_typed(json.loads(files.read_own(_file(environment), MAX_BYTES)), KeptStarts)
        return kept
    return KeptStarts()


def _change_each(
    environment: Mapping[str, str], known: Mapping[str, T], change: Callable[[KeptStart, T], KeptStart]
) -> None:
    """Change the submissions of which something is known; write nothing where that changes nothing."""

    def changed(old: KeptStarts) -> KeptStarts:
        starts = (change(each, known[each.job]) if each.job in known else each for each in old.starts)
        return replace(old, starts=tuple(starts))

    old = _read(environment) if known else KeptStarts()
    if changed(old) != old:
        _change(environment, changed)


def _change(environment: Mapping[str, str], change: Callable[[KeptStarts], KeptStarts]) -> None:
    """Write what is kept after a change; what can't be written is not kept, for no job depends on it."""
    with contextlib.suppress(OSError):
        file = _file(environment)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.locked(file.with_suffix(".lock"), BUSY_S):
            text = json.dumps(asdict(change(_read(environment))))
            files.put(file, text.encode(), mode=files.PRIVATE)
