"""The state of runs: what Slurm says now, or said last, and how far the trainings are."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import zip_longest
from pathlib import Path

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem, SbatchgenError, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.resolved.sweep import Sweep
from sbatchgen.jobs.runs import life, points, process, record
from sbatchgen.jobs.runs.ended import KeptProgress
from sbatchgen.jobs.runs.events import EVENTS, STATUS
from sbatchgen.jobs.runs.failure import Failure, crash, failures
from sbatchgen.jobs.runs.index import LOST, SUBMITTING, Index, Run, RunJob
from sbatchgen.jobs.runs.job_log import last_start, last_starts, newest_logs
from sbatchgen.jobs.runs.plain_job import NOWHERE, PlainJob
from sbatchgen.jobs.runs.points import SweepState
from sbatchgen.jobs.runs.program_states import ProgramState, failed, read_programs
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.slurm.accounting import REQUEUED, accounting
from sbatchgen.jobs.slurm.queue import SlurmJob, key_of, queue
from sbatchgen.jobs.slurm.state import State, reason, state

SUBMITS_S = 900.0  # a submission takes no longer, unless its command was killed
# slurmctld saves its jobs some seconds after it has accepted them.
_FORGOTTEN = "Slurm has lost it, and given its id to another job: its controller was killed"
FORGOTTEN = "Slurm does not know it any more, so only its log was read"
_BY_LOG = "as its log says, for Slurm has forgotten the job"
# How a job ended by the words of slurmstepd. Source: src/slurmd/slurmstepd/req.c of Slurm 22.05
_BY_WORDS = {"": "CANCELLED", "TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL", "PREEMPTION": "PREEMPTED"}
_NEVER_BEGAN = "no longer in the queue, and it has no log: cancelled while it waited, or lost by Slurm"
NEVER_STARTED = "it has never started"
ERRORS = "with errors in the log"  # of a program that crashed in a job that ended with status 0
AT_END = 200  # lines of a log that are read for them
SAVED = "stopped and saved, with more to do"  # exit status 75
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
    jobs: dict[str, list[RunJob]] = {run.name: [] for run in runs}
    for job in index.jobs(runs[0].name if len(runs) == 1 else None):
        if job.run in jobs:
            jobs[job.run].append(job)
    live = [job for several in jobs.values() for job in several if not job.ended]
    seen, rows, problems = _see(live, {run.name: run.folder for run in runs}, environment)
    seen |= _after_runs(seen, rows, index)
    with contextlib.suppress(DocumentError):  # as on a full disk: it is seen again the next time
        index.seen(seen.values())
    states = []
    ended = KeptProgress(index.file) if len(runs) > 1 else None
    sweep, unread = _sweep_of(runs)
    problems += unread
    for run in runs:
        of_run = [seen.get(job.key, job) for job in jobs[run.name]]
        is_known, progress = ended.progress(run, of_run) if ended else (False, None)
        if is_known:
            states.append(RunState(run=run, jobs=of_run, progress=progress))
            continue
        state = RunState(run=run, jobs=of_run, progress=None if sweep else read_progress(run.folder))
        state = replace(state, now=rows.get(state.last.key, ()) if state.last else ())
        since = state.last.submitted - life.CLOCKS_S if state.last else 0.0
        programs = read_programs(run.folder, since)
        states.append(replace(state, quiet=_quiet(state), programs=programs))
        if ended and not programs:
            ended.keep(run, of_run, state.progress)
    if ended:
        ended.save()
    if not sweep:
        states = [_of_job(state, job, rows) for state, job in zip_longest(states, asked[: len(states)])]
    if len(states) == 1:
        states = [replace(states[0], restarted=_restarted(states[0], environment))]
    if sweep:
        queued = [row for several in rows.values() for row in several]
        points_now = points.sweep_state(sweep, runs[0].folder, record.records(runs[0].folder), queued, point)
        states = [replace(states[0], sweep=points_now)]
    return states, problems


def _sweep_of(runs: Sequence[Run]) -> tuple[Sweep | None, Sequence[Problem]]:
    """Return the sweep of a single run, if it is one, and why that can't be read."""
    try:
        return (points.read_sweep(runs[0].folder) if len(runs) == 1 else None), ()
    except SbatchgenError as error:
        return None, error.problems


