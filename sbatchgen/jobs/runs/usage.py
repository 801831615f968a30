"""Collects the resources that the jobs of a run had and used, for `report`.

They come from Slurm's database. Without a database, they come from the scripts and from the events that the
training writes into the run folder.
"""

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
from sbatchgen.jobs.runs.events import EVENTS, as_number, events
from sbatchgen.jobs.runs.index import LOST, SUBMITTING, RunJob
from sbatchgen.jobs.runs.job_log import newest_logs
from sbatchgen.jobs.runs.record import records
from sbatchgen.jobs.runs.seen_jobs import is_local, time_before
from sbatchgen.jobs.runs.status import RunState, submission
from sbatchgen.jobs.slurm import accounting
from sbatchgen.jobs.slurm.accounting import JobUsage

MAX_JOBS_IN_CALL = 5000  # jobs in one call of sacct: their ids are one argument, of at most 128 KiB
MAX_AMOUNT = 1 << 60  # the largest value in an event; an event with a larger value is damaged
_MAY_NOT_HAVE_STARTED = (SUBMITTING, LOST, "PENDING", "CANCELLED")  # states of jobs
# Events of a training in progress. The other events may come before its start.
_TRAINING_EVENTS = ("train", "epoch", "resources", "save", "preempted", "done")


@frozen(kw_only=True)
class RunUsage:
    """The resources that the jobs of a run had and used."""

    # Each known start of each job, the oldest first. If no start is known, a start of unknown length with the
    # resources that the newest job asked for
    starts: Sequence[JobUsage]
    start_count: int  # how many starts there were, as logs or squeue show; `starts` may have fewer
    # The newest event "resources" of each start of the training; its numbers are sums since this start
    trainings: Sequence[Mapping[str, float]]
    request: ResourceRequest | None  # the request in the newest job's script; None without the script
    source: str  # where the starts come from: "sacct", or "script" for the script and the run folder
    problems: Sequence[str]  # why something is not known


@record
class TrainingStart:
    """A start of a training, as its events show; times are in seconds since 1970."""

    # The job's id; "" without Slurm; None for an element of an array, which has an id of its own
    job: str | None
    began: float  # when it began
    last_event: float  # when its last event was written
    resources: dict[str, float] = field(default_factory=dict)  # the numbers in its newest event "resources"


# The starts that sacct knows, by the cluster and the id of the job; none for a job that has not run
SacctStarts = Mapping[tuple[str, str], Sequence[JobUsage]]


def run_usage(
    state: RunState, environment: Mapping[str, str], by_sacct: SacctStarts | None = None
) -> RunUsage:
    """Return the resources that the jobs of a run had and used.

    sacct is asked, unless `by_sacct` has its answers.
    """
    training_starts, problems = _training_starts(state)
    if by_sacct is None:
        by_sacct, sacct_problems = starts_by_sacct([state], environment)
        problems += sacct_problems
    by_job = _answers_for_run(state, by_sacct)
    starts: list[JobUsage] = []
    total_count = 0
    request, requested = None, JobUsage()
    for job, next_job in zip(state.jobs, [*state.jobs[1:], None], strict=False):
        script = None if is_local(job) else submitted_scripts.parsed_script(state.run.folder, job.id)
        script = state.plain.script if state.plain else script
        request = script.resources if script else None
        requested, earlier_starts = _requested_usage(request), len(starts)
        start_count = _start_count(state, job)
        key = (job.cluster, job.id)
        if rows := by_job.get(key):
            # Slurm may not count GPUs. Then the number of GPUs comes from the script.
            starts += [row if row.gpus is not None else replace(row, gpus=requested.gpus) for row in rows]
        elif times := _running_times_s(state, job, next_job, training_starts, start_count):
            starts += [replace(requested, job=job.id, used_s=math.ceil(seconds)) for seconds in times]
        elif key not in by_job and (start_count or job.state not in _MAY_NOT_HAVE_STARTED):
            starts.append(replace(requested, job=job.id))  # without a time
        total_count += max(len(starts) - earlier_starts, start_count)
    return RunUsage(
        starts=starts or [requested],
        start_count=total_count,
        trainings=[start.resources for start in training_starts if start.resources],
        request=request,
        source="sacct" if any(by_job.values()) else "script",
        problems=problems,
    )


def _training_starts(state: RunState) -> tuple[list[TrainingStart], list[str]]:
    """Return the starts of a run's trainings, and why some of them could not be read."""
    starts: list[TrainingStart] = []
    try:
        starts += _starts_in_folder(state.run.folder)
        job_ids = {job.id for job in state.jobs}
        with contextlib.suppress(OSError):
            for folder in state.run.folder.iterdir():
                if state.point and folder.name != state.point:
                    continue
                # A run folder that several runs share has a folder for each job; else it may have a folder
                # for each element of an array.
                is_of_run = folder.name in job_ids if state.run.shared else folder.name.isdecimal()
                if is_of_run:
                    starts += _starts_in_folder(folder, is_element=not state.run.shared)
    except DocumentError as error:
        return starts, [problem.what for problem in error.problems]
    return starts, []


