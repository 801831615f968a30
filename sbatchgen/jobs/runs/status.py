"""The states of runs: the states of their jobs in Slurm, and the progress of their trainings."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem, SbatchgenError, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.resolved.sweep import Sweep
from sbatchgen.jobs.runs import points, record, shown_starts, stall
from sbatchgen.jobs.runs.ended import KeptProgress
from sbatchgen.jobs.runs.events import EVENTS, STATUS
from sbatchgen.jobs.runs.failure import Failure, crash_line, failures
from sbatchgen.jobs.runs.index import LOST, Index, Run, RunJob
from sbatchgen.jobs.runs.job_log import last_start, last_starts, newest_logs
from sbatchgen.jobs.runs.plain_job import NOWHERE, PlainJob
from sbatchgen.jobs.runs.points import SweepState
from sbatchgen.jobs.runs.program_states import ProgramState, program_that_ended_job, read_programs
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.runs.seen_jobs import (
    AT_END,
    ERRORS,
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

FORGOTTEN = "Slurm does not know it any more, so only its log was read"
_CAUSES_OF_REQUEUE = ("node-failure", "preempted", "requeued")  # after these Slurm starts a job again
# For each state of a point that has ended, the state of a job, and more about it
_ENDS = {points.DONE: ("COMPLETED", ""), points.FAILED: ("FAILED", ""), points.STOPPED: ("FAILED", SAVED)}


@frozen(kw_only=True)
class RunState:
    """A run as it is now."""

    run: Run
    jobs: Sequence[RunJob]  # the oldest first
    # squeue's rows of the last job, several for an array; empty if squeue does not know the job
    queue_rows: Sequence[SlurmJob] = ()
    progress: Progress | None = None  # how far the training is; None if it has not begun, or writes nothing
    quiet: str = ""  # which rank hangs, or "no output for 5 min; usual: 4 s"; "" if it does not stand still
    sweep: SweepState | None = None  # the points of a sweep, if this is the only run in question
    restarted: str = ""  # how the start before the newest one ended, if this is the only run in question
    programs: Sequence[ProgramState] = ()  # the programs of the last start, if a job has several
    point: str = ""  # the point that this state is about; "" if it is about the whole run
    job: str = ""  # the id of the older job that this state is about; "" if it is about the newest
    # How often planned starts were right, if this is the only run in question and has a plan
    right_plans: str = ""
    plain: PlainJob | None = None  # a job that the user did not submit with sbatchgen; None for a run

    @property
    def folder(self) -> str:
        """Its run folder, or the working folder of a job that has none."""
        if self.plain and self.run.folder.name == NOWHERE:
            return self.plain.record.folder
        return str(self.run.folder / self.point)

    @property
    def last(self) -> RunJob | None:
        """The first job that runs or waits, else the last job that has started; None without jobs."""
        live = [job for job in self.jobs if not job.ended]
        started = [job for job in self.jobs if job.says != NEVER_STARTED]
        return next(iter([*live, *started[-1:], *self.jobs[-1:]]), None)

    @property
    def failed_program(self) -> ProgramState | None:
        """The program whose failure has ended the last job; None if it has one program or did not fail."""
        is_failed = self.last is not None and self.last.state == "FAILED" and self.last.says != SAVED
        return program_that_ended_job(self.programs) if is_failed else None


def run_states(
    index: Index,
    environment: Mapping[str, str],
    runs: Sequence[Run],
    point: str = "",
    job_ids: Sequence[str] = (),
) -> tuple[list[RunState], list[Problem]]:
    """Return the states of runs, and why they may be out of date; the index keeps the states of jobs.

    squeue is asked once for all runs, and not at all if all jobs have ended. If there is only one run and it
    is a sweep, `point` limits the state to this point. `job_ids` has for each run the id of the job that the
    state is about, or "" for the newest job.
    """
    indexed_jobs = _jobs_of(index, runs)
    live = [job for its_jobs in indexed_jobs.values() for job in its_jobs if not job.ended]
    seen, rows, problems = current_jobs(live, {run.name: run.folder for run in runs}, environment)
    seen |= dependent_jobs(seen, rows, index)
    with contextlib.suppress(DocumentError):  # on a full disk the states are seen again the next time
        index.update_states(seen.values())
    jobs = {name: [seen.get(job.key, job) for job in its_jobs] for name, its_jobs in indexed_jobs.items()}
    sweep, sweep_problems = _sweep_of(runs)
    problems += sweep_problems
    if sweep:
        (run,) = runs
        all_rows = [row for its_rows in rows.values() for row in its_rows]
        sweep_now = points.sweep_state(sweep, run.folder, record.records(run.folder), all_rows, point)
        state = _state_of(run, jobs[run.name], rows, None)
        return [replace(state, restarted=_previous_end(state, environment), sweep=sweep_now)], problems
    states = _states_of_runs(index, runs, jobs, rows)
    with_ids = zip_longest(states, job_ids[: len(states)])  # a missing id means the newest job
    states = [_state_of_job(state, job, rows) for state, job in with_ids]
    if len(states) == 1:
        has_plan = any(row.state.name == "PENDING" and row.planned for row in states[0].queue_rows)
        comparison = shown_starts.comparison(environment, "plan") if has_plan else ""
        states = [replace(states[0], restarted=_previous_end(states[0], environment), right_plans=comparison)]
    return states, problems


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
    """Return the states of runs; for several runs, keep the progress of those that have ended."""
    states = []
    kept = KeptProgress(index.file) if len(runs) > 1 else None
    for run in runs:
        its_jobs = jobs[run.name]
        is_kept, progress = kept.progress(run, its_jobs) if kept else (False, None)
        if is_kept:
            states.append(RunState(run=run, jobs=its_jobs, progress=progress))
            continue
        state = _state_of(run, its_jobs, rows, read_progress(run.folder))
        states.append(state)
        if kept and not state.programs:
            kept.keep(run, its_jobs, state.progress)
    if kept:
        kept.save()
    return states


def _state_of(
    run: Run,
    jobs: Sequence[RunJob],
    rows: Mapping[str, Sequence[SlurmJob]],
    progress: Progress | None,
) -> RunState:
    """Return the state of a run, with squeue's rows of its last job, and its programs."""
    state = RunState(run=run, jobs=jobs, progress=progress)
    state = replace(state, queue_rows=rows.get(state.last.key, ()) if state.last else ())
    since = state.last.submitted - stall.CLOCKS_S if state.last else 0.0
    return replace(state, quiet=_stall(state), programs=read_programs(run.folder, since))


