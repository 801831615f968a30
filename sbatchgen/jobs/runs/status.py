"""The state of runs: what Slurm says now, or said last, and how far the trainings are."""

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
from sbatchgen.jobs.runs.failure import Failure, crash, failures
from sbatchgen.jobs.runs.index import LOST, Index, Run, RunJob
from sbatchgen.jobs.runs.job_log import last_start, last_starts, newest_logs
from sbatchgen.jobs.runs.plain_job import NOWHERE, PlainJob
from sbatchgen.jobs.runs.points import SweepState
from sbatchgen.jobs.runs.program_states import ProgramState, failed, read_programs
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.runs.seen_jobs import (
    AT_END,
    ERRORS,
    NEVER_STARTED,
    SAVED,
    after_runs,
    before,
    is_local,
    of_rows,
    see,
)
from sbatchgen.jobs.slurm.accounting import REQUEUED, accounting
from sbatchgen.jobs.slurm.queue import SlurmJob
from sbatchgen.jobs.slurm.state import reason

FORGOTTEN = "Slurm does not know it any more, so only its log was read"
_AGAIN = ("node-failure", "preempted", "requeued")  # causes in a log after which Slurm starts a job again
# How a point of a sweep that has ended is shown as a job
_ENDS = {points.DONE: ("COMPLETED", ""), points.FAILED: ("FAILED", ""), points.STOPPED: ("FAILED", SAVED)}


@frozen(kw_only=True)
class RunState:
    """A run as it is now."""

    run: Run
    jobs: Sequence[RunJob]  # the oldest first
    # What squeue says of the last one: a row, or several of an array; empty if it does not know it
    now: Sequence[SlurmJob] = ()
    progress: Progress | None = None  # how far the training is; None if it has not begun, or writes nothing
    quiet: str = ""  # which rank hangs, or "no output for 5 min; usual: 4 s"; "" if it does not stand still
    sweep: SweepState | None = None  # the points, where only this run was asked for and is a sweep
    restarted: str = ""  # how the start before its newest one ended, where only this run was asked for
    programs: Sequence[ProgramState] = ()  # of a job with several: those of its last start
    point: str = ""  # the point of the run that all this is about; "" if it is about the whole run
    job: str = ""  # the id of an older job that all this is about; "" if it is about the run as it is now
    shown: str = ""  # how true plans of starts were so far, where only this run was asked for and has one
    plain: PlainJob | None = None  # a job that was not submitted by this user with sbatchgen; None of a run

    @property
    def folder(self) -> str:
        """Its run folder; of a job without one, the folder in which it runs."""
        is_nowhere = self.plain and self.run.folder.name == NOWHERE
        return self.plain.record.folder if self.plain and is_nowhere else str(self.run.folder / self.point)

    @property
    def last(self) -> RunJob | None:
        """The first of the jobs that run or wait; else the last that has started."""
        live = [job for job in self.jobs if not job.ended]
        started = [job for job in self.jobs if job.says != NEVER_STARTED]
        return next(iter([*live, *started[-1:], *self.jobs[-1:]]), None)

    @property
    def failed_program(self) -> ProgramState | None:
        """The program that has ended the last job, which failed; None of a job with one program."""
        is_failed = self.last is not None and self.last.state == "FAILED" and self.last.says != SAVED
        return failed(self.programs) if is_failed else None


def run_states(
    index: Index,
    environment: Mapping[str, str],
    runs: Sequence[Run],
    point: str = "",
    asked: Sequence[str] = (),
) -> tuple[list[RunState], list[Problem]]:
    """Return the states of runs, and why they may be out of date; the index keeps what was seen.

    squeue is asked once, whatever the number of runs, and not at all where all jobs have ended. Of the sweep
    of a single run a `point` alone may be read. `asked` has the id of the job that is meant, for each run.
    """
    jobs = _jobs_of(index, runs)
    live = [job for several in jobs.values() for job in several if not job.ended]
    seen, rows, problems = see(live, {run.name: run.folder for run in runs}, environment)
    seen |= after_runs(seen, rows, index)
    with contextlib.suppress(DocumentError):  # on a full disk the states are seen again the next time
        index.seen(seen.values())
    jobs = {name: [seen.get(job.key, job) for job in several] for name, several in jobs.items()}
    sweep, unread = _sweep_of(runs)
    problems += unread
    if sweep:
        queued = [row for several in rows.values() for row in several]
        points_now = points.sweep_state(sweep, runs[0].folder, record.records(runs[0].folder), queued, point)
        state = _state_of(runs[0], jobs[runs[0].name], rows, None)
        return [replace(state, restarted=_restarted(state, environment), sweep=points_now)], problems
    states = _of_runs(index, runs, jobs, rows)
    states = [_of_job(state, job, rows) for state, job in zip_longest(states, asked[: len(states)])]
    if len(states) == 1:
        waits = any(row.state.name == "PENDING" and row.planned for row in states[0].now)
        so_far = shown_starts.comparison(environment, "plan") if waits else ""
        states = [replace(states[0], restarted=_restarted(states[0], environment), shown=so_far)]
    return states, problems


