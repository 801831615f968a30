"""The resources that the jobs of a run had and used, from Slurm's database, run folder and training."""

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
from sbatchgen.jobs.runs.seen_jobs import is_local, time_before
from sbatchgen.jobs.runs.status import RunState, submission
from sbatchgen.jobs.slurm import accounting
from sbatchgen.jobs.slurm.accounting import JobUsage

MOST_JOBS = 5000  # jobs in one call of sacct: their ids are one argument, of at most 128 KiB
MAX_AMOUNT = 1 << 60  # the largest value of an event; a larger value is damage
_NOT_STARTED = (SUBMITTING, LOST, "PENDING", "CANCELLED")  # a job in these states may have used no time
# Events of a training in progress; other events may come before its start.
_WHILE_TRAINING = ("train", "epoch", "resources", "save", "preempted", "done")


@frozen(kw_only=True)
class RunUsage:
    """The resources that the jobs of a run had and used."""

    # Each start of each job, the oldest first; at least one, even if its time is not known
    starts: Sequence[JobUsage]
    count: int  # how many starts there were; may be more than `starts` has
    trained: Sequence[Mapping[str, float]]  # the newest event "resources" of each start of the training
    request: ResourceRequest | None  # the request in the newest job's script; None without the script
    source: str  # where the starts come from: "sacct", or "script" for the script and the run folder
    problems: Sequence[str]  # why something is not known


@record
class TrainingStart:
    """A start of a training, from its events."""

    job: str | None  # "" without Slurm; None for an element of an array, whose job has its own id
    began: float  # when it began, in seconds since 1970
    last: float  # when its last event was written, in seconds since 1970
    used: dict[str, float] = field(default_factory=dict)  # its newest event "resources"


Accounted = Mapping[
    tuple[str, str], Sequence[JobUsage]
]  # sacct's answers, by the cluster and the id of a job


def run_usage(state: RunState, environment: Mapping[str, str], by_sacct: Accounted | None = None) -> RunUsage:
    """Return what the jobs of a run had and used; sacct is asked, unless `by_sacct` has its answers."""
    trained, problems = _trained(state)
    if by_sacct is None:
        by_sacct, unread = accounted([state], environment)
        problems += unread
    by_job = _answers_for_run(state, by_sacct)
    starts: list[JobUsage] = []
    count = 0
    request, had = None, JobUsage()
    for job, after in zip(state.jobs, [*state.jobs[1:], None], strict=False):
        script = None if is_local(job) else submitted_scripts.parsed_script(state.run.folder, job.id)
        script = state.plain.script if state.plain else script
        request = script.resources if script else None
        had, count_before = _requested(request), len(starts)
        begun = _begun(state, job)
        if rows := by_job.get((job.cluster, job.id)):  # Slurm may not count GPUs: the script's number then
            starts += [row if row.gpus is not None else replace(row, gpus=had.gpus) for row in rows]
        elif times := _times(state, job, after, trained, begun):
            starts += [replace(had, job=job.id, used_s=math.ceil(seconds)) for seconds in times]
        elif not by_job and (begun or job.state not in _NOT_STARTED):
            starts.append(replace(had, job=job.id))
        count += max(len(starts) - count_before, begun)
    return RunUsage(
        starts=starts or [had],
        count=count,
        trained=[start.used for start in trained if start.used],
        request=request,
        source="sacct" if by_job else "script",
        problems=problems,
    )


