"""What the jobs of a run had and used, from Slurm's database, the run folder and the training."""

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from sbatchgen.base.errors import DocumentError, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.keys import record
from sbatchgen.check.script.resource_request import UNLIMITED, ResourceRequest
from sbatchgen.jobs.runs import job_log, process, submitted_scripts
from sbatchgen.jobs.runs.events import EVENTS, events, number
from sbatchgen.jobs.runs.index import LOST, SUBMITTING, RunJob
from sbatchgen.jobs.runs.job_log import newest_logs
from sbatchgen.jobs.runs.record import records
from sbatchgen.jobs.runs.seen_jobs import before, is_local
from sbatchgen.jobs.runs.status import RunState, submission
from sbatchgen.jobs.slurm import accounting
from sbatchgen.jobs.slurm.accounting import JobUsage

MOST_JOBS = 5000  # their ids are one argument of sacct, of at most 128 KiB
MOST = 1 << 60  # the largest value of an event; a larger value is damage
_NOT_STARTED = (SUBMITTING, LOST, "PENDING", "CANCELLED")  # jobs without traces: they had no time
# Others may come before a start.
_WHILE_TRAINING = ("train", "epoch", "resources", "save", "preempted", "done")


@frozen(kw_only=True)
class RunUsage:
    """The resources that the jobs of a run had and used."""

    # Each start of each job, the oldest first; at least one, whose time may not be known
    starts: Sequence[JobUsage]
    count: int  # how many starts there were, also those of which nothing else is known
    trained: Sequence[Mapping[str, float]]  # the newest events "resources" of the training's starts
    asked: ResourceRequest | None  # what the script of the newest job asks for, if it is there
    source: str  # what the starts are from: "sacct", or "script" with the run folder
    problems: Sequence[str]  # why something is not known


@record
class TrainingStart:
    """A start of a training, from its events."""

    job: str | None  # "" without Slurm; None for an element of an array, whose job has its own id
    began: float  # in seconds since 1970
    last: float  # the same, of its last event
    used: dict[str, float] = field(default_factory=dict)  # its newest event "resources"


Accounted = Mapping[tuple[str, str], Sequence[JobUsage]]  # what sacct says of jobs, by their clusters and ids


def run_usage(
    state: RunState, environment: Mapping[str, str], asked_for: Accounted | None = None
) -> RunUsage:
    """Return all that is known of a run; `asked_for` may hold what sacct has said of its jobs already."""
    trained, problems = _trained(state)
    if asked_for is None:
        asked_for, unknown = accounted([state], environment)
        problems += unknown
    known = _own(state, asked_for)
    starts: list[JobUsage] = []
    count = 0
    asked, had = None, JobUsage()
    for job, after in zip(state.jobs, [*state.jobs[1:], None], strict=False):
        script = None if is_local(job) else submitted_scripts.parsed(state.run.folder, job.id)
        script = state.plain.script if state.plain else script
        asked = script.resources if script else None
        had, before = _had(asked), len(starts)
        begun = _begun(state, job)
        if rows := known.get((job.cluster, job.id)):  # where Slurm does not count GPUs, those of the script
            starts += [row if row.gpus is not None else replace(row, gpus=had.gpus) for row in rows]
        elif times := _times(state, job, after, trained, begun):
            starts += [replace(had, job=job.id, used_s=math.ceil(seconds)) for seconds in times]
        elif not known and (begun or job.state not in _NOT_STARTED):
            starts.append(replace(had, job=job.id))
        count += max(len(starts) - before, begun)
    return RunUsage(
        starts=starts or [had],
        count=count,
        trained=[start.used for start in trained if start.used],
        asked=asked,
        source="sacct" if known else "script",
        problems=problems,
    )


def _trained(state: RunState) -> tuple[list[TrainingStart], list[str]]:
    """Return the starts of a run's trainings, and why not all can be read."""
    trained: list[TrainingStart] = []
    try:
        trained += _starts(state.run.folder)
        jobs = {job.id for job in state.jobs}
        with contextlib.suppress(OSError):  # an array has folders of its elements, a shared one those of jobs
            for folder in state.run.folder.iterdir():
                if state.point and folder.name != state.point:
                    continue
                if folder.name in jobs if state.run.shared else folder.name.isdecimal():
                    trained += _starts(folder, is_element=not state.run.shared)
    except DocumentError as error:
        return trained, [problem.what for problem in error.problems]
    return trained, []


