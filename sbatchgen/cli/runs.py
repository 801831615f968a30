"""status, logs, report, diagnose, cancel, exec, plot: a job after it was submitted."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbatchgen.base.errors import (
    CommandLineError,
    DocumentError,
    Problem,
    SbatchgenError,
    SlurmError,
    did_you_mean,
)
from sbatchgen.base.quoting import ALSO, counted, numbers_as_text, one_line, words
from sbatchgen.base.quoting import word as quoted
from sbatchgen.cli import output
from sbatchgen.cli.output import BRIEF, FORMAT, completed_runs, here, note, print_bytes, put, put_in_form, say

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.index import Index, Run
    from sbatchgen.jobs.runs.plain_job import PlainJob
    from sbatchgen.jobs.runs.plot import History
    from sbatchgen.jobs.runs.status import RunState
    from sbatchgen.jobs.slurm.queue import SlurmJob

RECENT_S = 7 * 86400.0  # status shows runs that ended since then
POLL_S = 10.0  # between two questions to Slurm; its manual pages ask not to hurry
LOG_POLL_S = 0.5

RUN = click.argument("run", metavar="RUN", shell_complete=completed_runs)
RUNS = click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=completed_runs)


def _task(help_: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--task", metavar="N", default="", help=help_)


def open_index() -> Index:
    """Return the index of runs; raises DocumentError if it can't be used."""
    from sbatchgen.jobs.runs.index import Index, place

    return Index(place(os.environ), note)


def find_run(index: Index, word: str, *, changes: bool | None = False) -> Run:
    """Return the run that a word means; raises CommandLineError if there is not exactly one.

    Where ./runs/NAME is another run, a command that `changes` runs asks which is meant, and is refused
    without a terminal; another command says which run it shows. With None nothing is said.
    """
    runs = index.find(word, here())
    if len(runs) == 1:
        if changes is not None and (others := index.beside(runs[0], word, here())):
            _choose(index, word, runs[0], others[0], changes=changes)
        return runs[0]
    if not runs and (plain := find_plain(index, word)):
        raise _only_read(plain)
    names = [run.name for run in (runs or index.runs())]
    if runs:
        raise CommandLineError.of(f"'{word}' is ambiguous", fix=f"name one run: {', '.join(names[-20:])}")
    fix = "sbatchgen status --all lists your runs; its --scan enters those of a folder"
    near = did_you_mean(word, names[-1000:]) if names else ""
    raise CommandLineError.of(f"there is no run '{word}'", fix=near if near.startswith("did") else fix)


def _choose(index: Index, word: str, named: Run, other: Run, *, changes: bool) -> None:
    says = f"'{word}' is the run in {named.folder}, and ./runs/{word} is run {other.name}"
    if not changes:
        note(f"note: {says}; this is about {word}")
    elif sys.stdin.isatty():
        click.confirm(one_line(f"{says}. Is {word} meant?"), abort=True, err=True)
    else:
        jobs = [job.id for job in index.jobs(named.name) if job.id]
        full = jobs[-1] if named.shared and jobs else str(named.folder)
        raise CommandLineError.of(says, fix=f"name one: {full} or {other.name}")


def find_plain(index: Index, word: str, task: str = "") -> PlainJob | None:
    """Return the job that a word means if it is of no run: of plain sbatch, or of a colleague; else None.

    Raises CommandLineError for a file that is not a log, and for an id that is not known; DocumentError and
    SlurmError for what can't be read.
    """
    from sbatchgen.jobs.runs.plain_job import find

    base, _, point = word.rpartition("/")
    if index.find(word, here()) or (base and point.isdecimal() and index.find(base, here())):
        return None
    return find(word, here(), os.environ, task if task.isdecimal() else "")


def _only_read(job: PlainJob) -> SbatchgenError:
    """Return why a command that changes a job, or starts it again, can't do that with one of no run."""
    if job.owner:
        fix = f"{_continued(job)}{ALSO}status, logs, diagnose and plot can read it"
        return CommandLineError.of(f"{job.word} belongs to {job.owner}", fix=fix)
    what = f"{job.word} is a job that was not submitted by sbatchgen"
    live = job.row is not None and not job.row.state.ended
    fix = f"scancel {job.id} cancels it; " if live else ""
    script = job.record.script
    if script:
        fix += f"sbatchgen submit {quoted(_from_here(script))} submits its script as a run"
    return CommandLineError.of(what, fix=fix or "submit its script by sbatchgen, to have a run")


