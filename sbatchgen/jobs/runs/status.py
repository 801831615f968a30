"""Finds the states of runs: the states of their jobs in Slurm, and the progress of their trainings.

Commands that look at runs, such as `status`, `logs` and `cancel`, begin with this module.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem, SbatchgenError, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.resolved.sweep import Sweep
from sbatchgen.jobs.runs import points, record, shown_starts, stall
from sbatchgen.jobs.runs.ended import ProgressCache
from sbatchgen.jobs.runs.events import EVENTS, STATUS
from sbatchgen.jobs.runs.failure import Failure, crash_line, failures
from sbatchgen.jobs.runs.index import LOST, Index, Run, RunJob
from sbatchgen.jobs.runs.job_log import NumberedLine, last_start, last_starts, newest_logs
from sbatchgen.jobs.runs.plain_job import NO_RUN_FOLDER, PlainJob
from sbatchgen.jobs.runs.points import POINTS_FILE, SweepState
from sbatchgen.jobs.runs.program_states import ProgramState, program_that_ended_job, read_programs
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.runs.seen_jobs import (
    ENDED_WITH_ERRORS,
    MAX_END_LINES,
    NEVER_STARTED,
    SAVED,
    current_jobs,
    dependent_jobs,
    is_local,
    job_from_rows,
    time_before,
)
from sbatchgen.jobs.slurm.accounting import REQUEUED, sacct_jobs
from sbatchgen.jobs.slurm.queue import SlurmJob
from sbatchgen.jobs.slurm.state import explain_reason

SAYS_FORGOTTEN = "Slurm does not know it any more, so only its log was read"
_CAUSES_OF_REQUEUE = ("node-failure", "preempted", "requeued")  # after these Slurm starts a job again
# The fields `state` and `says` of the job of a point that has ended, by the state of the point
_JOB_STATE_BY_POINT = {
    points.DONE: ("COMPLETED", ""),
    points.FAILED: ("FAILED", ""),
    points.STOPPED: ("FAILED", SAVED),
}


@frozen(kw_only=True)
class RunState:
    """A run as it is now. Some fields are only set if the command asks about a single run."""

    run: Run
    jobs: Sequence[RunJob]  # the oldest first
    # squeue's rows of the last job, several for an array; empty if squeue does not know the job
    queue_rows: Sequence[SlurmJob] = ()
    progress: Progress | None = None  # how far the training is; None if it has not begun, or writes nothing
    # Which rank hangs, or "no output for 5 min; usual: 4 s"; "" if the run does not stand still
    standstill: str = ""
    sweep: SweepState | None = None  # the points of a sweep; only for a single run
    previous_end: str = ""  # how the start before the newest ended; only for a single run
    programs: Sequence[ProgramState] = ()  # the programs of the last start, if a job has several
    point: str = ""  # the point that this state is about; "" if it is about the whole run
    job: str = ""  # the id of the older job that this state is about; "" if it is about the newest
    # How often Slurm's planned starts were right; only for a single run that has a plan
    plan_accuracy: str = ""
    plain: PlainJob | None = None  # a job that the user did not submit with sbatchgen; None for a run

    @property
    def folder(self) -> str:
        """Its run folder, or the working folder of a job that has no run folder."""
        if self.plain and self.run.folder.name == NO_RUN_FOLDER:
            return self.plain.record.folder
        return str(self.run.folder / self.point)

    @property
    def last_job(self) -> RunJob | None:
        """The job that tells how the run is: the first that runs or waits, else the last that has started.

        None without jobs.
        """
        unfinished = [job for job in self.jobs if not job.ended]
        started = [job for job in self.jobs if job.says != NEVER_STARTED]
        return next(iter([*unfinished, *started[-1:], *self.jobs[-1:]]), None)

    @property
    def failed_program(self) -> ProgramState | None:
        """The program whose failure has ended the last job; None if it has one program or did not fail."""
        job = self.last_job
        is_failed = job is not None and job.state == "FAILED" and job.says != SAVED
        return program_that_ended_job(self.programs) if is_failed else None


def run_states(
    index: Index,
    environment: Mapping[str, str],
    runs: Sequence[Run],
    point: str = "",
    job_ids: Sequence[str] = (),
) -> tuple[list[RunState], list[Problem]]:
    """Return the states of runs, and problems because of which the states may be out of date.

    squeue is asked once for all runs, and not at all if all jobs have ended. The new states of jobs are
    written into the index.

    Args:
        index: The index of runs.
        environment: The environment of the commands of Slurm.
        runs: The runs.
        point: The only point to read, if there is one run and it is a sweep; "" for all points.
        job_ids: For each run, the id of the job that the state is about, or "" for the newest job.
    """
    indexed_jobs = _jobs_of(index, runs)
    unfinished = [job for its_jobs in indexed_jobs.values() for job in its_jobs if not job.ended]
    seen, rows, problems = current_jobs(unfinished, {run.name: run.folder for run in runs}, environment)
    seen |= dependent_jobs(seen, rows, index)
    with contextlib.suppress(DocumentError):  # on a full disk, the next command asks Slurm again
        index.update_states(seen.values())
    jobs = {name: [seen.get(job.key, job) for job in its_jobs] for name, its_jobs in indexed_jobs.items()}
    sweep, sweep_problems = _sweep_of(runs)
    problems += sweep_problems
    if sweep:
        (run,) = runs
        all_rows = [row for its_rows in rows.values() for row in its_rows]
        sweep_now = points.sweep_state(sweep, run.folder, record.records(run.folder), all_rows, point)
        state = _state_of(run, jobs[run.name], rows, None)
        return [replace(state, previous_end=_previous_end(state, environment), sweep=sweep_now)], problems
    states = _states_of_runs(index, runs, jobs, rows)
    with_ids = zip_longest(states, job_ids[: len(states)])  # None for a missing id: the newest job
    states = [_state_of_job(state, job_id, rows) for state, job_id in with_ids]
    if len(states) == 1:
        states = [_with_facts_of_single_run(states[0], environment)]
    return states, problems


def _with_facts_of_single_run(state: RunState, environment: Mapping[str, str]) -> RunState:
    """Return a state with the fields that are only set for a single run, apart from its sweep."""
    has_plan = any(row.state.name == "PENDING" and row.planned for row in state.queue_rows)
    accuracy = shown_starts.comparison(environment, "plan") if has_plan else ""
    return replace(state, previous_end=_previous_end(state, environment), plan_accuracy=accuracy)


def _jobs_of(index: Index, runs: Sequence[Run]) -> dict[str, list[RunJob]]:
    """Return the jobs of these runs by the runs' names, the oldest first."""
    jobs: dict[str, list[RunJob]] = {run.name: [] for run in runs}
    for job in index.jobs(runs[0].name if len(runs) == 1 else None):
        if job.run in jobs:
            jobs[job.run].append(job)
    return jobs


