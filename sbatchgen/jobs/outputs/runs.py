"""What `status` prints; `diagnose` prints a Diagnosis, and `report` a Report."""

import time
from collections.abc import Mapping, Sequence
from typing import TypedDict

from sbatchgen.base.errors import Problem
from sbatchgen.jobs.runs.index import RunJob
from sbatchgen.jobs.runs.points import FAILED, STOPPED, Point, SweepState
from sbatchgen.jobs.runs.program_states import ProgramState
from sbatchgen.jobs.runs.progress import Progress
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.slurm.queue import SlurmJob
from sbatchgen.jobs.slurm.state import Kind, reason


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


def status_output(
    states: Sequence[RunState], problems: Sequence[Problem], *, brief: bool = False
) -> StatusOutput:
    """Return runs as they are now, in `brief` with their last jobs, and the points that have failed."""
    runs: list[_Run] = [
        {
            "name": state.run.name,
            "folder": state.folder if state.plain else str(state.run.folder),
            "jobs": state.jobs[-1:] if brief else state.jobs,
            "queue": [_queued(row) for row in state.now],
            "training": state.progress,
            "quiet": state.quiet,
            "programs": state.programs,
            "points": [
                _point(state.sweep, point)
                for point in state.sweep.points
                if not brief or point.state in (FAILED, STOPPED)
            ]
            if state.sweep
            else None,
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