def _starts_in_folder(folder: Path, *, is_element: bool = False) -> list[TrainingStart]:
    """Return the starts in the events of a training, the oldest first; none without events."""
    starts: list[TrainingStart] = []
    if not os.path.lexists(folder / EVENTS):
        return []
    for event in events(folder):
        time_s = _amount_or_none(event.get("time"))
        if time_s is None:
            continue
        if event["event"] == "start":
            job = None if is_element else str(event.get("job", ""))
            starts.append(TrainingStart(job=job, began=time_s, last_event=time_s))
        elif starts and event["event"] in _TRAINING_EVENTS:
            starts[-1].last_event = max(starts[-1].last_event, time_s)
            if event["event"] == "resources" and _amount_or_none(event.get("seconds")):
                amounts = ((name, _amount_or_none(value)) for name, value in event.items())
                starts[-1].resources = {name: value for name, value in amounts if value is not None}
    return starts


def starts_by_sacct(
    states: Sequence[RunState], environment: Mapping[str, str]
) -> tuple[SacctStarts, list[str]]:
    """Return the starts of the jobs of runs as sacct reports them, and why sacct could not be asked.

    Without a database, both are empty. A call of sacct asks about at most MAX_JOBS_IN_CALL jobs of a cluster.
    """
    answers: dict[tuple[str, str], list[JobUsage]] = {}
    problems: list[str] = []
    of_slurm = [job for state in states for job in state.jobs if job.id and not is_local(job)]
    for cluster in dict.fromkeys(job.cluster for job in of_slurm):
        jobs = [job for job in of_slurm if job.cluster == cluster]
        for first in range(0, len(jobs), MAX_JOBS_IN_CALL):
            batch = jobs[first : first + MAX_JOBS_IN_CALL]
            keys = {job.id: job.key for job in batch}
            try:
                rows = accounting.job_usages(
                    keys, time_before(batch), environment, cluster=cluster, with_unstarted=True
                )
            except SlurmError as error:
                problems += [problem.what for problem in error.problems]
                break
            for start in rows or ():
                starts = answers.setdefault((cluster, start.job), [])
                starts += [start] if start.used_s else []
    return answers, problems


def _answers_for_run(state: RunState, answers: SacctStarts) -> SacctStarts:
    """Return those of sacct's answers that are about a run, or about the point or task of this state.

    Without a start of the point or task, the result is empty.
    """
    if state.plain and (row := state.plain.row):  # sacct may report the id of the array, not of the task
        starts = [start for several in answers.values() for start in several if start.task == row.task]
        return dict.fromkeys(((job.cluster, row.id) for job in state.jobs), starts) if starts else {}
    keys = [(job.cluster, job.id) for job in state.jobs]
    of_run = {key: answers[key] for key in keys if key in answers}
    if state.point:
        # Task 0 of a job runs the point `first_point`, and each next task the next point.
        first_point = {submitted.job: submitted.first for submitted in records(state.run.folder)}
        of_run = {
            key: [
                start
                for start in starts
                if start.task == str(int(state.point) - first_point.get(start.job, 0))
            ]
            for key, starts in of_run.items()
        }
        return of_run if any(of_run.values()) else {}
    return of_run


def _start_count(state: RunState, job: RunJob) -> int:
    """Return how often a job has started, as squeue or its log shows; 0 if neither shows a start."""
    row = state.queue_rows[0] if job is state.last_job and len(state.queue_rows) == 1 else None
    record = submission(state, job.id)
    logs = newest_logs(record, state.point) if record and (state.point or not record.array) else []
    by_squeue = row.restarts + bool(row.node_list or row.used_s) if row else 0
    return max([by_squeue, *map(job_log.start_count, logs)])


def _running_times_s(
    state: RunState,
    job: RunJob,
    next_job: RunJob | None,
    training_starts: Sequence[TrainingStart],
    start_count: int,
) -> list[float]:
    """Return how many seconds each start of a job ran, from the run folder and squeue.

    `next_job` is the next job of the run, or None. `start_count` is the number of starts of this job.
    """
    until = next_job.submitted if next_job else math.inf
    before_next = [start for start in training_starts if job.submitted <= start.began < until]
    if not is_local(job):
        starts = [start for start in training_starts if start.job == job.id]
        starts += [start for start in before_next if start.job is None]
        times = [start.last_event - start.began for start in starts]
        rows = state.queue_rows if job is state.jobs[-1] else ()
        in_queue_s = rows[0].used_s if len(rows) == 1 else 0  # how long the newest start has run, by squeue
        # If earlier starts left no events, the list would lack their times, so it stays empty.
        if in_queue_s and (times or start_count < 2):
            times = [*times[:-1], max(*times[-1:], in_queue_s, 0)]
        return times
    if not job.ended:
        return [max(time.time() - job.submitted, 0)]
    with contextlib.suppress(OSError):
        return [max(process.status_file(state.run.folder, job.id).stat().st_mtime - job.submitted, 0)]
    return [start.last_event - start.began for start in before_next]  # the job was killed


def _requested_usage(request: ResourceRequest | None) -> JobUsage:
    """Return the resources that a script asks for, as the usage of a job with an unknown running time."""
    if request is None:
        return JobUsage()
    return JobUsage(
        limit_s=request.time if request.time != UNLIMITED else None,
        nodes=request.nodes,
        cpus=request.cpus_on_node * request.nodes,
        gpus=request.gpu_count * request.nodes,
        memory_mib=request.mem_on_node or None,
    )


def _amount_or_none(value: Any) -> float | None:
    """Return an amount in an event; None if the value can't be an amount."""
    amount = as_number(value)
    return amount if amount is not None and 0 <= amount < MAX_AMOUNT else None