def _sweep_of(runs: Sequence[Run]) -> tuple[Sweep | None, Sequence[Problem]]:
    """Return the sweep if there is only one run and it is a sweep, and why its points can't be read."""
    try:
        return (points.read_sweep(runs[0].folder) if len(runs) == 1 else None), ()
    except SbatchgenError as error:
        return None, error.problems


def _state_of_job(state: RunState, job: str | None, rows: Mapping[str, Sequence[SlurmJob]]) -> RunState:
    """Return the state of a run for the job with the id `job`; unchanged for its last job, or without id."""
    chosen = [candidate for candidate in state.jobs if candidate.id == job]
    if not job or not chosen or (state.last and state.last.id == job):
        return state
    submitted = record.read_record(state.run.folder, job)
    # These files are about the newest start. If they exist, the progress of an older job is not known.
    has_newest = any((state.run.folder / name).exists() for name in (STATUS, EVENTS))
    progress = read_progress(state.run.folder, [submitted]) if submitted and not has_newest else None
    its_rows = rows.get(chosen[0].key, ())
    state = replace(
        state, jobs=chosen, queue_rows=its_rows, progress=progress, programs=(), quiet="", job=job
    )
    return replace(state, quiet=_stall(state))


def plain_state(job: PlainJob) -> RunState:
    """Return the state of a job that the user did not submit with sbatchgen, as if it were a run."""
    facts, name = job.record, job.word
    run_job = RunJob("", name, facts.job, "", facts.submitted, ended=True, says=FORGOTTEN, seen=time.time())
    if job.rows:
        chosen = [job.row] if job.row and not job.row.task.startswith("[") else job.rows
        run_job = job_from_rows(run_job._replace(says=""), [row for row in chosen if row], job.folder)
    if run_job.state == "COMPLETED" and any(
        crash_line(last_start(path, AT_END)) for path in newest_logs(facts)
    ):
        run_job = run_job._replace(says=ERRORS)
    live = [row for row in job.rows if not row.state.ended]
    run = Run(name=name, path=str(job.folder), shared=True, created=facts.submitted)
    progress = read_progress(job.folder, [facts])
    state = RunState(run=run, jobs=[run_job], queue_rows=live[:1], progress=progress, plain=job)
    return replace(state, quiet=_stall(state))


