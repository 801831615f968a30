"""status, logs, report, diagnose, cancel, exec, plot: what becomes of a job after it was submitted."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbatchgen.cli.output import (
    FORMAT,
    completed_runs,
    here,
    is_screen,
    note,
    print_bytes,
    put,
    put_log,
    redraw,
    say,
)
from sbatchgen.errors import CommandLineError, DocumentError, Problem, SlurmError
from sbatchgen.quoting import counted, visible

if TYPE_CHECKING:
    from sbatchgen.runs.index import Index, Run
    from sbatchgen.runs.log import Tail
    from sbatchgen.runs.status import RunState

RECENT_S = 7 * 86400.0  # status shows runs that ended since then
POLL_S = 10.0  # between two questions to Slurm; its manual pages ask not to hurry
LOG_POLL_S = 0.5

RUN = click.argument("run", metavar="RUN", shell_complete=completed_runs)


def open_index() -> Index:
    """Return the index of runs; raises DocumentError if it can't be used."""
    from sbatchgen.runs import index

    return index.open_index(os.environ, note)


def find_run(index: Index, told: str) -> Run:
    """The run that a word means.

    Raises:
        CommandLineError: There is none, or there are several.
    """
    from sbatchgen.errors import did_you_mean

    found = index.find(told, here())
    if len(found) == 1:
        return found[0]
    names = [run.name for run in (found or index.runs())]
    if found:
        raise CommandLineError.of(
            f"'{told}' may be one of several runs", fix=f"name one: {', '.join(names[-20:])}"
        )
    fix = "sbatchgen status --all lists your runs; --scan FOLDER enters those of a folder"
    near = did_you_mean(told, names[-1000:]) if names else ""
    raise CommandLineError.of(f"there is no run '{told}'", fix=near if near.startswith("did") else fix)


def state_of(name: str) -> tuple[RunState, list[Problem]]:
    """The state of the run that a word means, and what Slurm could not tell. Raises what `find_run` does."""
    from sbatchgen.runs.status import look

    index = open_index()
    (state,), problems = look(index, os.environ, [find_run(index, name)])
    return state, problems


def check_folder(run: Run) -> None:
    """Refuse a run whose folder is gone or can't be read.

    Raises:
        DocumentError: It is gone.
        OSError: It can't be read.
    """
    try:
        os.scandir(run.folder).close()
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"the folder of run {run.name} is gone: {run.folder}"
        raise DocumentError.of(what, fix="if it was moved: sbatchgen status --scan FOLDER") from error


@click.command()
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=completed_runs)
@click.option("--all", "every", is_flag=True, help="Also runs that ended more than a week ago.")
@click.option("--watch", is_flag=True, help=f"Show it again every {POLL_S:g} seconds.")
@click.option(
    "--scan",
    metavar="FOLDER",
    type=click.Path(),
    help="First add the runs found in this folder.",
)
@FORMAT
def status(names: tuple[str, ...], *, every: bool, watch: bool, scan: str | None, form: str) -> None:
    """Show the state of runs, why they wait, and their progress.

    RUN is the name of a run, its folder, or the id of a job. With one RUN: everything about it.
    """
    index = open_index()
    if scan is not None:
        _scan(index, Path(scan))

    def show() -> None:
        _show_status(index, names, every=every, form=form)

    redraw(show, POLL_S) if watch else show()


def _scan(index: Index, folder: Path) -> None:
    from sbatchgen.runs.index import scan

    if not folder.is_dir():
        raise CommandLineError.of(f"there is no folder {folder}", at="--scan")
    found = [*scan(folder.absolute())]
    runs, skipped = index.add(run for run in found if run), found.count(None)
    others = f"; skipped: {counted(skipped, 'record')} of other users" if skipped else ""
    note(f"note: {counted(len(runs), 'run')} found in {folder}{others}")


def _show_status(index: Index, names: Sequence[str], *, every: bool, form: str) -> None:
    from sbatchgen.runs import log, record, screen
    from sbatchgen.runs.status import look, problems_of

    since = 0.0 if every else time.time() - RECENT_S
    runs = [find_run(index, name) for name in names] or index.runs(since=since)
    states, problems = look(index, os.environ, runs)
    if form == "json":
        put(screen.as_json(states, [problem.what for problem in problems]), nl=False)
    elif len(names) == 1:
        kept = record.records(states[0].run.folder)
        logs = [str(path) for path in log.find(kept[-1])] if kept else []
        put(screen.page(states[0], kept, logs), nl=False)
    elif states:
        put(screen.overview(states), nl=False)
    else:
        note("note: no runs yet" if every else "note: no runs of the last week; --all shows older ones")
    for problem in problems:
        say(Problem(f"{problem.what}; states are those of {screen.seen(states)}", fix=problem.fix), "warning")
    if form != "json":
        for problem in problems_of(states):
            say(problem, "warning")
        if len(names) == 1:
            _hint(states[0])


