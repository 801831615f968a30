"""The command logs: the log of a run, up to now or until the run ends."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem, SbatchgenError
from sbatchgen.base.quoting import one_line
from sbatchgen.base.quoting import word as quoted
from sbatchgen.cli import output
from sbatchgen.cli.output import FORMAT, current_folder, note
from sbatchgen.cli.run_status import hint_at_diagnosis
from sbatchgen.cli.runs import (
    POLL_S,
    RUN,
    check_folder,
    find_job,
    find_plain_job,
    find_point,
    find_run,
    open_index,
    refuse_other_task,
    task_option,
)

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.index import Index, Run
    from sbatchgen.jobs.runs.plain_job import PlainJob
    from sbatchgen.jobs.runs.status import RunState

LOG_POLL_S = 0.5  # seconds between two looks at a log
DEFAULT_LINES = 20  # the last lines that --follow and JSON show


def _completed_programs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the programs of RUN that have logs."""
    from sbatchgen.jobs.runs import program_states

    with contextlib.suppress(SbatchgenError, OSError):
        run, _point = find_point(open_index(), ctx.params.get("run") or next(iter(ctx.args), ""))
        return [name for name in program_states.logs(run.folder) if name.startswith(incomplete)]
    return []


def _check_program(run: Run, program: str) -> None:
    """Raise CommandLineError if a program of a run has no log."""
    from sbatchgen.jobs.runs import program_states

    names = [*program_states.logs(run.folder)]
    if program in names:
        return
    job_log, at = f"sbatchgen logs {run.name}", "--program"
    if any(program == state.name for state in program_states.read_programs(run.folder, 0.0)):
        what = f"program {program} has no log of its own: the main one prints to that of the job"
        raise CommandLineError.of(what, at=at, fix=job_log)
    fix = f"one of: {', '.join(names)}" if names else job_log
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
    help=f"Start with the last N lines. [default: all; {DEFAULT_LINES} with -f and with json]",
)
@task_option("Task of an array or a sweep.")
@click.option(
    "--program",
    metavar="NAME",
    default="",
    shell_complete=_completed_programs,
    help="The log of one of several programs. [default: that of the job, and so of the main program]",
)
@FORMAT
def logs(run: str, *, follow: bool, lines: int | None, task: str, program: str, form: str) -> None:
    """Show the log of a run.

    RUN may also be a log or a script of the run. All jobs and requeues of the run count as one log.
    """
    from sbatchgen.jobs.runs.job_log import RunLogs

    if form == "json" and follow:
        raise CommandLineError.of("--follow prints until the run ends: no document", fix="leave --follow out")
    index = open_index()
    if lines is None and (follow or form == "json"):
        lines = DEFAULT_LINES
    if plain := find_plain_job(index, run, task):
        with _log_printer(form, run) as show:
            _show_plain_log(plain, run, lines, show, follow=follow)
        return
    chosen, point, job = find_job(index, run)
    task = task or point
    refuse_other_task(chosen, task, job)
    if program:
        _check_program(chosen, program)
    if follow:
        follow_run(index, chosen.name, lines=lines, task=task, program=program, job=job)
        return
    shown = RunLogs(chosen.folder, lines, task, program=program, job=job)
    with _log_printer(form, chosen.name) as show:
        if not shown.show(show):
            check_folder(chosen)
            fix = f"sbatchgen status {chosen.name}"
            raise DocumentError.of(f"run {chosen.name} has no log so far", fix=fix)
    if shown.is_empty:
        why = "Python keeps lines for itself while a program runs: --env PYTHONUNBUFFERED=1"
        note(f"note: the log is empty so far. {why}; sbatchgen diagnose {chosen.name} says how a job ended")


