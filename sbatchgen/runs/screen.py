"""Runs as people and programs read them: a table, a page for one run, JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from sbatchgen.plan.sweep import numbers_as_text
from sbatchgen.runs.index import RunJob
from sbatchgen.runs.points import FAILED, NEW, STOPPED, Point, SweepState
from sbatchgen.runs.record import Record
from sbatchgen.runs.status import RunState, words
from sbatchgen.slurm.queue import SlurmJob
from sbatchgen.slurm.reason import reason
from sbatchgen.table import one_line, table

SCHEMA = 1
HEADINGS = ("RUN", "JOB", "STATE", "TRAINING")
MOST_POINTS = 20  # of a sweep, on the page of its run


def overview(states: Sequence[RunState]) -> str:
    """Return a line for each run, the newest last."""
    return table([HEADINGS, *map(_row, states)])


def _row(one: RunState) -> tuple[str, ...]:
    job = one.last
    says = "" if job is None else _state(job, one.now)
    progress = one.progress.says if one.progress else ""
    return tuple(one_line(text) for text in (one.run.name, job.id if job else "", says, progress))


def _state(job: RunJob, now: Sequence[SlurmJob]) -> str:
    """The state of a job: what it does, for how long, where; or why it waits."""
    text = words(job)
    if len(now) != 1 or now[0].state.ended:
        return text if not job.says else f"{text}: {job.says}"
    (row,) = now
    again = f", restart {row.restarts}" if row.restarts else ""
    if row.state.name == "PENDING":
        start = f"; expected {_clock(row.start)}" if row.start else ""
        return f"{text}{again}: {job.says}{start}"
    of = f" of {duration(row.limit_s)}" if row.limit_s is not None else ""
    return f"{text} {duration(row.used_s)}{of} on {row.node_list or '?'}{again}"


def headline(one: RunState) -> str:
    """What its last job does, in a line."""
    job = one.last
    return one_line(f"job {job.id} {_state(job, one.now)}") if job else "no job yet"


def page(one: RunState, records: Sequence[Record], logs: Sequence[str]) -> str:
    """Everything about one run."""
    facts = [("folder", str(one.run.folder))]
    facts += [
        (f"job {job.id or '?'}", f"{_state(job, one.now if job is one.last else ())}; {_when(job)}")
        for job in one.jobs
    ]
    if one.progress:
        facts.append(("training", one.progress.says or one.progress.state))
        if one.progress.reason:
            facts.append(("", one.progress.reason))
        if one.progress.checkpoint:
            facts.append(("checkpoint", one.progress.checkpoint))
    if logs:
        facts.append(("log", logs[-1]))
    if records and (code := records[-1].code):
        commit = f" at {code.at}" if code.commit else ""
        facts.append(("code", f"{code.snapshot or code.folder}{commit}"))
    lines = table((f"  {one_line(name)}", one_line(text)) for name, text in facts)
    sweep = f"\n{_points(one.sweep)}" if one.sweep else ""
    return f"{one_line(one.run.name)}\n{lines}{sweep}"


def _points(sweep: SweepState) -> str:
    """How many points are in which state, and the points, the best first."""
    said = (
        f"{len(numbers):,} {state}" + (f" ({_some(numbers)})" if state in (FAILED, STOPPED, NEW) else "")
        for state, numbers in sweep.counts.items()
    )
    best = sweep.best
    known = {one.number for one in best}
    others = [one for one in sweep.points if one.number not in known]
    rows = [("POINT", *sweep.names, "STATE", "TRAINING")]
    for one in [*best, *others][:MOST_POINTS]:
        says = f"{one.state}: {one.says}" if one.says else one.state
        training = one.progress.says if one.progress else ""
        mark = "  best" if best and one is best[0] else ""
        rows.append(tuple(map(one_line, (str(one.number), *one.values, says, training + mark))))
    more = len(sweep.points) - len(rows) + 1
    rest = f"and {more:,} more: --format json shows all\n" if more else ""
    return f"{len(sweep.points):,} points: {', '.join(said)}\n\n{table(rows)}{rest}"


def _some(numbers: Sequence[int]) -> str:
    """Numbers, as 0-9,12; not all where they are many."""
    text = numbers_as_text(numbers)
    return text if len(text) <= 60 else text[:60].rpartition(",")[0] + ",..."


def as_json(states: Sequence[RunState], problems: Sequence[str]) -> str:
    """The same for programs; an incompatible change raises SCHEMA."""
    found = {
        "schema": SCHEMA,
        "time": time.time(),
        "problems": list(problems),
        "runs": [_object(one) for one in states],
    }
    return json.dumps(found, indent=2) + "\n"


def _object(one: RunState) -> dict[str, Any]:
    return {
        "name": one.run.name,
        "folder": str(one.run.folder),
        "jobs": [{name: getattr(job, name) for name in RunJob._fields[2:]} for job in one.jobs],
        "queue": list(map(_queued, one.now)),
        "training": asdict(one.progress) if one.progress else None,
        "points": [_point(one.sweep, point) for point in one.sweep.points] if one.sweep else None,
    }


def _point(sweep: SweepState, point: Point) -> dict[str, Any]:
    values = dict(zip(sweep.names, point.values, strict=True))
    found = asdict(point)
    return {**found, "values": values, "training": found.pop("progress")}


def _queued(row: SlurmJob) -> dict[str, Any]:
    why = reason(row.reason, row.id)
    return {
        "id": row.id,
        "state": row.state.name,
        "reason": row.reason,
        "kind": why.kind,
        "means": why.means,
        "start": row.start.isoformat() if row.start else None,
        "end": row.end.isoformat() if row.end else None,
        "used_s": row.used_s,
        "limit_s": row.limit_s,
        "nodes": row.nodes,
        "node_list": row.node_list,
        "restarts": row.restarts,
    }


def duration(seconds: int) -> str:
    """H:MM:SS, with days in front as Slurm prints them."""
    days, rest = divmod(seconds, 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"


def seen(states: Sequence[RunState]) -> str:
    """When the states of jobs that had not ended were seen, of the one that was seen first."""
    times = [job.seen for one in states for job in one.jobs if not job.ended]
    return _clock(_local(min(times))) if times else "now"


def _when(job: RunJob) -> str:
    return f"submitted {_local(job.submitted):%Y-%m-%d %H:%M}"


def _local(seconds: float) -> datetime:
    """A time in seconds since 1970 as the user's clock shows it."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone()


def _clock(moment: datetime) -> str:
    today = moment.date() == datetime.now(moment.tzinfo).date()
    return f"{moment:%H:%M}" if today else f"{moment:%Y-%m-%d %H:%M}"