def _from_here(path: str) -> str:
    """Return the path of a file as it is typed here: in this folder its name alone."""
    return os.path.relpath(path) if Path(path).is_relative_to(here()) else path


def _continued(job: PlainJob) -> str:
    """Return how to continue the training of a colleague's run."""
    from sbatchgen.base.machine.trust import user_name

    newest = job.newest_checkpoint
    again = f"--resume {quoted(str(newest))}" if newest else "--resume and its checkpoint"
    own = quoted(f"runs-{user_name(os.geteuid())}/{job.folder.name}")
    return f"to continue its training, submit your job with {again} --run-dir {own}"


def find_point(index: Index, word: str, *, changes: bool | None = False) -> tuple[Run, str]:
    """Return the run that a word means, and the point or task of lr/0 and of a log.

    Asks and raises as `find_run` does.
    """
    from sbatchgen.jobs.runs.job_log import task_of
    from sbatchgen.jobs.runs.points import POINTS
    from sbatchgen.jobs.runs.record import records

    base, _, point = word.rpartition("/")
    is_point = base and point.isdecimal() and not index.find(word, here())
    run, path = find_run(index, base if is_point else word, changes=changes), Path(here(), word)
    known = records(run.folder)
    if is_point and not any(record.array for record in known) and not (run.folder / POINTS).exists():
        raise CommandLineError.of(f"run {run.name} is not a sweep or an array", fix=f"leave out /{point}")
    tasks = (task_of(record, path) for record in known if path.is_file())
    return run, point if is_point else next(filter(None, tasks), "")


def find_job(index: Index, word: str, *, changes: bool | None = False) -> tuple[Run, str, str]:
    """Return the run, the point or task, and the id of the job that a word means, if it names one."""
    from sbatchgen.jobs.runs.record import read_record

    run, point = find_point(index, word, changes=changes)
    job = index.job_of(run, word, here())
    task = word.removeprefix(f"{job}_")
    known = read_record(run.folder, job) if job and task != word and task.isdecimal() else None
    return run, (str(int(task) + known.first) if known and known.array else point), job


def point_states_of(
    index: Index, names: Sequence[str], *, changes: bool = False
) -> tuple[list[RunState], list[Problem]]:
    """Return the states of runs, of points as lr/0, and of jobs of no run, and what could not be read."""
    from sbatchgen.jobs.runs.points import POINTS
    from sbatchgen.jobs.runs.status import plain_state, point_state, run_states

    plain = {at: job for at, name in enumerate(names) if (job := find_plain(index, name))}
    of_runs = [name for at, name in enumerate(names) if at not in plain]
    chosen = [find_job(index, name, changes=changes) for name in of_runs]
    alone = chosen[0][1] if len(chosen) == 1 else ""
    runs, jobs = [run for run, _, _ in chosen], [job for _, _, job in chosen]
    states, problems = run_states(index, os.environ, runs, alone, jobs) if chosen else ([], [])
    for at, (run, point, _) in enumerate(chosen):
        if point and (not Path(of_runs[at]).is_file() or (run.folder / POINTS).exists()):
            (whole,) = states if len(chosen) == 1 else run_states(index, os.environ, [run], point)[0]
            states[at] = point_state(whole, point)
    for at, job in plain.items():  # in the order of the names
        states.insert(at, plain_state(job))
        problems += [Problem(each) for each in job.problems]
    return states, problems


def check_folder(run: Run) -> None:
    """Raise DocumentError if the folder of a run is gone, OSError if it can't be read."""
    try:
        os.scandir(run.folder).close()
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"the folder of run {run.name} is gone: {run.folder}"
        raise DocumentError.of(
            what, fix="if it was moved, enter it again: --scan of sbatchgen status takes the folder above it"
        ) from error


