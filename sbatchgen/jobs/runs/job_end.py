"""How a job ended, as Slurm, its logs and its run folder show: the facts from which a diagnosis is made."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sbatchgen.base.errors import Problem, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs import program_states
from sbatchgen.jobs.runs.index import LOST, RunJob
from sbatchgen.jobs.runs.job_log import last_start, newest_logs
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.runs.record import Record, point_numbers, records
from sbatchgen.jobs.runs.seen_jobs import is_local, time_before
from sbatchgen.jobs.runs.status import RunState, submission
from sbatchgen.jobs.slurm.accounting import accounting
from sbatchgen.jobs.slurm.queue import SlurmJob, key_of, queue

# The last states of jobs that have not failed. A job is REVOKED if another cluster of a federation runs it.
NO_FAILURE = ("COMPLETED", "REVOKED", LOST)
MAX_LINES = 20_000  # lines at the end of a log that are read
Log = Sequence[tuple[int, str]]  # the last lines of a log, each after its number


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
    logs: Mapping[str, Log]  # the ends of its newest logs, by their paths
    problems: Sequence[Problem]  # why something could not be read

    @property
    def name(self) -> str:
        """The name of its state; "" if it is not known."""
        return self.row.state.name if self.row else self.job.state

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.row.state.ended if self.row else self.job.ended

    @property
    def failed(self) -> bool:
        """Whether it is known to have failed."""
        return self.ended and has_failed(self.name, self.job, self.training)


def read_end(
    state: RunState, job: RunJob, record: Record | None, task: str, environment: Mapping[str, str]
) -> JobEnd:
    """Return how a job of a run ended; for an array or a sweep, how `task` or the first failed task ended."""
    rows, problems = _rows_of(state, job, environment)
    in_turn = bool(record and record.one_training)
    row = _row_of_task(rows, task, record.first if record else 0, in_turn=in_turn)
    row = state.plain.row if state.plain else row
    task = task or (row.task if row else "")
    folder = state.run.folder / task if task.isdecimal() and not in_turn else state.run.folder
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


def job_of(state: RunState, task: str, job_id: str = "") -> tuple[RunJob | None, Record | None]:
    """Return the newest job of a run and its record; None for each that is not known.

    For a point of a sweep, or a task of an array, this is the job with the id `job_id`, or else the newest
    job that has it; for a task, the last job of the run comes first.
    """
    if task.isdecimal():
        jobs = {job.id: job for job in state.jobs}
        last = state.last.id if state.last and not state.sweep else ""
        with_point = [
            record
            for record in reversed(records(state.run.folder))
            if record.job in jobs and int(task) in point_numbers(record, record.array)
        ]
        chosen = [record for record in with_point if record.job == (job_id or last)] or with_point
        if chosen:
            return jobs[chosen[0].job], chosen[0]
    return state.last, submission(state, state.last.id) if state.last else None


def _row_of_task(rows: Sequence[SlurmJob], task: str, first: int, *, in_turn: bool) -> SlurmJob | None:
    """Return the row of a task. Without `task`, return the first row of a failed task, else the last row.

    `in_turn`: the tasks continue one training, one after the other, so the last task that ran counts.
    `first`: the number of the sweep's point that index 0 of the array runs.
    """
    if task.isdecimal():
        return next((row for row in rows if row.task == str(int(task) - first)), None)
    if in_turn and (ran := [row for row in rows if row.node_list or row.used_s]):
        return max(ran, key=lambda row: row.start.timestamp() if row.start else 0)
    failed = (row for row in rows if row.state.ended and row.state.name not in NO_FAILURE)
    return next(failed, rows[-1] if rows else None)


def has_failed(name: str, job: RunJob, training: Progress | None) -> bool:
    """Return whether an ended job has failed: Slurm's name of its state says so, or its training does."""
    return (bool(name) and name not in NO_FAILURE) or training_failed(training, job)


def training_failed(training: Progress | None, job: RunJob) -> bool:
    """Return whether the training has reported a failure since this job was submitted."""
    return bool(training and training.state == "failed" and (training.time or 0) >= job.submitted)


def _logs(state: RunState, record: Record | None, task: str) -> dict[str, list[tuple[int, str]]]:
    """Return the ends of the newest logs; if a program of the job has failed, only the ends of its logs.

    The logs of the other programs report that the program has ended, but not why.
    """
    program = state.failed_program
    paths = program_states.logs(state.run.folder).get(program.name) if program else None
    paths = paths or (newest_logs(record, task) if record else [])
    return {str(path): last_start(path, MAX_LINES) for path in paths}


def _rows_of(
    state: RunState, job: RunJob, environment: Mapping[str, str]
) -> tuple[list[SlurmJob], list[Problem]]:
    """Return the rows of a job, a row for each task, and why something could not be read."""
    if state.plain:
        return [*state.plain.rows], [Problem(text) for text in state.plain.problems]
    return _ask_for_rows(job, environment)


def _ask_for_rows(job: RunJob, environment: Mapping[str, str]) -> tuple[list[SlurmJob], list[Problem]]:
    """Ask squeue, and sacct if needed, about a job; return no rows if Slurm has forgotten the job."""
    job_rows: list[SlurmJob] = []
    if is_local(job) or not job.id:
        return job_rows, []
    try:
        rows = queue(environment, [job.id], cluster=job.cluster)
        job_rows = [row for row in rows if key_of(row.command) == job.key]
        if not job_rows or job.state == "CANCELLED":  # only sacct says who cancelled the job
            by_sacct = accounting({job.id: job.key}, time_before([job]), environment, cluster=job.cluster)
            job_rows = by_sacct or job_rows
    except SlurmError as error:
        return job_rows, [*error.problems]
    return job_rows, []