def _states_of_runs(
    index: Index,
    runs: Sequence[Run],
    jobs: Mapping[str, Sequence[RunJob]],
    rows: Mapping[str, Sequence[SlurmJob]],
) -> list[RunState]:
    """Return the states of runs, with their jobs by the runs' names and squeue's rows by the jobs' keys.

    For several runs, the progress of ended runs is cached.
    """
    states = []
    cache = ProgressCache(index.file) if len(runs) > 1 else None
    for run in runs:
        its_jobs = jobs[run.name]
        cached = cache.entry(run, its_jobs) if cache else None
        if cached:
            states.append(RunState(run=run, jobs=its_jobs, progress=cached.progress))
            continue
        state = _state_of(run, its_jobs, rows, read_progress(run.folder))
        states.append(state)
        if cache and not state.programs:
            cache.add(run, its_jobs, state.progress)
    if cache:
        cache.save()
    return states


def _state_of(
    run: Run,
    jobs: Sequence[RunJob],
    rows: Mapping[str, Sequence[SlurmJob]],
    progress: Progress | None,
) -> RunState:
    """Return the state of a run, with squeue's rows of its last job, and its programs."""
    state = RunState(run=run, jobs=jobs, progress=progress)
    state = replace(state, queue_rows=rows.get(state.last_job.key, ()) if state.last_job else ())
    since = state.last_job.submitted - stall.MAX_CLOCK_DIFFERENCE_S if state.last_job else 0.0
    return replace(state, standstill=_standstill(state), programs=read_programs(run.folder, since))