@click.command()
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=completed_runs)
@click.option("--all", "every", is_flag=True, help="Also runs that ended more than a week ago.")
@click.option("--watch", is_flag=True, help=f"Show it again every {POLL_S:g} seconds.")
@click.option("--scan", metavar="FOLDER", type=click.Path(), help="First add the runs found in this folder.")
@click.option(
    "--sort",
    metavar="METRIC",
    default="",
    help="Points of a sweep by a metric, the best first; or a parameter.",
)
@click.option("--reverse", is_flag=True, help="With --sort: the other way round.")
@FORMAT
@BRIEF
def status(
    names: tuple[str, ...], *, watch: bool, scan: str | None, sort: str, reverse: bool, form: str, **how: bool
) -> None:
    """Show the state of runs, why they wait, and their progress.

    RUN is the name of a run, its folder, or the id of a job, and lr/0 is point 0 of the sweep lr. With one
    RUN: everything about it.
    """
    if (sort or reverse) and not (sort and len(names) == 1 and form != "json"):
        what = "--sort METRIC and --reverse are about the table of one sweep"
        raise CommandLineError.of(what, fix="name the sweep, and write no --format json")
    index = open_index()
    if scan is not None:
        _scan(index, Path(scan))

    folder = Path(scan) if scan is not None and not names else None
    show = partial(_show_status, index, names, folder, form=form, sort=sort, reverse=reverse, **how)
    output.redraw(show, POLL_S) if watch else show()


def _scan(index: Index, folder: Path) -> None:
    from sbatchgen.jobs.runs.index import scan

    if not folder.is_dir():
        raise CommandLineError.of(f"there is no folder {folder}", at="--scan")
    scanned = [*scan(folder.absolute())]
    runs, skipped = index.add(run for run in scanned if run), scanned.count(None)
    others = ""
    if skipped:
        others = (
            f"; skipped: {counted(skipped, 'record')} of other users, whose runs status, logs and diagnose"
        )
        others += " read by their folders"
    note(f"note: {counted(len(runs), 'run')} found in {folder}{others}")


def _plain_logs(index: Index, folder: Path) -> list[PlainJob]:
    """Return the jobs of the newest logs with Slurm's own name in a folder that are of no run."""
    from sbatchgen.jobs.runs import plain_job

    logs = [path for path in plain_job.logs_in(folder) if not index.find(str(path), here())]
    jobs = plain_job.of_logs(logs, os.environ)
    return [replace(job, word=os.path.relpath(job.word, here())) for job in jobs]


def _show_status(
    index: Index,
    names: Sequence[str],
    folder: Path | None,
    *,
    every: bool,
    form: str,
    sort: str,
    reverse: bool,
    brief: bool,
) -> None:
    """Show these runs, or all of them and the logs of other jobs in a folder."""
    from sbatchgen.jobs.runs import job_log, overview
    from sbatchgen.jobs.runs.status import plain_state, problems_of, run_states, submissions

    since = 0.0 if every else time.time() - RECENT_S
    if names:
        states, problems = point_states_of(index, names)
    else:
        states, problems = run_states(index, os.environ, index.runs(since=since))
        states = [*map(plain_state, _plain_logs(index, folder)), *states] if folder else states
    if form == "json":
        from sbatchgen.jobs.outputs.runs import status_output

        output.put_json(status_output(states, problems, brief=brief))
    elif len(names) == 1:
        known = submissions(states[0])
        last = next((each for each in known if states[0].last and each.job == states[0].last.id), None)
        logs = [str(path) for path in job_log.newest_logs(last, states[0].point)] if last else []
        if sort and not states[0].sweep:
            what = f"run {states[0].run.name} is not a sweep"
            raise CommandLineError.of(what, at="--sort", fix="leave it out")
        put(overview.page(states[0], known, logs, sort=sort, reverse=reverse), nl=False)
    elif states:
        put(overview.overview(states), nl=False)
    else:
        note("note: no runs yet" if every else "note: no runs of the last week; --all shows older ones")
    for problem in problems:
        seen = f"; states are those of {overview.seen(states)}" * any(not state.plain for state in states)
        say(Problem(f"{problem.what}{seen}", fix=problem.fix), "warning")
    if form != "json":
        for problem in problems_of(states):
            say(problem, "warning")
        if len(names) == 1:
            _hint(states[0])


def _hint(state: RunState) -> None:
    from sbatchgen.jobs.runs.diagnosis import is_failed
    from sbatchgen.jobs.runs.seen_jobs import SAVED

    job = state.last
    if is_failed(state) and not (job and (job.state == "CANCELLED" or job.says == SAVED)):
        note(f"note: sbatchgen diagnose {state.job or state.run.name} says why it failed")


