"""The current states of jobs, as squeue, Slurm's database, their processes or their logs show."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

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
# slurmctld saves a job some seconds after it has accepted the job. If it is killed before, the job is lost.
_FORGOTTEN = "Slurm has lost it, and given its id to another job: its controller was killed"
_BY_LOG = "as its log says, for Slurm has forgotten the job"
# The last state of a job, by the words after "DUE TO" in slurmstepd's last message in its log. Source:
# src/slurmd/slurmstepd/req.c of Slurm 22.05
_STATES_BY_REASON = {
    "": "CANCELLED",
    "TIME LIMIT": "TIMEOUT",
    "NODE FAILURE": "NODE_FAIL",
    "PREEMPTION": "PREEMPTED",
}
_NEVER_BEGAN = "no longer in the queue, and it has no log: cancelled while it waited, or lost by Slurm"
NEVER_STARTED = "it has never started"
ERRORS = "with errors in the log"  # for a job that ended with status 0 after a program had crashed
AT_END = 200  # lines at the end of a log in which errors are looked for
SAVED = "stopped and saved, with more to do"  # for exit status 75


def time_before(jobs: Iterable[RunJob]) -> datetime:
    """Return a time, for sacct, before the submission of these jobs by any clock of the cluster."""
    return datetime.fromtimestamp(min(job.submitted for job in jobs) - stall.CLOCKS_S, timezone.utc)


def is_local(job: RunJob) -> bool:
    """Return whether a job runs without Slurm; the id of such a job is the time of its start."""
    return bool(job.id) and not job.id.isdecimal()


def current_jobs(
    live: Sequence[RunJob], folders: Mapping[str, Path], environment: Mapping[str, str]
) -> tuple[dict[str, RunJob], dict[str, list[SlurmJob]], list[Problem]]:
    """Return the jobs with their current states and their rows of squeue, both by key, and what went wrong.

    `live` has jobs that had not ended when they were last seen. `folders` has the run folders by the runs'
    names. A job that is still being submitted is excluded.
    """
    seen = [_local_job(job, folders[job.run]) for job in live if is_local(job)]
    rows: dict[str, list[SlurmJob]] = {}
    problems: list[Problem] = []
    of_slurm = [job for job in live if not is_local(job)]
    for cluster in sorted({job.cluster for job in of_slurm}):
        try:
            jobs = [job for job in of_slurm if job.cluster == cluster]
            for job, its_rows in _on_cluster(jobs, cluster, folders, environment):
                seen.append(job)
                rows[job.key] = its_rows
        except SlurmError as error:
            problems += error.problems
    shown_starts.keep_rows(environment, (row for several in rows.values() for row in several))
    now = time.time()
    return {job.key: job._replace(seen=now) for job in seen}, rows, problems


def _on_cluster(
    jobs: Sequence[RunJob], cluster: str, folders: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[tuple[RunJob, list[SlurmJob]]]:
    """Yield each job of a cluster with its state and squeue's rows; exclude a job still being submitted."""
    by_key: dict[str, list[SlurmJob]] = {}  # squeue's rows, by the keys of the jobs
    ids = set()
    for row in squeue_jobs(environment, cluster=cluster):
        by_key.setdefault(key_of(row.command), []).append(row)
        ids.add(str(row.base_id))
    unknown = []
    for job in jobs:
        if rows := by_key.get(job.key):
            yield job_from_rows(job._replace(id=str(rows[0].base_id)), rows, folders[job.run]), rows
        elif job.id in ids:  # the row of this id has another key
            yield job._replace(state=LOST, ended=True, says=_FORGOTTEN), []
        elif job.id:
            unknown.append(job)
        else:
            takes_too_long = time.time() - job.submitted > MAX_SUBMIT_S
            if job.state == LOST or takes_too_long:
                says = "sbatch's answer was lost, and there is no such job in the queue"
                ended = job.state == LOST and takes_too_long
                yield job._replace(state=LOST, ended=ended, says=says), []
    if unknown:
        yield from ((job, []) for job in _from_accounting(unknown, cluster, folders, environment))