def _starts(folder: Path, *, is_element: bool = False) -> list[TrainingStart]:
    """Return the starts in the events of a training, the oldest first; none without events."""
    starts: list[TrainingStart] = []
    if not os.path.lexists(folder / EVENTS):
        return []
    for event in events(folder):
        when = _amount(event.get("time"))
        if when is None:
            continue
        if event["event"] == "start":
            job = None if is_element else str(event.get("job", ""))
            starts.append(TrainingStart(job=job, began=when, last=when))
        elif starts and event["event"] in _WHILE_TRAINING:
            starts[-1].last = max(starts[-1].last, when)
            if event["event"] == "resources" and _amount(event.get("seconds")):
                amounts = ((name, _amount(value)) for name, value in event.items())
                starts[-1].used = {name: value for name, value in amounts if value is not None}
    return starts


def accounted(states: Sequence[RunState], environment: Mapping[str, str]) -> tuple[Accounted, list[str]]:
    """Return what sacct says of the jobs of runs, and why it does not; nothing without a database.

    sacct is asked at once for `MOST_JOBS` jobs of a cluster.
    """
    known: dict[tuple[str, str], list[JobUsage]] = {}
    problems: list[str] = []
    of_slurm = [job for state in states for job in state.jobs if job.id and not is_local(job)]
    for cluster in dict.fromkeys(job.cluster for job in of_slurm):
        there = [job for job in of_slurm if job.cluster == cluster]
        for at in range(0, len(there), MOST_JOBS):
            some = there[at : at + MOST_JOBS]
            keys = {job.id: job.key for job in some}
            try:
                rows = accounting.usage(keys, before(some), environment, cluster=cluster)
            except SlurmError as error:
                problems += [problem.what for problem in error.problems]
                break
            for start in rows or ():
                known.setdefault((cluster, start.job), []).append(start)
    return known, problems


def _own(state: RunState, known: Accounted) -> Accounted:
    """Return what sacct says of the jobs of a run, or of a single point or task."""
    if state.plain and (row := state.plain.row):  # sacct may give its array's id in place of its own
        starts = [start for several in known.values() for start in several if start.task == row.task]
        return dict.fromkeys(((job.cluster, row.id) for job in state.jobs), starts) if starts else {}
    keys = [(job.cluster, job.id) for job in state.jobs]
    own = {key: known[key] for key in keys if key in known}
    if state.point:
        first = {each.job: each.first for each in records(state.run.folder)}
        own = {
            key: [start for start in starts if start.task == str(int(state.point) - first.get(start.job, 0))]
            for key, starts in own.items()
        }
    return {key: starts for key, starts in own.items() if starts}


def _begun(state: RunState, job: RunJob) -> int:
    """Return how often a job has begun, as squeue or its log says; 0 if neither does."""
    row = state.now[0] if job is state.last and len(state.now) == 1 else None
    record = submission(state, job.id)
    logs = newest_logs(record, state.point) if record and (state.point or not record.array) else []
    queued = row.restarts + bool(row.node_list or row.used_s) if row else 0
    return max([queued, *map(job_log.starts, logs)])


def _times(
    state: RunState, job: RunJob, after: RunJob | None, trained: Sequence[TrainingStart], begun: int
) -> list[float]:
    """Return how long each start of a job ran, from the run folder and squeue."""
    until = after.submitted if after else math.inf
    meanwhile = [start for start in trained if job.submitted <= start.began < until]
    if not is_local(job):
        starts = [start for start in trained if start.job == job.id]
        starts += [start for start in meanwhile if start.job is None]
        used = [start.last - start.began for start in starts]
        if job is state.jobs[-1] and len(state.now) == 1 and state.now[0].used_s and (used or begun < 2):
            used = [*used[:-1], max(*used[-1:], state.now[0].used_s, 0)]  # squeue: since the newest start
        return used
    if not job.ended:
        return [max(time.time() - job.submitted, 0)]
    with contextlib.suppress(OSError):
        return [max(process.status_file(state.run.folder, job.id).stat().st_mtime - job.submitted, 0)]
    return [start.last - start.began for start in meanwhile]  # it was killed


def _had(asked: ResourceRequest | None) -> JobUsage:
    if asked is None:
        return JobUsage()
    return JobUsage(
        limit_s=asked.time if asked.time != UNLIMITED else None,
        nodes=asked.nodes,
        cpus=asked.cpus_on_node * asked.nodes,
        gpus=asked.gpu_count * asked.nodes,
        memory_mib=asked.mem_on_node or None,
    )


def _amount(value: Any) -> float | None:
    """Return an amount of an event; None if that can't be one."""
    amount = number(value)
    return amount if amount is not None and 0 <= amount < MOST else None