def _hint(one: RunState) -> None:
    from sbatchgen.runs.diagnosis import is_failed

    if is_failed(one) and not (one.last and one.last.state == "CANCELLED"):
        note(f"note: sbatchgen diagnose {one.run.name} says why it failed")


@click.command()
@RUN
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Show new lines until the run ends. Ctrl-C leaves the job alone.",
)
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    default=None,
    help="Start with the last N lines. [default: all; 20 with -f]",
)
@click.option("--task", metavar="N", default="", help="Task of an array or a sweep.")
def logs(run: str, *, follow: bool, lines: int | None, task: str) -> None:
    """Show the log of a run.

    All jobs and requeues of the run count as one log.
    """
    index = open_index()
    found = find_run(index, run)
    if follow:
        follow_run(index, found.name, lines=20 if lines is None else lines, task=task)
        return
    if not _Logs(found, lines, task).show():
        check_folder(found)
        raise DocumentError.of(f"run {found.name} has no log so far", fix=f"sbatchgen status {found.name}")


class _Logs:
    """The logs of a run, which grow in number too."""

    def __init__(self, run: Run, lines: int | None, task: str) -> None:
        self._run, self._lines, self._task = run, lines, task
        self._tails: dict[Path, Tail] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look for new jobs of the run."""
        from sbatchgen.runs.record import records

        self._records = records(self._run.folder)

    def show(self) -> bool:
        """Print what is new; whether there is a log. Of those that were there only the newest is shown."""
        from sbatchgen.runs import log

        paths = [path for one in self._records for path in log.find(one, self._task)]
        first = not self._tails
        for path in paths[-1:] if first else paths:
            self._tails.setdefault(path, log.Tail(path, last=self._lines if first else None))
        if first:
            for path in paths[:-1]:
                self._tails[path] = log.Tail(path, last=0)
        for tail in self._tails.values():
            for piece in tail.more():
                put_log(piece)
        return bool(paths)


def follow_run(index: Index, name: str, *, lines: int | None = None, task: str = "") -> int:
    """Show how a run goes on until its jobs have ended; 0 if the last one completed, else 3."""
    from sbatchgen.runs import report as reports
    from sbatchgen.runs import screen, status

    run = find_run(index, name)
    logs, said, asked = _Logs(run, lines, task), "", 0.0
    with _bar(run) as bar:
        while True:
            if time.monotonic() - asked >= POLL_S or not asked:
                (state,), problems = status.look(index, os.environ, [run])
                asked = time.monotonic()
                logs.refresh()
                now = screen.headline(state) if not problems else problems[0].what
                if now != said and (state.last is None or state.last.state != "RUNNING"):
                    note(f"note: {now}")
                said = now
            logs.show()
            bar()
            if all(job.ended for job in state.jobs):
                break
            time.sleep(LOG_POLL_S)
    _hint(state)
    if told := reports.in_short(reports.look(state, os.environ)):
        note(f"note: used: {told}; more: sbatchgen report {run.name}")
    return 0 if state.last and state.last.state == "COMPLETED" else DocumentError.exit_status


@click.command()
@RUN
@FORMAT
def report(run: str, *, form: str) -> None:
    """Show what a run has cost.

    What it asked for, what it used, and what to ask for next time.
    """
    from sbatchgen.runs import report as reports

    state, problems = state_of(run)
    found = reports.look(state, os.environ)
    put(reports.as_json(found) if form == "json" else reports.as_text(found), nl=False)
    for problem in [*(problem.what for problem in problems), *found.problems]:
        note(f"note: {problem}")


@contextlib.contextmanager
def _bar(run: Run) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, if that is a terminal."""
    from sbatchgen.runs.progress import read_progress

    if not is_screen(sys.stderr):
        yield lambda: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        name = escape(visible(run.name))
        task = shown.add_task(name, total=None)

        def update() -> None:
            if known := read_progress(run.folder):
                shown.update(
                    task, completed=known.step or 0, total=known.steps, description=known.says or name
                )

        yield update


@click.command()
@RUN
@click.option(
    "--task",
    metavar="N",
    default="",
    help="Task of an array or a sweep. [default: the first that failed]",
)
@FORMAT
def diagnose(run: str, *, task: str, form: str) -> None:
    """Say why a run failed, and what to do about it.

    Reads what Slurm says, the end of the log and the run folder, and shows the lines that prove it.
    """
    from sbatchgen.runs import diagnosis

    state, problems = state_of(run)
    found = diagnosis.diagnose(state, os.environ, task)
    put(diagnosis.as_json(found) if form == "json" else diagnosis.as_text(found), nl=False)
    for problem in dict.fromkeys([*problems, *found.problems]):
        say(problem, "warning")


