"""Collects the facts about the end of a job, for its diagnosis: from Slurm, its logs and its run folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.errors import Problem, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs import program_states
from sbatchgen.jobs.runs.index import LOST, RunJob
from sbatchgen.jobs.runs.job_log import NumberedLine, last_start, newest_logs
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.runs.record import Record, point_numbers, records
from sbatchgen.jobs.runs.seen_jobs import is_local, time_before
from sbatchgen.jobs.runs.status import RunState, submission
from sbatchgen.jobs.slurm.accounting import sacct_jobs
from sbatchgen.jobs.slurm.queue import SlurmJob, key_of, squeue_jobs

# The last states of jobs that have not failed. A job is REVOKED if another cluster of a federation runs it.
NO_FAILURE = ("COMPLETED", "REVOKED", LOST)
MAX_LINES = 20_000  # lines at the end of a log that are read


@frozen(kw_only=True)
class JobEnd:
    """The known facts about the end of a run's job, or of one of the job's tasks."""

    state: RunState  # the state of its run
    job: RunJob
    record: Record | None  # the record of its submission
    row: SlurmJob | None  # the job or the task as Slurm knows it; None if Slurm has forgotten it
    task: str  # the index of the task, or the number of the point; "" for a job without tasks
    folder: Path  # the run folder of the job or the task
    training: Progress | None  # how far the training came; None if it wrote nothing
    logs: Mapping[str, Sequence[NumberedLine]]  # the last lines of its newest logs, by the logs' paths
    problems: Sequence[Problem]  # why something could not be read

    @property
    def state_name(self) -> str:
        """Slurm's name of the state of the job or the task; "" if it is not known."""
        return self.row.state.name if self.row else self.job.state

    @property
    def has_ended(self) -> bool:
        """Whether the job or the task has ended."""
        return self.row.state.ended if self.row else self.job.ended

    @property
    def is_failure(self) -> bool:
        """Whether the job or the task is known to have failed."""
        return self.has_ended and has_failed(self.state_name, self.job, self.training)


def read_end(
    state: RunState, job: RunJob, record: Record | None, task: str, environment: Mapping[str, str]
) -> JobEnd:
    """Return the facts about the end of a job; of an array, about `task` or the first failed task."""
    rows, problems = _rows_of(state, job, environment)
    continues = bool(record and record.is_one_training)  # whether each task continues the task before it
    row = _row_of_task(rows, task, record.first if record else 0, continues=continues)
    row = state.plain.row if state.plain else row
    task = task or (row.task if row else "")
    folder = state.run.folder / task if task.isdecimal() and not continues else state.run.folder
    return JobEnd(
        state=state,
        job=job,
        record=record,
        row=row,
        task=task,
        folder=folder,
        training=state.progress if state.plain or state.job else read_progress(folder),
        logs=_logs(state, record, task),
        problems=problems,
    )


class JobWithRecord(NamedTuple):
    """A job of a run, and the record of its submission; None if they are not known."""

    job: RunJob | None
    record: Record | None


def job_to_diagnose(state: RunState, task: str, job_id: str = "") -> JobWithRecord:
    """Return the newest job of a run, or a job that ran `task`: a point of a sweep, or a task of an array.

    Several jobs may have run the point or task. Of these, the job with the id `job_id` is chosen. Without
    the id, a task is looked for in the last job of the run first, and then in the newest that has it.
    """
    if task.isdecimal():
        jobs = {job.id: job for job in state.jobs}
        last_id = state.last_job.id if state.last_job and not state.sweep else ""
        with_point = [
            record
            for record in reversed(records(state.run.folder))
            if record.job in jobs and int(task) in point_numbers(record, record.array)
        ]
        chosen = [record for record in with_point if record.job == (job_id or last_id)] or with_point
        if chosen:
            return JobWithRecord(jobs[chosen[0].job], chosen[0])
    return JobWithRecord(state.last_job, submission(state, state.last_job.id) if state.last_job else None)


def _row_of_task(
    rows: Sequence[SlurmJob], task: str, first_point: int, *, continues: bool
) -> SlurmJob | None:
    """Return the row of a task; without `task`, the row of the first failed task, or else the last row.

    Args:
        rows: Slurm's rows of the job.
        task: The index of the task or the number of the point; "" for no certain task.
        first_point: The number of the sweep's point that index 0 of the array runs.
        continues: Whether each task continues the training of the task before it. Then the last task that ran
            shows how the training ended.
    """
    if task.isdecimal():
        return next((row for row in rows if row.task == str(int(task) - first_point)), None)
    if continues and (ran := [row for row in rows if row.node_list or row.used_s]):
        return max(ran, key=lambda row: row.start.timestamp() if row.start else 0)
    failed = (row for row in rows if row.state.ended and row.state.name not in NO_FAILURE)
    return next(failed, rows[-1] if rows else None)


def has_failed(name: str, job: RunJob, training: Progress | None) -> bool:
    """Return whether an ended job has failed, by Slurm's name of its state or by its training's report."""
    return (bool(name) and name not in NO_FAILURE) or training_failed(training, job)


def training_failed(training: Progress | None, job: RunJob) -> bool:
    """Return whether the training has reported a failure since this job was submitted."""
    return bool(training and training.state == "failed" and (training.time or 0) >= job.submitted)


def _logs(state: RunState, record: Record | None, task: str) -> dict[str, list[NumberedLine]]:
    """Return the last lines of the newest logs, by the logs' paths.

    If a program of the job has failed, only its logs are read: they tell why the program has ended, and the
    other logs only that it has.
    """
    program = state.failed_program
    paths = program_states.logs(state.run.folder).get(program.name) if program else None
    paths = paths or (newest_logs(record, task) if record else [])
    return {str(path): last_start(path, MAX_LINES) for path in paths}


def _rows_of(
    state: RunState, job: RunJob, environment: Mapping[str, str]
) -> tuple[list[SlurmJob], list[Problem]]:
    """Return Slurm's rows of a job, one for each task, and problems with reading them or the logs."""
    if state.plain:
        return [*state.plain.rows], [Problem(text) for text in state.plain.problems]
    return _ask_for_rows(job, environment)


def _ask_for_rows(job: RunJob, environment: Mapping[str, str]) -> tuple[list[SlurmJob], list[Problem]]:
    """Return the rows of a job by squeue, or else by sacct; none if Slurm has forgotten the job."""
    job_rows: list[SlurmJob] = []
    if is_local(job) or not job.id:
        return job_rows, []
    try:
        rows = squeue_jobs(environment, [job.id], cluster=job.cluster)
        job_rows = [row for row in rows if key_of(row.command) == job.key]
        if not job_rows or job.state == "CANCELLED":  # only sacct says who cancelled the job
            by_sacct = sacct_jobs({job.id: job.key}, time_before([job]), environment, cluster=job.cluster)
            job_rows = by_sacct or job_rows
    except SlurmError as error:
        return job_rows, [*error.problems]
    return job_rows, []