@contextlib.contextmanager
def _log_printer(form: str, run: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that prints pieces of a log: at once as text, or at the end as a JSON document."""
    from sbatchgen.jobs.outputs.runs import logs_output

    if form != "json":
        yield output.put_log
        return
    pieces: list[bytes] = []
    yield pieces.append
    output.put_json(logs_output(run, output.harmless(b"".join(pieces))))


def _show_plain_log(
    job: PlainJob, typed: str, lines: int | None, show: Callable[[bytes], None], *, follow: bool
) -> None:
    """Show the log of a job that belongs to no run; with `follow`, until the job has ended."""
    from sbatchgen.jobs.runs import overview
    from sbatchgen.jobs.runs.job_log import RunLogs
    from sbatchgen.jobs.runs.plain_job import find
    from sbatchgen.jobs.runs.status import plain_state

    if job.problems:
        raise DocumentError(map(Problem, job.problems))
    shown = RunLogs(job.folder, lines, "", plain=job.record)
    has_other_tasks = any(row.task and row.id != job.id for row in job.rows)
    if has_other_tasks:
        note(f"note: {job.id}; of the other tasks: sbatchgen logs {job.id.partition('_')[0]} --task N")
    has_log = shown.show(show)
    asked_at = time.monotonic()
    while follow and job.row and not job.row.state.ended:
        time.sleep(LOG_POLL_S)
        if time.monotonic() - asked_at >= POLL_S:
            job, asked_at = find(job.id, current_folder(), os.environ) or job, time.monotonic()
        has_log = shown.show(show)
    if follow:
        note(f"note: {overview.headline(plain_state(job))}")
    elif not has_log:
        log = job.record.log.replace("%%", "%")
        raise DocumentError.of(f"there is no log {log}", fix=f"sbatchgen status {quoted(typed)}")


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
    """Show the log of a run until its jobs have ended; return 0 if the last job completed, else 3.

    Logs of jobs that were submitted before `since` (seconds since 1970) are not shown. `program` and `job`
    choose one of several programs and jobs.
    """
    from sbatchgen.jobs.runs import cost, status
    from sbatchgen.jobs.runs.job_log import RunLogs

    run = find_run(index, name, changes=None)
    logs = RunLogs(run.folder, lines, task, since=since, program=program, job=job)
    asked_at, notes = 0.0, _StateNotes()
    with _progress_bar(run) as update_bar:
        while True:
            if time.monotonic() - asked_at >= POLL_S or not asked_at:
                (state,), problems = status.run_states(index, os.environ, [run], job_ids=[job])
                asked_at = time.monotonic()
                logs.refresh()
                notes.tell(state, problems)
            logs.show(output.put_log)
            update_bar()
            if all(job.ended for job in state.jobs):
                break
            time.sleep(LOG_POLL_S)
    hint_at_diagnosis(state)
    if used := cost.in_short(cost.make_report(state, os.environ)):
        note(f"note: used: {used}; more: sbatchgen report {run.name}")
    return 0 if state.last and state.last.state == "COMPLETED" else DocumentError.exit_status


class _StateNotes:
    """The notes about a followed run between the lines of its log: new states, and standstills."""

    def __init__(self) -> None:
        self._last_headline, self._was_quiet = "", False

    def tell(self, state: RunState, problems: Sequence[Problem]) -> None:
        """Print a note if the state has changed since the last call, or the run stands still now."""
        from sbatchgen.jobs.runs import overview

        headline = overview.headline(state) if not problems else problems[0].what
        if headline != self._last_headline and (state.last is None or state.last.state != "RUNNING"):
            note(f"note: {headline}")
        if state.quiet and not self._was_quiet:
            note(f"note: {state.quiet}: it may stand still; sbatchgen diagnose {state.run.name}")
        self._last_headline, self._was_quiet = headline, bool(state.quiet)


@contextlib.contextmanager
def _progress_bar(run: Run) -> Iterator[Callable[[], None]]:
    """Show a progress bar of a run on a terminal; yield the function that updates it."""
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
            if progress := read_progress(run.folder):
                words = progress.says or name
                bars.update(bar, completed=progress.step or 0, total=progress.steps, description=words)

        yield update