def _of_job(state: RunState, job: str | None, rows: Mapping[str, Sequence[SlurmJob]]) -> RunState:
    """Return a state as it is for one job of the run, if that is not the one that stands for the run."""
    chosen = [each for each in state.jobs if each.id == job]
    if not job or not chosen or (state.last and state.last.id == job):
        return state
    its = record.read_record(state.run.folder, job)
    # the status and the events of a trainer are those of its newest start
    is_newer = any((state.run.folder / name).exists() for name in (STATUS, EVENTS))
    progress = read_progress(state.run.folder, [its]) if its and not is_newer else None
    now = rows.get(chosen[0].key, ())
    state = replace(state, jobs=chosen, now=now, progress=progress, programs=(), quiet="", job=job)
    return replace(state, quiet=_quiet(state))


def plain_state(job: PlainJob) -> RunState:
    """Return the state of a job that was not submitted by this user with sbatchgen."""
    about, name = job.record, job.word
    its = RunJob("", name, about.job, "", about.submitted, ended=True, says=FORGOTTEN, seen=time.time())
    if job.rows:
        chosen = [job.row] if job.row and not job.row.task.startswith("[") else job.rows
        its = _of_rows(its._replace(says=""), [row for row in chosen if row], job.folder)
    if its.state == "COMPLETED" and any(crash(last_start(path, AT_END)) for path in newest_logs(about)):
        its = its._replace(says=ERRORS)
    live = [row for row in job.rows if not row.state.ended]
    run = Run(name=name, where=str(job.folder), shared=True, created=about.submitted)
    progress = read_progress(job.folder, [about])
    state = RunState(run=run, jobs=[its], now=live[:1], progress=progress, plain=job)
    return replace(state, quiet=_quiet(state))


def submissions(state: RunState) -> list[record.Record]:
    """Return what is known of the submissions of a run, the oldest first."""
    known = [state.plain.record] if state.plain else record.records(state.run.folder)
    return [each for each in known if state.job in ("", each.job)]


def submission(state: RunState, job: str) -> record.Record | None:
    """Return what is known of the submission of a job of a run; None if nothing is."""
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
        jobs[-1] = _of_rows(jobs[-1], [about.row], folder)
    elif jobs:
        how, says = _ENDS[about.state]
        jobs[-1] = jobs[-1]._replace(state=how, says=says or about.says)
    run, now = state.run._replace(name=f"{name}/{point}"), [about.row] if about.row else []
    return RunState(run=run, jobs=jobs, now=now, progress=about.progress, point=point)


def _quiet(state: RunState) -> str:
    """Say which rank of a run hangs, or for how long it has stood still; "" of one with several tasks."""
    job, now = state.last, state.now
    rows = [row for row in now if row.state.name == "RUNNING"]
    its = submission(state, job.id) if job and not job.ended else None
    if its is None or not job or job.state != "RUNNING" or len(now) > 1 or (rows and rows[0].task):
        return ""
    clock = time.time()
    started = clock - rows[0].used_s if rows else job.submitted
    if says := life.hang(state.run.folder, started):
        return says
    quiet = life.quiet_now(its, state.run.folder, started, clock)
    return quiet.says if quiet else ""


def _restarted(state: RunState, environment: Mapping[str, str]) -> str:
    """Say how the start before the newest one of a job ended, as Slurm's database or the log knows it."""
    job, restarts = state.last, state.now[0].restarts if state.now else 0
    submission = record.read_record(state.run.folder, job.id) if job and not is_local(job) else None
    if not job or not submission or submission.array:
        return ""
    logs = [last_starts(path, AT_END) for path in newest_logs(submission)]
    # One that was cancelled while it waited, or that waits, has not begun its newest start.
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


def before(jobs: Iterable[RunJob]) -> datetime:
    """Return a time before all of the jobs were submitted, by any clock of the cluster: sacct needs one."""
    return datetime.fromtimestamp(min(job.submitted for job in jobs) - life.CLOCKS_S, timezone.utc)