@click.command()
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=completed_runs)
@click.option("--task", metavar="N", default="", help="Only this task of an array or a sweep.")
def cancel(names: tuple[str, ...], *, task: str) -> None:
    """Cancel the jobs of runs that wait or run.

    The trainer of a running job saves a checkpoint first: sbatchgen resume continues from there.
    """
    from sbatchgen.runs.status import look

    index, began = open_index(), time.time()
    states, problems = look(index, os.environ, [find_run(index, name) for name in names])
    if any(job.id and not job.ended and job.seen < began for one in states for job in one.jobs):
        raise SlurmError(problems)  # Slurm may have given the id to another job
    for one in states:
        live = [job for job in reversed(one.jobs) if not job.ended]  # none starts when the first ends
        if not live:
            note(f"note: run {one.run.name} has ended already")
        chosen = [(id_, job.cluster) for job in live if (id_ := _with_task(one, job.id, task))]
        if live and not chosen:
            what = f"no job of run {one.run.name} that waits or runs has a task {task}"
            raise CommandLineError.of(what, at="--task", fix=f"sbatchgen status {one.run.name}")
        for id_, cluster in chosen:
            _cancel(one, id_, cluster)
            note(f"note: cancelled job {id_} of run {one.run.name}")


def _with_task(one: RunState, job: str, task: str) -> str:
    """The id of a job, or of a task of it; "" if there is none: scancel would say nothing of that."""
    from sbatchgen.runs import record
    from sbatchgen.runs.points import numbers

    kept = record.read(record.path(one.run.folder, job)) if task.isdecimal() else None
    if not task or not kept:
        return f"{job}_{task}" if task else job
    found = len(task) < 9 and int(task) in numbers(kept, kept.array)
    return f"{job}_{int(task) - kept.first}" if found else ""


def _cancel(one: RunState, job: str, cluster: str) -> None:
    from sbatchgen.runs import process, record
    from sbatchgen.slurm import command

    if not job:
        raise SlurmError.of(f"the job of run {one.run.name} is not known", fix="squeue --me")
    if not job.partition("_")[0].isdecimal():  # without Slurm
        kept = record.read(record.path(one.run.folder, job))
        if kept is None or kept.process is None:
            raise DocumentError.of(f"the process of run {one.run.name} is not known: {one.jobs[-1].says}")
        if process.is_alive(kept.process) is None:
            what = f"run {one.run.name} is on {kept.process.host}, not here"
            raise DocumentError.of(what, fix=f"on that machine: sbatchgen cancel {one.run.name}")
        process.stop(kept.process)
        return
    answer = command.query(["scancel", *command.of_cluster(cluster), job], os.environ)
    if answer.failure:
        raise answer.error


@click.command("exec", options_metavar="")
@click.argument("run", metavar="RUN -- COMMAND", shell_complete=completed_runs)
@click.pass_obj
def exec_(command: tuple[str, ...], /, run: str) -> None:
    """Run a command on each node of a run.

    The training keeps running. The command comes after --, as in: sbatchgen exec ddp -- nvidia-smi. The
    exit status is that of the command.
    """
    from sbatchgen.runs import status
    from sbatchgen.slurm.command import run_here, submit_environment
    from sbatchgen.slurm.config import config

    if not command:
        raise click.UsageError("no command: write it after --, as in: sbatchgen exec RUN -- nvidia-smi")
    state, problems = state_of(run)
    if problems:
        raise SlurmError(problems)
    name = state.run.name
    job, rows = state.last, [row for row in state.now if row.state.name == "RUNNING"]
    if job and status.is_local(job):
        sys.exit(run_here(command, os.environ))
    if not rows:
        what = f"run {name} has no running job: {status.words(job) if job else 'nothing'}"
        raise SlurmError.of(what, fix=f"sbatchgen status {name}")
    if job and job.cluster and job.cluster != config(os.environ).get("ClusterName"):
        what = f"run {name} is on cluster {job.cluster}: srun reaches the jobs of its own cluster only"
        raise SlurmError.of(what, fix=f"on a node of {job.cluster}: sbatchgen exec {name} -- ...")
    row, environment = rows[-1], submit_environment(os.environ)[0]
    step = ["srun", f"--jobid={row.id}", "--overlap", f"--nodes={row.nodes}", f"--ntasks={row.nodes}"]
    sys.exit(run_here([*step, "--ntasks-per-node=1", "--", *command], environment))


@click.command()
@click.argument(
    "names",
    metavar="RUN...",
    nargs=-1,
    required=True,
    shell_complete=completed_runs,
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A .png or .svg file. [default: plot.png in the run folder, or here for several runs]",
)
def plot(names: tuple[str, ...], output: Path | None) -> None:
    """Plot loss, accuracy and throughput of runs.

    RUN is a run folder or the name of a run, which may still be running. Needs matplotlib.
    """
    from sbatchgen.runs import plot as drawing

    folders = [Path(name) if Path(name).is_dir() else _folder_of(name) for name in names]
    print_bytes(os.fsencode(drawing.plot(folders, output)) + b"\n")


def _folder_of(name: str) -> Path:
    return find_run(open_index(), name).folder
