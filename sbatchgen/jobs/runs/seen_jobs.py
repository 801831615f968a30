"""Finds the current states of jobs, for `status`: by squeue, Slurm's database, their processes or their logs.

A job of Slurm is first looked up in squeue. If squeue does not know it any more, sacct is asked, and last the
log is read. A job without Slurm is looked up as a process.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.errors import Problem, SlurmError
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.runs import process, record, shown_starts, stall
from sbatchgen.jobs.runs.failure import crash_line
from sbatchgen.jobs.runs.index import LOST, SUBMITTING, Index, RunJob
from sbatchgen.jobs.runs.job_log import last_start, newest_logs
from sbatchgen.jobs.slurm.accounting import sacct_jobs
from sbatchgen.jobs.slurm.queue import SlurmJob, key_of, squeue_jobs
from sbatchgen.jobs.slurm.state import State, explain_reason, state_named

MAX_SUBMIT_S = 900.0  # a submission that takes longer was killed
# Words about the states of jobs.
# slurmctld saves a job some seconds after it has accepted the job. If it is killed before, the job is lost.
_SAYS_FORGOTTEN = "Slurm has lost it, and given its id to another job: its controller was killed"
_SAYS_BY_LOG = "as its log says, for Slurm has forgotten the job"
# The last state of a job, by the words after "DUE TO" in slurmstepd's last message in its log: "slurmstepd:
# error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-02T09:30:00 DUE TO TIME LIMIT ***". Source:
# src/slurmd/slurmstepd/req.c of Slurm 22.05
_STATES_BY_REASON = {
    "": "CANCELLED",
    "TIME LIMIT": "TIMEOUT",
    "NODE FAILURE": "NODE_FAIL",
    "PREEMPTION": "PREEMPTED",
}
_SAYS_NEVER_BEGAN = "no longer in the queue, and it has no log: cancelled while it waited, or lost by Slurm"
NEVER_STARTED = "it has never started"
ENDED_WITH_ERRORS = "with errors in the log"  # for a job that ended with status 0 after a program had crashed
MAX_END_LINES = 200  # lines at the end of a log in which errors are looked for
SAVED = "stopped and saved, with more to do"  # for a job that ended with exit status 75


def time_before(jobs: Iterable[RunJob]) -> datetime:
    """Return a time before which none of these jobs was submitted, by any clock of the cluster; for sacct."""
    first = min(job.submitted for job in jobs)
    return datetime.fromtimestamp(first - stall.MAX_CLOCK_DIFFERENCE_S, timezone.utc)


def is_local(job: RunJob) -> bool:
    """Return whether a job runs without Slurm; the id of such a job is the time of its start."""
    return bool(job.id) and not job.id.isdecimal()


class CurrentJobs(NamedTuple):
    """Jobs with their current states."""

    jobs: dict[str, RunJob]  # by their keys
    rows: dict[str, list[SlurmJob]]  # squeue's rows of each job, by the job's key
    problems: list[Problem]  # why Slurm could not be asked


def current_jobs(
    unfinished: Sequence[RunJob], folders: Mapping[str, Path], environment: Mapping[str, str]
) -> CurrentJobs:
    """Return the current states of jobs that had not ended when they were last seen.

    `folders` has the run folders by the runs' names. A job that is still being submitted is excluded.
    """
    seen = [_local_job(job, folders[job.run]) for job in unfinished if is_local(job)]
    rows: dict[str, list[SlurmJob]] = {}
    problems: list[Problem] = []
    of_slurm = [job for job in unfinished if not is_local(job)]
    for cluster in sorted({job.cluster for job in of_slurm}):
        try:
            jobs = [job for job in of_slurm if job.cluster == cluster]
            for job, its_rows in _jobs_on_cluster(jobs, cluster, folders, environment):
                seen.append(job)
                rows[job.key] = its_rows
        except SlurmError as error:
            problems += error.problems
    shown_starts.keep_rows(environment, (row for several in rows.values() for row in several))
    now = time.time()
    return CurrentJobs({job.key: job._replace(seen=now) for job in seen}, rows, problems)


def _jobs_on_cluster(
    jobs: Sequence[RunJob], cluster: str, folders: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[tuple[RunJob, list[SlurmJob]]]:
    """Yield each job of a cluster with its current state and squeue's rows; raises SlurmError.

    A job that is still being submitted is excluded.
    """
    by_key: dict[str, list[SlurmJob]] = {}  # squeue's rows, by the keys of the jobs
    ids = set()
    for row in squeue_jobs(environment, cluster=cluster):
        by_key.setdefault(key_of(row.command), []).append(row)
        ids.add(str(row.base_id))
    unknown_to_squeue = []
    for job in jobs:
        if rows := by_key.get(job.key):
            yield job_from_rows(job._replace(id=str(rows[0].base_id)), rows, folders[job.run]), rows
        elif job.id in ids:  # a row has this id, but the key of another job
            yield job._replace(state=LOST, ended=True, says=_SAYS_FORGOTTEN), []
        elif job.id:
            unknown_to_squeue.append(job)
        else:
            is_overdue = time.time() - job.submitted > MAX_SUBMIT_S
            if job.state == LOST or is_overdue:
                says = "sbatch's answer was lost, and there is no such job in the queue"
                has_ended = job.state == LOST and is_overdue  # before that, slurmctld may still show it
                yield job._replace(state=LOST, ended=has_ended, says=says), []
    if unknown_to_squeue:
        last_seen = _jobs_from_accounting(unknown_to_squeue, cluster, folders, environment)
        yield from ((job, []) for job in last_seen)


def _jobs_from_accounting(
    jobs: Sequence[RunJob], cluster: str, folders: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[RunJob]:
    """Yield jobs that squeue no longer knows, with their last states by Slurm's database or their logs."""
    keys = {job.id: job.key for job in jobs}
    by_id: dict[str, list[SlurmJob]] = {}
    by_sacct = sacct_jobs(keys, time_before(jobs), environment, cluster=cluster) or []
    shown_starts.keep_rows(environment, by_sacct)
    for row in by_sacct:
        by_id.setdefault(str(row.base_id), []).append(row)
    for job in jobs:
        rows = by_id.get(job.id, [])
        if rows and all(row.state.ended for row in rows):
            yield job_from_rows(job, rows, folders[job.run])
        else:
            submission = record.read_record(folders[job.run], job.id)
            may_have_begun = not submission or any(path.exists() for path in newest_logs(submission))
            last_state = _state_in_log(submission) if submission and may_have_begun else ""
            says = _SAYS_BY_LOG if last_state else "no longer in the queue"
            says = says if may_have_begun else _SAYS_NEVER_BEGAN
            yield job._replace(state=last_state, ended=True, says=says)