def is_local(job: RunJob) -> bool:
    """Whether it runs without Slurm: then its id is the time of its start."""
    return bool(job.id) and not job.id.isdecimal()


def _see(
    live: Sequence[RunJob], folders: Mapping[str, Path], environment: Mapping[str, str]
) -> tuple[dict[str, RunJob], dict[str, list[SlurmJob]], list[Problem]]:
    """Return the jobs as they are now and squeue's rows of each, by its key; and what went wrong."""
    seen = [_of_process(job, folders[job.run]) for job in live if is_local(job)]
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
    now = time.time()
    return {job.key: job._replace(seen=now) for job in seen}, rows, problems


def _on_cluster(
    jobs: Sequence[RunJob], cluster: str, folders: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[tuple[RunJob, list[SlurmJob]]]:
    """Yield each job of a cluster as it is now, with squeue's rows of it, but for one that may still come."""
    by_key: dict[str, list[SlurmJob]] = {}
    ids = set()
    for row in queue(environment, cluster=cluster):
        by_key.setdefault(key_of(row.command), []).append(row)
        ids.add(str(row.job))
    gone = []
    for job in jobs:
        if rows := by_key.get(job.key):
            yield _of_rows(job._replace(id=str(rows[0].job)), rows, folders[job.run]), rows
        elif job.id in ids:
            yield job._replace(state=LOST, ended=True, says=_FORGOTTEN), []
        elif job.id:
            gone.append(job)
        elif job.state == LOST or time.time() - job.submitted > SUBMITS_S:
            says = "sbatch's answer was lost, and there is no such job in the queue"
            ended = job.state == LOST and time.time() - job.submitted > SUBMITS_S
            yield job._replace(state=LOST, ended=ended, says=says), []
    if gone:
        yield from ((job, []) for job in _from_accounting(gone, cluster, folders, environment))


def _from_accounting(
    gone: Sequence[RunJob], cluster: str, folders: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[RunJob]:
    """Yield the last states of jobs that squeue no longer knows."""
    keys = {job.id: job.key for job in gone}
    by_id: dict[str, list[SlurmJob]] = {}
    for row in accounting(keys, before(gone), environment, cluster=cluster) or ():
        by_id.setdefault(str(row.job), []).append(row)
    for job in gone:
        rows = by_id.get(job.id, [])
        if rows and all(row.state.ended for row in rows):
            yield _of_rows(job, rows, folders[job.run])
        else:
            submission = record.read_record(folders[job.run], job.id)
            began = not submission or any(path.exists() for path in newest_logs(submission))
            how = _as_its_log_says(submission) if submission and began else ""
            says = (_BY_LOG if how else "no longer in the queue") if began else _NEVER_BEGAN
            yield job._replace(state=how, ended=True, says=says)


def _as_its_log_says(submission: record.Record) -> str:
    """Return how a job ended by the words of Slurm in its log; "" without any, or of an array."""
    said = re.compile(
        rf"slurmstepd\S*: error: \*\*\* JOB {submission.job} ON \S+ CANCELLED AT \S+ (?:DUE TO ([A-Z ]+)|\*)"
    )
    for path in () if submission.array else newest_logs(submission):
        for _, line in reversed(last_start(path, AT_END)):
            if match := said.match(line):
                return _BY_WORDS.get((match[1] or "").strip(), "")
    return ""


def _hides_errors(job: RunJob, folder: Path) -> bool:
    submission = record.read_record(folder, job.id)
    return any(crash(last_start(path, AT_END)) for path in (newest_logs(submission) if submission else ()))


def _of_rows(job: RunJob, rows: Sequence[SlurmJob], folder: Path) -> RunJob:
    """Return a job by its rows: one, or several of an array."""
    if len(rows) == 1:
        (row,) = rows
        says = ""
        if row.state.name == "PENDING":
            says = _waits(row)
        elif _never_started(row):
            says = NEVER_STARTED
        elif row.state.name == "COMPLETED" and _hides_errors(job, folder):
            says = ERRORS
        elif row.state.name == "FAILED" and (row.exit_code or row.signal):
            says = f"signal {row.signal}" if row.signal else _exit_status(row.exit_code)
        return job._replace(state=row.state.name, ended=row.state.ended, says=says)
    counts = Counter[State]()
    for row in rows:
        waiting = indices(row.task) if row.task.startswith("[") else None
        counts[row.state] += sum(map(len, waiting)) if waiting else 1
    live = [state for state in counts if not state.ended]
    likely = [*live, *(state for state in counts if state.name != "COMPLETED"), *counts]
    first = next((state for state in live if state.name == "RUNNING"), likely[0])
    submission = None if live else record.read_record(folder, job.id)
    if submission and submission.one_training:
        ran = [row for row in rows if not _never_started(row)]
        first = max(ran or rows, key=lambda row: row.start.timestamp() if row.start else 0).state
    says = ", ".join(f"{count} {state.words}" for state, count in counts.most_common())
    return job._replace(state=first.name, ended=not live, says=says)


def _waits(row: SlurmJob, runs: Mapping[str, str] | None = None) -> str:
    """Return why a job waits; after others, with the conditions that are left, and the runs of these jobs."""
    says = reason(row.reason, row.id).means
    if row.reason != "Dependency":
        return says
    left = re.findall(r"(\w+):([\d_*]+)\S*?\(unfulfilled\)", row.dependency)
    of_runs = ((how, job, (runs or {}).get(job.partition("_")[0])) for how, job in left)
    others = ", ".join(f"{how} {job}" + (f" of run {run}" if run else "") for how, job, run in of_runs)
    return f"{says}: {others}" if others else says


def _after_runs(
    seen: Mapping[str, RunJob], rows: Mapping[str, Sequence[SlurmJob]], index: Index
) -> dict[str, RunJob]:
    """Return the jobs that wait for others, with the names of the runs that these belong to."""
    waits = {key: several[0] for key, several in rows.items() if len(several) == 1 and several[0].dependency}
    waits = {key: row for key, row in waits.items() if row.state.name == "PENDING"}
    runs = {job.id: job.run for job in index.jobs()} if waits else {}
    return {key: seen[key]._replace(says=_waits(row, runs)) for key, row in waits.items()}


def _exit_status(status: int) -> str:
    return SAVED if status == 75 else f"exit status {status}"


def _never_started(row: SlurmJob) -> bool:
    """Whether a job was cancelled while it waited, as those of a chain that are not needed."""
    return row.state.name == "CANCELLED" and not (row.node_list or row.used_s or row.restarts)


def _of_process(job: RunJob, run_dir: Path) -> RunJob:
    submission = record.read_record(run_dir, job.id)
    status = process.exit_status(run_dir, job.id)
    if status is not None:
        name = "FAILED" if status else "COMPLETED"
        return job._replace(state=name, ended=True, says=_exit_status(status) if status else "")
    if submission is None:
        gone = not run_dir.exists()
        says = "its run folder is gone" if gone else "its record can't be read"
        return job._replace(state="" if gone else job.state, ended=gone, says=says)
    alive = process.is_alive(submission.process, run_dir) if submission.process else False
    if alive is False or not submission.process:
        return job._replace(state="FAILED", ended=True, says="killed")
    says = "" if alive else f"on {submission.process.host}, as it was last seen"
    return job._replace(state="RUNNING", says=says)


def words(job: RunJob) -> str:
    """Return the state of a job in plain words."""
    if job.state in (SUBMITTING, LOST):
        return "being submitted" if job.state == SUBMITTING else "not known"
    return state(job.state).words if job.state else ("submitted" if not job.ended else "ended")


def problems_of(states: Iterable[RunState]) -> Iterator[Problem]:
    """Yield what a person must do for runs that do not start by themselves."""
    for run_state in states:
        name, last = run_state.run.name, run_state.last
        if last and last.state == LOST and last.says:
            yield Problem(f"{name}: {last.says}", fix=f"sbatchgen resume {name}")
        for row in run_state.now[:1]:
            why = reason(row.reason, row.id)
            if row.state.name == "PENDING" and why.kind in ("never", "person"):
                yield Problem(f"{name}: {why.means}", f"job {row.id}, {why.name}", why.fix)