def _sweep_of(runs: Sequence[Run]) -> tuple[Sweep | None, Sequence[Problem]]:
    """Return the sweep if there is only one run and it is a sweep; and problems with reading its points."""
    try:
        return (points.read_sweep(runs[0].folder) if len(runs) == 1 else None), ()
    except SbatchgenError as error:
        return None, error.problems


def _state_of_job(state: RunState, job_id: str | None, rows: Mapping[str, Sequence[SlurmJob]]) -> RunState:
    """Return the state of a run as an older job shows it; the unchanged state for the last job or no id."""
    chosen = [job for job in state.jobs if job.id == job_id]
    if not job_id or not chosen or (state.last_job and state.last_job.id == job_id):
        return state
    submitted = record.read_record(state.run.folder, job_id)
    # These files are about the newest start. If they exist, the progress of an older job is not known.
    is_about_newest = any((state.run.folder / name).exists() for name in (STATUS, EVENTS))
    progress = read_progress(state.run.folder, [submitted]) if submitted and not is_about_newest else None
    its_rows = rows.get(chosen[0].key, ())
    state = replace(
        state, jobs=chosen, queue_rows=its_rows, progress=progress, programs=(), standstill="", job=job_id
    )
    return replace(state, standstill=_standstill(state))


def plain_state(job: PlainJob) -> RunState:
    """Return the state of a job that the user did not submit with sbatchgen, as if it were a run."""
    facts, name = job.record, job.word
    run_job = RunJob(
        "", name, facts.job, "", facts.submitted, ended=True, says=SAYS_FORGOTTEN, seen=time.time()
    )
    if job.rows:
        chosen = [job.row] if job.row and not job.row.task.startswith("[") else job.rows
        run_job = job_from_rows(run_job._replace(says=""), [row for row in chosen if row], job.folder)
    if run_job.state == "COMPLETED" and any(
        crash_line(last_start(path, MAX_END_LINES)) for path in newest_logs(facts)
    ):
        run_job = run_job._replace(says=ENDED_WITH_ERRORS)
    unfinished = [row for row in job.rows if not row.state.ended]
    run = Run(name=name, path=str(job.folder), shared=True, created=facts.submitted)
    progress = read_progress(job.folder, [facts])
    state = RunState(run=run, jobs=[run_job], queue_rows=unfinished[:1], progress=progress, plain=job)
    return replace(state, standstill=_standstill(state))


def submissions(state: RunState) -> list[record.Record]:
    """Return the records of the jobs that a state is about, the oldest first."""
    submitted_records = [state.plain.record] if state.plain else record.records(state.run.folder)
    return [submitted for submitted in submitted_records if state.job in ("", submitted.job)]


def submission(state: RunState, job_id: str) -> record.Record | None:
    """Return the record of the submission of a run's job; None without one."""
    return state.plain.record if state.plain else record.read_record(state.run.folder, job_id)