def _jobs_of(index: Index, runs: Sequence[Run]) -> dict[str, list[RunJob]]:
    """Return the jobs of each of these runs, by its name, the oldest first."""
    jobs: dict[str, list[RunJob]] = {run.name: [] for run in runs}
    for job in index.jobs(runs[0].name if len(runs) == 1 else None):
        if job.run in jobs:
            jobs[job.run].append(job)
    return jobs


def _of_runs(
    index: Index,
    runs: Sequence[Run],
    jobs: Mapping[str, Sequence[RunJob]],
    rows: Mapping[str, Sequence[SlurmJob]],
) -> list[RunState]:
    """Return the states of runs; of several the progress is kept where it can't change any more."""
    states = []
    ended = KeptProgress(index.file) if len(runs) > 1 else None
    for run in runs:
        of_run = jobs[run.name]
        is_known, progress = ended.progress(run, of_run) if ended else (False, None)
        if is_known:
            states.append(RunState(run=run, jobs=of_run, progress=progress))
            continue
        state = _state_of(run, of_run, rows, read_progress(run.folder))
        states.append(state)
        if ended and not state.programs:
            ended.keep(run, of_run, state.progress)
    if ended:
        ended.save()
    return states


def _state_of(
    run: Run,
    jobs: Sequence[RunJob],
    rows: Mapping[str, Sequence[SlurmJob]],
    progress: Progress | None,
) -> RunState:
    """Return the state of a run, with squeue's rows of its last job, and its programs."""
    state = RunState(run=run, jobs=jobs, progress=progress)
    state = replace(state, now=rows.get(state.last.key, ()) if state.last else ())
    since = state.last.submitted - stall.CLOCKS_S if state.last else 0.0
    return replace(state, quiet=_stall(state), programs=read_programs(run.folder, since))


def _sweep_of(runs: Sequence[Run]) -> tuple[Sweep | None, Sequence[Problem]]:
    """Return the sweep of a single run, if it is one, and why that can't be read."""
    try:
        return (points.read_sweep(runs[0].folder) if len(runs) == 1 else None), ()
    except SbatchgenError as error:
        return None, error.problems


def _of_job(state: RunState, job: str | None, rows: Mapping[str, Sequence[SlurmJob]]) -> RunState:
    """Return the state of a run for one of its jobs, if that job does not stand for the run."""
    chosen = [each for each in state.jobs if each.id == job]
    if not job or not chosen or (state.last and state.last.id == job):
        return state
    its = record.read_record(state.run.folder, job)
    # the status and the events of a trainer are those of its newest start
    is_newer = any((state.run.folder / name).exists() for name in (STATUS, EVENTS))
    progress = read_progress(state.run.folder, [its]) if its and not is_newer else None
    now = rows.get(chosen[0].key, ())
    state = replace(state, jobs=chosen, now=now, progress=progress, programs=(), quiet="", job=job)
    return replace(state, quiet=_stall(state))


def plain_state(job: PlainJob) -> RunState:
    """Return the state of a job that was not submitted by this user with sbatchgen."""
    about, name = job.record, job.word
    its = RunJob("", name, about.job, "", about.submitted, ended=True, says=FORGOTTEN, seen=time.time())
    if job.rows:
        chosen = [job.row] if job.row and not job.row.task.startswith("[") else job.rows
        its = of_rows(its._replace(says=""), [row for row in chosen if row], job.folder)
    if its.state == "COMPLETED" and any(crash(last_start(path, AT_END)) for path in newest_logs(about)):
        its = its._replace(says=ERRORS)
    live = [row for row in job.rows if not row.state.ended]
    run = Run(name=name, where=str(job.folder), shared=True, created=about.submitted)
    progress = read_progress(job.folder, [about])
    state = RunState(run=run, jobs=[its], now=live[:1], progress=progress, plain=job)
    return replace(state, quiet=_stall(state))