def submissions(state: RunState) -> list[record.Record]:
    """Return the records of the submissions that a state is about, the oldest first."""
    submitted_records = [state.plain.record] if state.plain else record.records(state.run.folder)
    return [submitted for submitted in submitted_records if state.job in ("", submitted.job)]


def submission(state: RunState, job: str) -> record.Record | None:
    """Return the record of the submission of a run's job; None without one."""
    return state.plain.record if state.plain else record.read_record(state.run.folder, job)


def point_state(state: RunState, point: str) -> RunState:
    """Return a point of a sweep as if it were a run; raise CommandLineError if the run has no such point."""
    name, folder = state.run.name, state.run.folder
    all_points = state.sweep.points if state.sweep else ()
    chosen = next((candidate for candidate in all_points if str(candidate.number) == point), None)
    if chosen is None:
        raise CommandLineError.of(f"run {name} has no point {point}", fix=f"sbatchgen status {name}")
    with_point = {
        submitted.job
        for submitted in record.records(folder)
        if chosen.number in record.point_numbers(submitted, submitted.array)
    }
    jobs = [job._replace(state="", ended=True, says="") for job in state.jobs if job.id in with_point]
    if jobs and chosen.row:
        jobs[-1] = job_from_rows(jobs[-1], [chosen.row], folder)
    elif jobs:
        end, says = _ENDS[chosen.state]
        jobs[-1] = jobs[-1]._replace(state=end, says=says or chosen.says)
    run = state.run._replace(name=f"{name}/{point}")
    rows = [chosen.row] if chosen.row else []
    return RunState(run=run, jobs=jobs, queue_rows=rows, progress=chosen.progress, point=point)


def _stall(state: RunState) -> str:
    """Return which rank of a run hangs, or how long the run has stood still; "" if it has several tasks."""
    job, rows = state.last, state.queue_rows
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
    job = state.last
    restarts = state.queue_rows[0].restarts if state.queue_rows else 0
    submission = record.read_record(state.run.folder, job.id) if job and not is_local(job) else None
    if not job or not submission or submission.array:
        return ""
    logs = [last_starts(path, AT_END) for path in newest_logs(submission)]
    # A job that waits, or was cancelled while it waited, has not begun its newest start.
    # So the last start in its log is the one whose end is asked for.
    is_waiting_again = job.state == "CANCELLED" or (job.state == "PENDING" and restarts > 0)
    cause = _last_outside_cause(line for _, last in logs for line in last) if is_waiting_again else None
    earlier_lines = [line for before, _ in logs for line in before]
    if not cause or cause.cause not in _CAUSES_OF_REQUEUE:
        cause = _last_outside_cause(earlier_lines)
    how = cause.means if cause else ""
    if not (how or earlier_lines or restarts):
        return ""
    with contextlib.suppress(SlurmError):
        by_sacct = sacct_jobs({job.id: job.key}, time_before([job]), environment, cluster=job.cluster) or []
        ends = [row.last_end for row in by_sacct if row.last_end]
        # Slurm's "requeued" says less than a cause in the log.
        how = next((end for end in ends if not (how and end.startswith(REQUEUED))), how)
    return how


def _last_outside_cause(lines: Iterable[tuple[int, str]]) -> Failure | None:
    """Return the last cause in lines of a log that is outside the training, or a limit; None without one."""
    causes = [cause for cause in failures("", lines, "") if cause.rank in ("outside", "limit")]
    return max(causes, key=lambda cause: cause.line, default=None)


def problems_of(states: Iterable[RunState]) -> Iterator[Problem]:
    """Yield a problem for each run that will not start until the user or somebody else acts."""
    for state in states:
        name, last = state.run.name, state.last
        if last and last.state == LOST and last.says:
            yield Problem(f"{name}: {last.says}", fix=f"sbatchgen resume {name}")
        for row in state.queue_rows[:1]:
            why = explain_reason(row.reason, row.id)
            if row.state.name == "PENDING" and why.kind in ("never", "person"):
                yield Problem(f"{name}: {why.means}", f"job {row.id}, {why.name}", why.fix)