def point_state(state: RunState, point: str) -> RunState:
    """Return a point of a sweep as if it were a run; raise CommandLineError if the run has no such point."""
    name, folder = state.run.name, state.run.folder
    all_points = state.sweep.points if state.sweep else ()
    chosen = next((candidate for candidate in all_points if str(candidate.number) == point), None)
    if chosen is None:
        what = f"run {name} has no point {point}"
        if not (folder / POINTS_FILE).exists():
            what = f"run {name} is not a sweep: it has no points"
        raise CommandLineError.of(what, fix=f"sbatchgen status {name} shows the whole run")
    with_point = {
        submitted.job
        for submitted in record.records(folder)
        if chosen.number in record.point_numbers(submitted, submitted.array)
    }
    jobs = [job._replace(state="", ended=True, says="") for job in state.jobs if job.id in with_point]
    if jobs and chosen.row:
        jobs[-1] = job_from_rows(jobs[-1], [chosen.row], folder)
    elif jobs:
        job_state, says = _JOB_STATE_BY_POINT[chosen.state]
        jobs[-1] = jobs[-1]._replace(state=job_state, says=says or chosen.says)
    run = state.run._replace(name=f"{name}/{point}")
    rows = [chosen.row] if chosen.row else []
    return RunState(run=run, jobs=jobs, queue_rows=rows, progress=chosen.progress, point=point)


def _standstill(state: RunState) -> str:
    """Return which rank of a run hangs, or how long the run has stood still; "" if it does not stand still.

    An array is not judged, because its tasks run at different times.
    """
    job, rows = state.last_job, state.queue_rows
    running = [row for row in rows if row.state.name == "RUNNING"]
    submitted = submission(state, job.id) if job and not job.ended else None
    has_tasks = len(rows) > 1 or (running and running[0].task)
    if submitted is None or not job or job.state != "RUNNING" or has_tasks:
        return ""
    now = time.time()
    started = now - running[0].used_s if running else job.submitted
    if says := stall.hang(state.run.folder, started):
        return says
    stalled = stall.stalled_for(submitted, state.run.folder, started, now)
    return stalled.says if stalled else ""


def _previous_end(state: RunState, environment: Mapping[str, str]) -> str:
    """Return how the start before the newest start of a run's last job ended, by Slurm's database or the log.

    Return "" if the job has started only once, or is an array.
    """
    job = state.last_job
    restarts = state.queue_rows[0].restarts if state.queue_rows else 0
    submission = record.read_record(state.run.folder, job.id) if job and not is_local(job) else None
    if not job or not submission or submission.array:
        return ""
    starts = [last_starts(path, MAX_END_LINES) for path in newest_logs(submission)]
    # A job that waits, or was cancelled while it waited, has not begun its newest start. So the last start in
    # its log is the start before.
    is_waiting_again = job.state == "CANCELLED" or (job.state == "PENDING" and restarts > 0)
    cause = _last_outside_cause(line for start in starts for line in start.last) if is_waiting_again else None
    earlier_lines = [line for start in starts for line in start.before]
    if not cause or cause.cause not in _CAUSES_OF_REQUEUE:
        cause = _last_outside_cause(earlier_lines)
    end = cause.means if cause else ""
    if not (end or earlier_lines or restarts):
        return ""
    with contextlib.suppress(SlurmError):
        by_sacct = sacct_jobs({job.id: job.key}, time_before([job]), environment, cluster=job.cluster) or []
        ends = [row.last_end for row in by_sacct if row.last_end]
        # Slurm's "requeued" says less than a cause in the log.
        end = next((by_slurm for by_slurm in ends if not (end and by_slurm.startswith(REQUEUED))), end)
    return end


def _last_outside_cause(lines: Iterable[NumberedLine]) -> Failure | None:
    """Return the last cause with the rank "outside" or "limit" that lines of a log show; None without one."""
    causes = [cause for cause in failures("", lines, "") if cause.rank in ("outside", "limit")]
    return max(causes, key=lambda cause: cause.line, default=None)


def problems_of(states: Iterable[RunState]) -> Iterator[Problem]:
    """Yield a problem for each run that will not start until the user or somebody else acts."""
    for state in states:
        name, last = state.run.name, state.last_job
        if last and last.state == LOST and last.says:
            yield Problem(f"{name}: {last.says}", fix=f"sbatchgen resume {name}")
        for row in state.queue_rows[:1]:
            why = explain_reason(row.reason, row.id)
            if row.state.name == "PENDING" and why.kind in ("never", "person"):
                yield Problem(f"{name}: {why.means}", f"job {row.id}, {why.name}", why.fix)