def _trained(state: RunState) -> tuple[list[TrainingStart], list[str]]:
    """Return the starts of a run's trainings, and why some of them can't be read."""
    trained: list[TrainingStart] = []
    try:
        trained += _starts(state.run.folder)
        jobs = {job.id for job in state.jobs}
        with contextlib.suppress(OSError):  # an array has a folder for each element, others for jobs
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
    """Return what sacct says of the jobs of runs, and why it could not be asked; nothing without a database.

    One call of sacct asks about at most `MOST_JOBS` jobs of a cluster.
    """
    answers: dict[tuple[str, str], list[JobUsage]] = {}
    problems: list[str] = []
    of_slurm = [job for state in states for job in state.jobs if job.id and not is_local(job)]
    for cluster in dict.fromkeys(job.cluster for job in of_slurm):
        its_jobs = [job for job in of_slurm if job.cluster == cluster]
        for at in range(0, len(its_jobs), MOST_JOBS):
            batch = its_jobs[at : at + MOST_JOBS]
            keys = {job.id: job.key for job in batch}
            try:
                rows = accounting.usage(keys, time_before(batch), environment, cluster=cluster)
            except SlurmError as error:
                problems += [problem.what for problem in error.problems]
                break
            for start in rows or ():
                answers.setdefault((cluster, start.job), []).append(start)
    return answers, problems


def _answers_for_run(state: RunState, answers: Accounted) -> Accounted:
    """Return the answers of sacct for the jobs of a run, or for a single point or task."""
    if state.plain and (row := state.plain.row):  # sacct may report the id of the array, not of the task
        starts = [start for several in answers.values() for start in several if start.task == row.task]
        return dict.fromkeys(((job.cluster, row.id) for job in state.jobs), starts) if starts else {}
    keys = [(job.cluster, job.id) for job in state.jobs]
    own = {key: answers[key] for key in keys if key in answers}
    if state.point:
        first = {submitted.job: submitted.first for submitted in records(state.run.folder)}
        own = {
            key: [start for start in starts if start.task == str(int(state.point) - first.get(start.job, 0))]
            for key, starts in own.items()
        }
    return {key: starts for key, starts in own.items() if starts}


def _begun(state: RunState, job: RunJob) -> int:
    """Return how often a job has started, as squeue or its log shows; 0 if neither shows it."""
    row = state.now[0] if job is state.last and len(state.now) == 1 else None
    record = submission(state, job.id)
    logs = newest_logs(record, state.point) if record and (state.point or not record.array) else []
    queued = row.restarts + bool(row.node_list or row.used_s) if row else 0
    return max([queued, *map(job_log.starts, logs)])


def _times(
    state: RunState, job: RunJob, after: RunJob | None, trained: Sequence[TrainingStart], begun: int
) -> list[float]:
    """Return how many seconds each start of a job ran, from the run folder and squeue.

    `after` is the next job of the run, and `begun` how often this job has started.
    """
    until = after.submitted if after else math.inf
    meanwhile = [start for start in trained if job.submitted <= start.began < until]
    if not is_local(job):
        starts = [start for start in trained if start.job == job.id]
        starts += [start for start in meanwhile if start.job is None]
        used = [start.last - start.began for start in starts]
        if job is state.jobs[-1] and len(state.now) == 1 and state.now[0].used_s and (used or begun < 2):
            since_newest = state.now[0].used_s  # squeue counts from the newest start
            used = [*used[:-1], max(*used[-1:], since_newest, 0)]
        return used
    if not job.ended:
        return [max(time.time() - job.submitted, 0)]
    with contextlib.suppress(OSError):
        return [max(process.status_file(state.run.folder, job.id).stat().st_mtime - job.submitted, 0)]
    return [start.last - start.began for start in meanwhile]  # it was killed


def _requested(request: ResourceRequest | None) -> JobUsage:
    """Return what a script asks for, as the usage of a job whose time is not known."""
    if request is None:
        return JobUsage()
    return JobUsage(
        limit_s=request.time if request.time != UNLIMITED else None,
        nodes=request.nodes,
        cpus=request.cpus_on_node * request.nodes,
        gpus=request.gpu_count * request.nodes,
        memory_mib=request.mem_on_node or None,
    )


def _amount(value: Any) -> float | None:
    """Return an amount in an event; None if the value can't be an amount."""
    amount = number(value)
    return amount if amount is not None and 0 <= amount < MAX_AMOUNT else None
