"""What `status`, `logs` and `cancel` print; `diagnose` prints a Diagnosis, and `report` a Report."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from sbatchgen.base.errors import Problem
from sbatchgen.base.quoting import numbers_as_text
from sbatchgen.jobs.runs import overview
from sbatchgen.jobs.runs.index import RunJob
from sbatchgen.jobs.runs.points import Point, SweepState
from sbatchgen.jobs.runs.program_states import ProgramState
from sbatchgen.jobs.runs.progress import Progress
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.slurm.queue import SlurmJob
from sbatchgen.jobs.slurm.state import Kind, reason

MOST_BRIEF = 10  # runs in brief, unless more of them wait or run
MOST_CHARACTERS = 160  # of a text in brief


class _Queued(TypedDict):
    id: str
    reason: str
    used_s: int
    limit_s: int | None
    nodes: int
    node_list: str
    restarts: int
    state: str
    kind: Kind | None
    means: str
    start: str | None
    end: str | None
    planned: str


class _Point(TypedDict):
    number: int
    values: Mapping[str, str]
    state: str
    says: str
    live: bool
    training: Progress | None


class _Run(TypedDict):
    name: str
    folder: str
    jobs: Sequence[RunJob]
    queue: Sequence[_Queued]
    training: Progress | None
    quiet: str  # which rank hangs, or how long there was no output
    programs: Sequence[ProgramState]
    points: Sequence[_Point] | None


class StatusOutput(TypedDict):
    """What `status` prints."""

    time: float
    problems: Sequence[Problem]
    runs: Sequence[_Run]


class _BriefRun(TypedDict):
    name: str
    folder: str
    job: str  # the id of its last job
    state: str  # of that job, as Slurm names it
    ended: bool  # whether that is its last state
    says: str  # what the job does, or why it waits
    training: str  # how far the training is
    quiet: str  # which rank hangs, or how long there was no output
    # Of a sweep that was named alone: the numbers of its points, by their states
    points: Mapping[str, str] | None


class BriefStatusOutput(TypedDict):
    """What `status --brief` prints."""

    time: float
    problems: Sequence[Problem]
    runs: Sequence[_BriefRun]  # those that wait or run, then those that ended, the newest first
    left_out: int  # how many more have ended


class _Cancelled(TypedDict):
    run: str
    job: str


class CancelOutput(TypedDict):
    """What `cancel` prints."""

    cancelled: Sequence[_Cancelled]  # none where all have ended before


class LogsOutput(TypedDict):
    """What `logs` prints."""

    run: str
    lines: Sequence[str]  # the last ones


def cancel_output(jobs: Iterable[tuple[str, str]]) -> CancelOutput:
    """Return the runs and the jobs that were cancelled."""
    return {"cancelled": [{"run": run, "job": job} for run, job in jobs]}


def logs_output(run: str, text: str) -> LogsOutput:
    """Return a log without colours; of a line that was written over, as a bar, what was seen last."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return {"run": run, "lines": lines[: -1 if text.endswith("\n") or not text else None]}


def brief_output(states: Sequence[RunState], problems: Sequence[Problem]) -> BriefStatusOutput:
    """Return runs as they are now, in few words: all that wait or run, and the newest that ended."""
    live = [state for state in states if state.last and not state.last.ended]
    others = [state for state in reversed(states) if state not in live]
    most = max(MOST_BRIEF - len(live), 0)
    runs = [_brief(state) for state in (*live, *others[:most])]
    return {"time": time.time(), "problems": problems, "runs": runs, "left_out": len(others[most:])}


def _brief(state: RunState) -> _BriefRun:
    job, sweep = state.last, state.sweep
    rows = [row.state.name for row in state.now]
    return {
        "name": state.run.name,
        "folder": state.folder,
        "job": job.id if job else "",
        "state": rows[0] if len({*rows}) == 1 else job.state if job else "",
        "ended": bool(job and job.ended),
        "says": _cut(overview.headline(state)),
        "training": _cut(state.progress.says if state.progress else ""),
        "quiet": state.quiet,
        "points": {name: numbers_as_text(each) for name, each in sweep.counts.items()} if sweep else None,
    }


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def status_output(states: Sequence[RunState], problems: Sequence[Problem]) -> StatusOutput:
    """Return runs as they are now."""
    runs: list[_Run] = [
        {
            "name": state.run.name,
            "folder": state.folder if state.plain else str(state.run.folder),
            "jobs": state.jobs,
            "queue": [_queued(row) for row in state.now],
            "training": state.progress,
            "quiet": state.quiet,
            "programs": state.programs,
            "points": [_point(state.sweep, point) for point in state.sweep.points] if state.sweep else None,
        }
        for state in states
    ]
    return {"time": time.time(), "problems": problems, "runs": runs}


def _queued(row: SlurmJob) -> _Queued:
    waits = (
        row.state.name == "PENDING"
    )  # Slurm has a reason for other jobs too, which means "none" while they run
    why = reason(row.reason, row.id) if waits or row.reason != "None" else None
    return {
        "id": row.id,
        "state": row.state.name,
        "reason": row.reason,
        "kind": why.kind if why else None,
        "means": why.means if why else "",
        "start": row.start.isoformat() if row.start else None,
        "end": row.end.isoformat() if row.end else None,
        "used_s": row.used_s,
        "limit_s": row.limit_s,
        "nodes": row.nodes,
        "node_list": row.node_list,
        "restarts": row.restarts,
        "planned": row.planned,
    }


def _point(sweep: SweepState, point: Point) -> _Point:
    return {
        "number": point.number,
        "values": dict(zip(sweep.names, point.values, strict=True)),
        "state": point.state,
        "says": point.says,
        "live": point.live,
        "training": point.progress,
    }
