"""What `status`, `logs` and `cancel` print as JSON, as types.

`diagnose` prints a Diagnosis, and `report` prints a Report.
"""

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
from sbatchgen.jobs.slurm.state import Kind, explain_reason

MAX_BRIEF_RUNS = 10  # how many runs --brief shows, unless more of them wait or run
MAX_BRIEF_CHARS = 160  # characters of a text that --brief shows


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
    state: str  # Slurm's name of the job's state
    ended: bool  # whether the state is final
    says: str  # what the job does, or why it waits
    training: str  # how far the training is
    quiet: str  # which rank hangs, or how long there was no output
    # The numbers of a sweep's points, by their states; null unless the sweep is the only run in question
    points: Mapping[str, str] | None


class BriefStatusOutput(TypedDict):
    """What `status --brief` prints."""

    time: float
    problems: Sequence[Problem]
    runs: Sequence[_BriefRun]  # runs that wait or run, then runs that have ended, the newest first
    left_out: int  # how many more runs have ended


class _Cancelled(TypedDict):
    run: str
    job: str


class CancelOutput(TypedDict):
    """What `cancel` prints."""

    cancelled: Sequence[_Cancelled]  # empty if all jobs had ended before


class LogsOutput(TypedDict):
    """What `logs` prints."""

    run: str
    lines: Sequence[str]  # the last lines of its logs


def cancel_output(jobs: Iterable[tuple[str, str]]) -> CancelOutput:
    """Return the output of `cancel`, from the names of runs and the ids of their jobs."""
    return {"cancelled": [{"run": run, "job": job} for run, job in jobs]}


def logs_output(run: str, text: str) -> LogsOutput:
    """Return the output of `logs`: the lines without colours; of a progress bar, only its last state."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    if not text or text.endswith("\n"):  # the text after the last line break is empty, and no line
        lines.pop()
    return {"run": run, "lines": lines}


def brief_output(states: Sequence[RunState], problems: Sequence[Problem]) -> BriefStatusOutput:
    """Return the output of `status --brief`: all runs that wait or run, and the newest ended runs."""
    active = [state for state in states if state.last_job and not state.last_job.ended]
    ended = [state for state in reversed(states) if state not in active]
    max_ended = max(MAX_BRIEF_RUNS - len(active), 0)
    runs = [_brief_run(state) for state in (*active, *ended[:max_ended])]
    return {"time": time.time(), "problems": problems, "runs": runs, "left_out": len(ended[max_ended:])}


def _brief_run(state: RunState) -> _BriefRun:
    job, sweep = state.last_job, state.sweep
    queue_states = {row.state.name for row in state.queue_rows}
    return {
        "name": state.run.name,
        "folder": state.folder,
        "job": job.id if job else "",
        "state": queue_states.pop() if len(queue_states) == 1 else job.state if job else "",
        "ended": bool(job and job.ended),
        "says": _shortened(overview.headline(state)),
        "training": _shortened(state.progress.says if state.progress else ""),
        "quiet": state.standstill,
        "points": {name: numbers_as_text(numbers) for name, numbers in sweep.numbers_by_state.items()}
        if sweep
        else None,
    }


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_BRIEF_CHARS else f"{text[: MAX_BRIEF_CHARS - 3]}..."


def status_output(states: Sequence[RunState], problems: Sequence[Problem]) -> StatusOutput:
    """Return the output of `status`: the current states of runs."""
    runs: list[_Run] = [
        {
            "name": state.run.name,
            "folder": state.folder if state.plain else str(state.run.folder),
            "jobs": state.jobs,
            "queue": [_queued_job(row) for row in state.queue_rows],
            "training": state.progress,
            "quiet": state.standstill,
            "programs": state.programs,
            "points": [_sweep_point(state.sweep, point) for point in state.sweep.points]
            if state.sweep
            else None,
        }
        for state in states
    ]
    return {"time": time.time(), "problems": problems, "runs": runs}


def _queued_job(row: SlurmJob) -> _Queued:
    # Slurm prints a reason also for jobs that do not wait. While a job runs, this reason is "None".
    is_waiting = row.state.name == "PENDING"
    why = explain_reason(row.reason, row.id) if is_waiting or row.reason != "None" else None
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


def _sweep_point(sweep: SweepState, point: Point) -> _Point:
    return {
        "number": point.number,
        "values": dict(zip(sweep.names, point.values, strict=True)),
        "state": point.state,
        "says": point.says,
        "live": point.is_active,
        "training": point.progress,
    }