def _completed_programs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the programs of RUN that have logs."""
    from sbatchgen.jobs.runs import program_states

    with contextlib.suppress(SbatchgenError, OSError):
        run, _point = find_point(open_index(), ctx.params.get("run") or next(iter(ctx.args), ""))
        return [name for name in program_states.logs(run.folder) if name.startswith(incomplete)]
    return []


def _check_program(run: Run, program: str) -> None:
    """Raise CommandLineError if a run has no log of a program."""
    from sbatchgen.jobs.runs import program_states

    names = [*program_states.logs(run.folder)]
    if program in names:
        return
    without, at = f"sbatchgen logs {run.name}", "--program"
    if any(program == each.name for each in program_states.read_programs(run.folder, 0.0)):
        what = f"program {program} has no log of its own: the main one prints to that of the job"
        raise CommandLineError.of(what, at=at, fix=without)
    fix = f"one of: {', '.join(names)}" if names else without
    raise CommandLineError.of(f"run {run.name} has no log of a program '{program}'", at=at, fix=fix)


@click.command()
@RUN
@click.option(
    "--follow", "-f", is_flag=True, help="Show new lines until the run ends. Ctrl-C leaves the job alone."
)
@click.option(
    "--lines",
    "-n",
    metavar="N",
    type=click.IntRange(min=0),
    default=None,
    help="Start with the last N lines. [default: all; 20 with -f]",
)
@_task("Task of an array or a sweep.")
@click.option(
    "--program",
    metavar="NAME",
    default="",
    shell_complete=_completed_programs,
    help="The log of one of several programs. [default: that of the job, and so of the main program]",
)
def logs(run: str, *, follow: bool, lines: int | None, task: str, program: str) -> None:
    """Show the log of a run.

    RUN may also be a log or a script of the run. All jobs and requeues of the run count as one log.
    """
    from sbatchgen.jobs.runs.job_log import RunLogs

    index = open_index()
    if plain := find_plain(index, run, task):
        _plain_log(plain, run, lines, follow=follow)
        return
    chosen, point, job = find_job(index, run)
    task = task or point
    if program:
        _check_program(chosen, program)
    if follow:
        follow_run(
            index, chosen.name, lines=20 if lines is None else lines, task=task, program=program, job=job
        )
        return
    shown = RunLogs(chosen.folder, lines, task, program=program, job=job)
    if not shown.show(output.put_log):
        check_folder(chosen)
        raise DocumentError.of(f"run {chosen.name} has no log so far", fix=f"sbatchgen status {chosen.name}")
    if shown.is_empty:
        why = "Python keeps lines for itself while a program runs: --env PYTHONUNBUFFERED=1"
        note(f"note: the log is empty so far. {why}; sbatchgen diagnose {chosen.name} says how a job ended")


def _plain_log(job: PlainJob, word: str, lines: int | None, *, follow: bool) -> None:
    """Show the log of a job of no run, with `follow` until that has ended."""
    from sbatchgen.jobs.runs import overview
    from sbatchgen.jobs.runs.job_log import RunLogs
    from sbatchgen.jobs.runs.plain_job import find
    from sbatchgen.jobs.runs.status import plain_state

    if job.problems:
        raise DocumentError(map(Problem, job.problems))
    lines = 20 if lines is None and follow else lines
    shown = RunLogs(job.folder, lines, "", plain=job.record)
    others = [row.task for row in job.rows if row.task and row.id != job.id]
    if others:
        note(f"note: {job.id}; of the other tasks: sbatchgen logs {job.id.partition('_')[0]} --task N")
    is_there = shown.show(output.put_log)
    asked = time.monotonic()
    while follow and job.row and not job.row.state.ended:
        time.sleep(LOG_POLL_S)
        if time.monotonic() - asked >= POLL_S:
            job, asked = find(job.id, here(), os.environ) or job, time.monotonic()
        is_there = shown.show(output.put_log)
    if follow:
        note(f"note: {overview.headline(plain_state(job))}")
    elif not is_there:
        log = job.record.log.replace("%%", "%")
        raise DocumentError.of(f"there is no log {log}", fix=f"sbatchgen status {quoted(word)}")


def follow_run(
    index: Index,
    name: str,
    *,
    lines: int | None = None,
    task: str = "",
    since: float = 0.0,
    program: str = "",
    job: str = "",
) -> int:
    """Show the log of a run until its jobs have ended; return 0 if the last one completed, else 3.

    `since` leaves out the logs of jobs that were submitted before; of several programs one may be shown, and
    of several jobs one.
    """
    from sbatchgen.jobs.runs import cost, overview, status
    from sbatchgen.jobs.runs.job_log import RunLogs

    run = find_run(index, name, changes=None)
    logs = RunLogs(run.folder, lines, task, since=since, program=program, job=job)
    shown, asked, quiet = "", 0.0, False
    with _bar(run) as bar:
        while True:
            if time.monotonic() - asked >= POLL_S or not asked:
                (state,), problems = status.run_states(index, os.environ, [run], asked=[job])
                asked = time.monotonic()
                logs.refresh()
                now = overview.headline(state) if not problems else problems[0].what
                if now != shown and (state.last is None or state.last.state != "RUNNING"):
                    note(f"note: {now}")
                shown = now
                if state.quiet and not quiet:
                    note(f"note: {state.quiet}: it may stand still; sbatchgen diagnose {run.name}")
                quiet = bool(state.quiet)
            logs.show(output.put_log)
            bar()
            if all(job.ended for job in state.jobs):
                break
            time.sleep(LOG_POLL_S)
    _hint(state)
    if used := cost.in_short(cost.make_report(state, os.environ)):
        note(f"note: used: {used}; more: sbatchgen report {run.name}")
    return 0 if state.last and state.last.state == "COMPLETED" else DocumentError.exit_status


@click.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=completed_runs)
@click.option("--month", metavar="YYYY-MM", default="", help="The sum of the jobs submitted in a month.")
@click.option("--below", metavar="FOLDER", type=click.Path(), help="The sum of your runs below a folder.")
@FORMAT
def report(run: str | None, *, month: str, below: str | None, form: str) -> None:
    """Show what a run has cost, or the sum of several runs.

    For one run, report compares the resources that it asked for and used, and says what to ask for next time.
    --month and --below list the cost of your runs in a month, below a folder, or both, and the sum.
    """
    from sbatchgen.jobs.runs import cost

    if bool(run) == bool(month or below is not None):
        what = "report takes a run, or --month and --below for a sum" if run else "report of which run?"
        this = time.strftime("%Y-%m")
        raise CommandLineError.of(
            what, fix=f"name one run; or for a sum: sbatchgen report --below . --month {this}"
        )
    if run is None:
        _report_sum(month, below, form)
        return
    (state,), problems = point_states_of(open_index(), [run])
    made = cost.make_report(state, os.environ)
    put_in_form(form, made, cost.as_text(made))
    slow = f"slow: {state.progress.slow}" if state.progress and state.progress.slow else ""
    for problem in [
        *filter(None, [state.quiet, slow]),
        *(problem.what for problem in problems),
        *made.problems,
    ]:
        note(f"note: {problem}")


def _report_sum(month: str, below: str | None, form: str) -> None:
    """Print what the runs below a folder have cost by the jobs of a month; "" and None mean all."""
    from sbatchgen.jobs.runs import bill
    from sbatchgen.jobs.runs.status import run_states

    try:
        between = bill.month(month) if month else bill.ALWAYS
    except ValueError as error:
        fix = f"as in: --month {time.strftime('%Y-%m')}"
        raise CommandLineError.of(f"'{month}' is not a month", at="--month", fix=fix) from error
    index = open_index()
    top = Path(os.path.realpath(here() / below)) if below is not None else Path("/")
    if not top.is_dir():
        raise CommandLineError.of(f"there is no folder {below}", at="--below")
    chosen = [run for run in index.runs() if Path(os.path.realpath(run.folder)).is_relative_to(top)]
    states, problems = run_states(index, os.environ, chosen) if chosen else ([], [])
    made = bill.make_bill(states, os.environ, between)
    if form == "text" and not made.runs:
        note("note: no jobs of yours: sbatchgen status --all lists your runs")
        return
    put_in_form(form, made, bill.as_text(made))
    for what in (*(problem.what for problem in problems), *made.problems):
        note(f"note: {what}")


@contextlib.contextmanager
def _bar(run: Run) -> Iterator[Callable[[], None]]:
    from sbatchgen.jobs.runs.progress import read_progress

    if not output.is_screen(sys.stderr):
        yield lambda: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        name = escape(one_line(run.name))
        bar = bars.add_task(name, total=None)

        def update() -> None:
            if known := read_progress(run.folder):
                bars.update(bar, completed=known.step or 0, total=known.steps, description=known.says or name)

        yield update


@click.command()
@RUN
@_task("Task of an array or a sweep. [default: the first that failed]")
@FORMAT
def diagnose(run: str, *, task: str, form: str) -> None:
    """Say why a run failed, and what to do about it.

    Reads what Slurm says, the end of the log and the run folder, and shows the lines that prove it. RUN may
    also be a log or a script of the run. Ends with status 0, also if the run has failed.
    """
    from sbatchgen.jobs.runs import diagnosis
    from sbatchgen.jobs.runs.status import plain_state, run_states

    index = open_index()
    if plain := find_plain(index, run, task):
        state, problems, point, job = plain_state(plain), list[Problem](), "", ""
    else:
        chosen, point, job = find_job(index, f"{run}/{task}" if task.isdecimal() else run)
        (state,), problems = run_states(index, os.environ, [chosen], asked=[job])
    made = diagnosis.diagnose(state, os.environ, task or point, job)
    put_in_form(form, made, diagnosis.as_text(made))
    for problem in dict.fromkeys([*problems, *made.problems]):
        say(problem, "warning")


@click.command()
@RUNS
@_task("Only this task of an array or a sweep.")
@click.option("--now", is_flag=True, help="At once, without a last checkpoint.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing but which of two runs a name means.")
def cancel(names: tuple[str, ...], *, task: str, now: bool, yes: bool) -> None:
    """Cancel the jobs of runs that wait or run.

    A trainer that looks for the stop file, as the bundled one, saves a checkpoint first: sbatchgen resume
    continues from there. It has a minute, or longer if its last save took long; Ctrl-C cancels at once.
    """
    del yes  # as people write who know submit --yes
    from sbatchgen.jobs.runs.status import run_states

    began, index = time.time(), open_index()
    chosen = [find_job(index, name, changes=True) for name in names]
    runs, ids_asked = [run for run, _, _ in chosen], [job for _, _, job in chosen]
    states, problems = run_states(index, os.environ, runs, asked=ids_asked)
    if any(job.id and not job.ended and job.seen < began for state in states for job in state.jobs):
        raise SlurmError(problems)  # Slurm may have given the id to another job
    several = [
        (state, _live(state, task or point, job * bool(point)))
        for state, (_, point, job) in zip(states, chosen, strict=True)
    ]
    jobs = [(state, id_, cluster) for state, ids in several for id_, cluster in ids]
    for state, id_, cluster in jobs if now else _save_first(jobs):
        _cancel(state, id_, cluster)
    for state, id_, _ in jobs:
        note(f"note: cancelled job {id_} of run {state.run.name}")


def _live(state: RunState, task: str, asked: str = "") -> list[tuple[str, str]]:
    """Return the jobs of a run that wait or run, or their task; or the one with the id that was `asked`."""
    name, asked = state.run.name, asked or state.job
    live = [job for job in reversed(state.jobs) if not job.ended]  # no job starts when the first ends
    live = [job for job in live if asked in ("", job.id)]
    if not live:
        note(f"note: {f'job {asked} of ' * bool(asked)}run {name} has ended already")
    ids = [(id_, job.cluster) for job in live if (id_ := _with_task(state, job.id, task))]
    if live and not ids:
        what = f"no job of run {name} that waits or runs has a task {task}"
        raise CommandLineError.of(what, at="--task", fix=f"sbatchgen status {name}")
    return ids


def _save_first(jobs: Sequence[tuple[RunState, str, str]]) -> list[tuple[RunState, str, str]]:
    """Let the trainings that run save and end; return the jobs that are still to be cancelled."""
    from sbatchgen.jobs.runs import last_save, record

    asked: list[last_save.Waited] = []
    left = []
    known = [record.read_record(state.run.folder, id_.partition("_")[0]) for state, id_, _ in jobs]
    queued = [  # without an answer nothing is cancelled: what trains would lose its last steps
        [] if submission is None or submission.process else _rows(id_, cluster)
        for submission, (_, id_, cluster) in zip(known, jobs, strict=True)
    ]
    for (state, id_, cluster), submission, rows in zip(jobs, known, queued, strict=True):
        trains = last_save.folders(submission, state.run.folder, rows) if submission else []
        if trains and any(row.state.name == "PENDING" for row in rows):
            _cancel(state, id_, cluster, "--state=PENDING")  # or they start when these end
        answers = [last_save.ask(submission, folder, row) for folder, row in trains if submission]
        asked += filter(None, answers)
        if any(answers):
            left.append((state, id_, cluster))
        else:
            _cancel(state, id_, cluster)  # it saves nothing, or gets TERM and saves then
    if not asked:
        return []
    names = ", ".join(dict.fromkeys(state.run.name for state, _, _ in left))
    note(f"saving {names} ..., Ctrl-C cancels at once")
    try:
        late = last_save.wait(asked, lambda: any(_may_run(id_, cluster) for _, id_, cluster in left))
    except KeyboardInterrupt:
        note("note: cancelled without a last checkpoint")
    else:
        for folder in late:
            note(f"note: no checkpoint was saved in time in {folder}")
    last_save.tidy(asked)
    return [(state, id_, cluster) for state, id_, cluster in left if _may_run(id_, cluster)]


def _rows(id_: str, cluster: str) -> list[SlurmJob]:
    """Return what the queue has of a job or a task that waits or runs; raise SlurmError without an answer."""
    from sbatchgen.jobs.slurm.queue import queue

    job, _, task = id_.partition("_")
    rows = queue(os.environ, cluster=cluster)
    mine = [row for row in rows if str(row.job) == job and task in ("", row.task)]
    return [row for row in mine if not row.state.ended and row.state.name != "COMPLETING"]


def _may_run(id_: str, cluster: str) -> bool:
    """Whether a job or a task waits or runs; also without an answer, as nothing says that it has ended."""
    try:
        return bool(_rows(id_, cluster))
    except SlurmError:
        return True


def _with_task(state: RunState, job: str, task: str) -> str:
    """Return the id of a job, or of a task of it; "" without such a task, which scancel ignores silently."""
    from sbatchgen.jobs.runs import record
    from sbatchgen.jobs.runs.record import point_numbers

    submission = record.read_record(state.run.folder, job) if task.isdecimal() else None
    if not task or not submission:
        return f"{job}_{task}" if task else job
    known = len(task) < 9 and int(task) in point_numbers(submission, submission.array)
    return f"{job}_{int(task) - submission.first}" if known else ""


def _cancel(state: RunState, job: str, cluster: str, *options: str) -> None:
    from sbatchgen.jobs.runs import process, record
    from sbatchgen.jobs.slurm import client

    name = state.run.name
    if not job:
        raise SlurmError.of(f"the job of run {name} is not known", fix="squeue --me shows your jobs")
    if job.partition("_")[0].isdecimal():
        client.answer(["scancel", *client.of_cluster(cluster), *options, job], os.environ)
        return
    submission = record.read_record(state.run.folder, job)  # without Slurm
    if submission is None or submission.process is None:
        raise DocumentError.of(f"the process of run {name} is not known: {state.jobs[-1].says}")
    alive = process.is_alive(submission.process, state.run.folder)
    if alive is None:
        what = f"run {name} is on {submission.process.host}, not here"
        raise DocumentError.of(what, fix=f"on that machine: sbatchgen cancel {name}")
    if alive:
        process.stop(submission.process)


@click.command("exec", options_metavar="")
@click.argument("run", metavar="RUN -- COMMAND", shell_complete=completed_runs)
@click.pass_obj
def exec_(command: tuple[str, ...], /, run: str) -> None:
    """Run a command on each node of a run.

    The training keeps running. The command comes after --, as in: sbatchgen exec ddp -- nvidia-smi. The
    exit status is that of the command. With Enroot it runs in the container of the training.
    """
    from sbatchgen.jobs.runs import seen_jobs
    from sbatchgen.jobs.runs.record import read_record
    from sbatchgen.jobs.runtimes import RUNTIMES
    from sbatchgen.jobs.slurm.client import run_here, submit_environment
    from sbatchgen.jobs.slurm.config import config

    if not command:
        fix = f"write it after --, as in: sbatchgen exec {quoted(run)} -- nvidia-smi"
        raise CommandLineError.of("no command", fix=fix)
    (state,), problems = point_states_of(open_index(), [run], changes=True)
    if problems:
        raise SlurmError(problems)
    name, job = state.run.name, state.last
    rows = [row for row in state.now if row.state.name == "RUNNING"]
    if job and seen_jobs.is_local(job):
        sys.exit(run_here(command, os.environ))
    if not rows:
        what = f"run {name} has no running job: {seen_jobs.words(job) if job else 'nothing'}"
        raise SlurmError.of(what, fix=f"sbatchgen status {name}")
    if job and job.cluster and job.cluster != config(os.environ).get("ClusterName"):
        what = f"run {name} is on cluster {job.cluster}: srun reaches the jobs of its own cluster only"
        raise SlurmError.of(
            what, fix=f"on a node of {job.cluster}: sbatchgen exec {name} -- {words(command)}"
        )
    row, environment = rows[-1], submit_environment(os.environ)[0]
    step = ["srun", f"--jobid={row.id}", "--overlap", f"--nodes={row.nodes}", f"--ntasks={row.nodes}"]
    submission = read_record(state.run.folder, job.id) if job else None
    chosen = submission.value("runtime") if submission else ""
    enter = RUNTIMES[chosen].enter if chosen in RUNTIMES else ""
    inside = ["sh", "-c", enter, "sbatchgen"] if enter else []
    sys.exit(run_here([*step, "--ntasks-per-node=1", "--", *inside, *command], environment))


def _histories(name: str, pattern: str) -> list[History]:
    """Return the history of a run or of a point, as lr/0; of a sweep, those of its points so far."""
    from sbatchgen.jobs.runs.events import OF_OWN
    from sbatchgen.jobs.runs.plot import read_history
    from sbatchgen.jobs.runs.points import read_sweep

    folder, index = Path(name), open_index()
    is_named = any(run.name == name for run in index.find(name, here()))
    is_others = folder.is_dir() and folder.stat().st_uid != os.geteuid()
    if is_named or is_others or not folder.is_dir():
        if plain := find_plain(index, name):
            return [replace(read_history(plain.folder, pattern, [plain.record]), folder=Path(name))]
        if is_named or not is_others:
            run, point = find_point(index, name)
            folder = run.folder / point
    sweep = read_sweep(folder)
    if sweep is None:
        return [read_history(folder, pattern)]
    histories, without = [], []
    for number, values in enumerate(sweep.points):
        try:
            history = read_history(folder / str(number), pattern)
        except DocumentError:
            without.append(number)
        else:
            histories.append(replace(history, point=dict(zip(sweep.names, values, strict=True))))
    if not histories:
        what = "nothing was measured in the points of this sweep so far"
        raise DocumentError.of(what, at=str(folder), fix=f"sbatchgen status {name}{ALSO}{OF_OWN}")
    if without:
        note(f"note: nothing was measured so far in {numbers_as_text(without)} of {len(sweep.points)} points")
    return histories


@click.command()
@RUNS
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A .png or .svg file. [default: plot.png in the run folder, or here for several runs]",
)
@click.option(
    "--metrics",
    metavar="REGEX",
    default="",
    help="Where the numbers are in the lines of its log, as the key metrics of a job says it.",
)
@click.option("--text", is_flag=True, help="Draw with characters, as without matplotlib.")
def plot(names: tuple[str, ...], *, output: Path | None, metrics: str, text: bool) -> None:
    """Plot loss, accuracy and throughput of runs.

    RUN is a run folder or the name of a run, which may still be running. Of a sweep each point is a curve;
    lr/0 is one of them.
    """
    from sbatchgen.base.units import LinePattern
    from sbatchgen.jobs.runs import plot as drawing

    try:
        pattern = LinePattern.parse(metrics) if metrics else ""
    except ValueError as error:
        raise CommandLineError.of(str(error), at="--metrics") from error
    histories = [history for name in names for history in _histories(name, pattern)]
    if text or not (output or drawing.can_draw()):
        from sbatchgen.jobs.runs.chart import chart

        put(chart(histories, shutil.get_terminal_size().columns), nl=False)
        if not text:
            from sbatchgen.base.machine.packages import to_install

            note(f"note: a picture needs matplotlib: {to_install('matplotlib')}")
        return
    print_bytes(os.fsencode(drawing.plot(histories, output)) + b"\n")