def _from_accounting(
    unknown: Sequence[RunJob], cluster: str, folders: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[RunJob]:
    """Yield jobs that squeue no longer knows, with their last states by Slurm's database or their logs."""
    keys = {job.id: job.key for job in unknown}
    by_id: dict[str, list[SlurmJob]] = {}
    by_sacct = sacct_jobs(keys, time_before(unknown), environment, cluster=cluster) or []
    shown_starts.keep_rows(environment, by_sacct)
    for row in by_sacct:
        by_id.setdefault(str(row.base_id), []).append(row)
    for job in unknown:
        rows = by_id.get(job.id, [])
        if rows and all(row.state.ended for row in rows):
            yield job_from_rows(job, rows, folders[job.run])
        else:
            submission = record.read_record(folders[job.run], job.id)
            may_have_begun = not submission or any(path.exists() for path in newest_logs(submission))
            last_state = _state_in_log(submission) if submission and may_have_begun else ""
            says = (_BY_LOG if last_state else "no longer in the queue") if may_have_begun else _NEVER_BEGAN
            yield job._replace(state=last_state, ended=True, says=says)


def _state_in_log(submission: record.Record) -> str:
    """Return a job's last state by Slurm's message in its log; "" without this message, and for an array."""
    message = re.compile(
        rf"slurmstepd\S*: error: \*\*\* JOB {submission.job} ON \S+ CANCELLED AT \S+ (?:DUE TO ([A-Z ]+)|\*)"
    )
    for path in () if submission.array else newest_logs(submission):
        for _, line in reversed(last_start(path, AT_END)):
            if match := message.match(line):
                return _STATES_BY_REASON.get((match[1] or "").strip(), "")
    return ""


def _has_crash_in_log(job: RunJob, folder: Path) -> bool:
    """Return whether the log of a job shows that a program crashed."""
    submission = record.read_record(folder, job.id)
    logs = newest_logs(submission) if submission else ()
    return any(crash_line(last_start(path, AT_END)) for path in logs)


def job_from_rows(job: RunJob, rows: Sequence[SlurmJob], folder: Path) -> RunJob:
    """Return a job with the state in its rows; an array may have a row for each task."""
    if len(rows) == 1:
        (row,) = rows
        says = ""
        if row.state.name == "PENDING":
            says = _why_waiting(row)
        elif _never_started(row):
            says = NEVER_STARTED
        elif row.state.name == "COMPLETED" and _has_crash_in_log(job, folder):
            says = ERRORS
        elif row.state.name == "FAILED" and (row.exit_code or row.signal):
            says = f"signal {row.signal}" if row.signal else _exit_status(row.exit_code)
        return job._replace(state=row.state.name, ended=row.state.ended, says=says)
    counts = Counter[State]()
    for row in rows:
        waiting = indices(row.task) if row.task.startswith("[") else None
        counts[row.state] += sum(map(len, waiting)) if waiting else 1
    live = [state for state in counts if not state.ended]
    # The state of the array: "RUNNING" if a task runs, else that of a waiting or of a failed task
    by_precedence = [*live, *(state for state in counts if state.name != "COMPLETED"), *counts]
    array_state = next((state for state in live if state.name == "RUNNING"), by_precedence[0])
    submission = None if live else record.read_record(folder, job.id)
    if submission and submission.one_training:  # its last task tells how the training ended
        ran = [row for row in rows if not _never_started(row)]
        array_state = max(ran or rows, key=lambda row: row.start.timestamp() if row.start else 0).state
    says = ", ".join(f"{count} {state.words}" for state, count in counts.most_common())
    return job._replace(state=array_state.name, ended=not live, says=says)


def _why_waiting(row: SlurmJob, runs: Mapping[str, str] | None = None) -> str:
    """Return why a job waits; for a dependency, also its unfulfilled conditions and the runs of their jobs.

    `runs` has the names of runs by the ids of their jobs.
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
    """Return the jobs that wait for other jobs, by their keys; their `says` names the runs of the others."""
    single = {key: its_rows[0] for key, its_rows in rows.items() if len(its_rows) == 1}
    dependent = {key: row for key, row in single.items() if row.dependency and row.state.name == "PENDING"}
    runs = {job.id: job.run for job in index.jobs()} if dependent else {}
    return {key: seen[key]._replace(says=_why_waiting(row, runs)) for key, row in dependent.items()}


def _exit_status(status: int) -> str:
    """Return an exit status in words; 75 is that of a training which was stopped with more to do."""
    return SAVED if status == 75 else f"exit status {status}"


def _never_started(row: SlurmJob) -> bool:
    """Return whether a job was cancelled while it waited, such as the last jobs of a chain."""
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
    alive = process.is_alive(submission.process, run_dir) if submission.process else False
    if alive is False or not submission.process:
        return job._replace(state="FAILED", ended=True, says="killed")
    says = "" if alive else f"on {submission.process.host}, as it was last seen"
    return job._replace(state="RUNNING", says=says)


def words(job: RunJob) -> str:
    """Return the state of a job in plain words."""
    if job.state in (SUBMITTING, LOST):
        return "being submitted" if job.state == SUBMITTING else "not known"
    return state_named(job.state).words if job.state else ("submitted" if not job.ended else "ended")