def _state_in_log(submission: record.Record) -> str:
    """Return the last state of a job, as Slurm's message in its log shows; "" without such a message.

    Return "" also for an array, whose tasks may have ended in different ways.
    """
    message = re.compile(
        rf"slurmstepd\S*: error: \*\*\* JOB {submission.job} ON \S+ CANCELLED AT \S+ (?:DUE TO ([A-Z ]+)|\*)"
    )
    for path in () if submission.array else newest_logs(submission):
        for _, line in reversed(last_start(path, MAX_END_LINES)):
            if match := message.match(line):
                return _STATES_BY_REASON.get((match[1] or "").strip(), "")
    return ""


def _has_crash_in_log(job: RunJob, folder: Path) -> bool:
    """Return whether the log of a job shows that a program crashed; `folder` is its run folder."""
    submission = record.read_record(folder, job.id)
    logs = newest_logs(submission) if submission else ()
    return any(crash_line(last_start(path, MAX_END_LINES)) for path in logs)


def job_from_rows(job: RunJob, rows: Sequence[SlurmJob], folder: Path) -> RunJob:
    """Return a job with the state that its rows of squeue or sacct show; an array has several rows.

    `folder` is its run folder.
    """
    if len(rows) == 1:
        (row,) = rows
        says = ""
        if row.state.name == "PENDING":
            says = _why_waiting(row)
        elif _never_started(row):
            says = NEVER_STARTED
        elif row.state.name == "COMPLETED" and _has_crash_in_log(job, folder):
            says = ENDED_WITH_ERRORS
        elif row.state.name == "FAILED" and (row.exit_code or row.signal):
            says = f"signal {row.signal}" if row.signal else _exit_status(row.exit_code)
        return job._replace(state=row.state.name, ended=row.state.ended, says=says)
    counts = Counter[State]()
    for row in rows:
        waiting = indices(row.task) if row.task.startswith("[") else None
        counts[row.state] += sum(map(len, waiting)) if waiting else 1
    unfinished = [state for state in counts if not state.ended]
    # The state of the array: "RUNNING" if a task runs, else the state of a waiting or a failed task
    by_precedence = [*unfinished, *(state for state in counts if state.name != "COMPLETED"), *counts]
    array_state = next((state for state in unfinished if state.name == "RUNNING"), by_precedence[0])
    submission = None if unfinished else record.read_record(folder, job.id)
    if submission and submission.is_one_training:  # the last task that ran tells how the training ended
        ran = [row for row in rows if not _never_started(row)]
        array_state = max(ran or rows, key=lambda row: row.start.timestamp() if row.start else 0).state
    says = ", ".join(f"{count} {state.words}" for state, count in counts.most_common())
    return job._replace(state=array_state.name, ended=not unfinished, says=says)