def submissions(state: RunState) -> list[record.Record]:
    """Return what is known of the submissions of a run, the oldest first."""
    known = [state.plain.record] if state.plain else record.records(state.run.folder)
    return [each for each in known if state.job in ("", each.job)]


def submission(state: RunState, job: str) -> record.Record | None:
    """Return what is known of the submission of a job of a run; None if nothing is known."""
    return state.plain.record if state.plain else record.read_record(state.run.folder, job)


def point_state(state: RunState, point: str) -> RunState:
    """Return a point of a sweep as if it were a run; raise CommandLineError if the run has no such point."""
    name, folder = state.run.name, state.run.folder
    several = state.sweep.points if state.sweep else ()
    about = next((each for each in several if str(each.number) == point), None)
    if about is None:
        raise CommandLineError.of(f"run {name} has no point {point}", fix=f"sbatchgen status {name}")
    known = record.records(folder)
    submitted = {each.job for each in known if about.number in record.point_numbers(each, each.array)}
    jobs = [job._replace(state="", ended=True, says="") for job in state.jobs if job.id in submitted]
    if jobs and about.row:
        jobs[-1] = of_rows(jobs[-1], [about.row], folder)
    elif jobs:
        how, says = _ENDS[about.state]
        jobs[-1] = jobs[-1]._replace(state=how, says=says or about.says)
    run, now = state.run._replace(name=f"{name}/{point}"), [about.row] if about.row else []
    return RunState(run=run, jobs=jobs, now=now, progress=about.progress, point=point)


def _stall(state: RunState) -> str:
    """Say which rank of a run hangs, or how long the run has stood still; "" for a run with several tasks."""
    job, now = state.last, state.now
    rows = [row for row in now if row.state.name == "RUNNING"]
    its = submission(state, job.id) if job and not job.ended else None
    if its is None or not job or job.state != "RUNNING" or len(now) > 1 or (rows and rows[0].task):
        return ""
    clock = time.time()
    started = clock - rows[0].used_s if rows else job.submitted
    if says := stall.hang(state.run.folder, started):
        return says
    quiet = stall.stalled_for(its, state.run.folder, started, clock)
    return quiet.says if quiet else ""


def _restarted(state: RunState, environment: Mapping[str, str]) -> str:
    """Say how the start before the newest one of a job ended, as Slurm's database or the log knows it."""
    job, restarts = state.last, state.now[0].restarts if state.now else 0
    submission = record.read_record(state.run.folder, job.id) if job and not is_local(job) else None
    if not job or not submission or submission.array:
        return ""
    logs = [last_starts(path, AT_END) for path in newest_logs(submission)]
    # A job that waits, or was cancelled while it waited, has not begun its newest start.
    waits = job.state == "CANCELLED" or (job.state == "PENDING" and restarts > 0)
    newest = _outside(line for _, last in logs for line in last) if waits else None
    earlier = [line for before, _ in logs for line in before]
    if not newest or newest.cause not in _AGAIN:
        newest = _outside(earlier)
    ended = newest.means if newest else ""
    if not (ended or earlier or restarts):
        return ""
    with contextlib.suppress(SlurmError):
        known = accounting({job.id: job.key}, before([job]), environment, cluster=job.cluster) or []
        ends = [row.before for row in known if row.before]
        ended = next((end for end in ends if not (ended and end.startswith(REQUEUED))), ended)
    return ended


def _outside(lines: Iterable[tuple[int, str]]) -> Failure | None:
    """Return the last cause outside of the training that a log shows, or its time limit."""
    causes = [cause for cause in failures("", lines, "") if cause.rank in ("outside", "limit")]
    return max(causes, key=lambda cause: cause.line, default=None)


def problems_of(states: Iterable[RunState]) -> Iterator[Problem]:
    """Yield the action of the user for each run that does not start by itself."""
    for run_state in states:
        name, last = run_state.run.name, run_state.last
        if last and last.state == LOST and last.says:
            yield Problem(f"{name}: {last.says}", fix=f"sbatchgen resume {name}")
        for row in run_state.now[:1]:
            why = reason(row.reason, row.id)
            if row.state.name == "PENDING" and why.kind in ("never", "person"):
                yield Problem(f"{name}: {why.means}", f"job {row.id}, {why.name}", why.fix)