def _why_waiting(row: SlurmJob, runs: Mapping[str, str] | None = None) -> str:
    """Return why a job waits, such as "it waits for another job: afterok 4711 of run ddp".

    For a dependency, the words name its unfulfilled conditions. `runs` has the names of runs by the ids of
    their jobs, so that the words also name the runs of the other jobs.
    """
    says = explain_reason(row.reason, row.id).means
    if row.reason != "Dependency":
        return says
    # The conditions are joined, as in "afterok:4711(unfulfilled),afterany:4712(fulfilled)".
    unfulfilled = re.findall(r"(\w+):([\d_*]+)\S*?\(unfulfilled\)", row.dependency)
    conditions = ((type_, job, (runs or {}).get(job.partition("_")[0])) for type_, job in unfulfilled)
    others = ", ".join(f"{type_} {job}" + (f" of run {run}" if run else "") for type_, job, run in conditions)
    return f"{says}: {others}" if others else says


def dependent_jobs(
    seen: Mapping[str, RunJob], rows: Mapping[str, Sequence[SlurmJob]], index: Index
) -> dict[str, RunJob]:
    """Return the jobs that wait for other jobs, by their keys, with the runs of the other jobs in `says`."""
    single = {key: its_rows[0] for key, its_rows in rows.items() if len(its_rows) == 1}
    dependent = {key: row for key, row in single.items() if row.dependency and row.state.name == "PENDING"}
    runs = {job.id: job.run for job in index.jobs()} if dependent else {}
    return {key: seen[key]._replace(says=_why_waiting(row, runs)) for key, row in dependent.items()}


def _exit_status(status: int) -> str:
    """Return an exit status in words; 75 means that the training was stopped with more to do."""
    return SAVED if status == 75 else f"exit status {status}"


def _never_started(row: SlurmJob) -> bool:
    """Return whether a job was cancelled before its first start, such as the last jobs of a chain."""
    return row.state.name == "CANCELLED" and not (row.node_list or row.used_s or row.restarts)


def _local_job(job: RunJob, run_dir: Path) -> RunJob:
    """Return a job without Slurm with its current state."""
    submission = record.read_record(run_dir, job.id)
    status = process.exit_status(run_dir, job.id)
    if status is not None:
        name = "FAILED" if status else "COMPLETED"
        return job._replace(state=name, ended=True, says=_exit_status(status) if status else "")
    if submission is None:
        is_removed = not run_dir.exists()
        says = "its run folder is gone" if is_removed else "its record can't be read"
        return job._replace(state="" if is_removed else job.state, ended=is_removed, says=says)
    is_alive = process.is_alive(submission.process, run_dir) if submission.process else False
    if is_alive is False or not submission.process:
        return job._replace(state="FAILED", ended=True, says="killed")
    says = "" if is_alive else f"on {submission.process.host}, as it was last seen"
    return job._replace(state="RUNNING", says=says)


def state_in_words(job: RunJob) -> str:
    """Return the state of a job in plain words."""
    if job.state in (SUBMITTING, LOST):
        return "being submitted" if job.state == SUBMITTING else "not known"
    return state_named(job.state).words if job.state else ("submitted" if not job.ended else "ended")
