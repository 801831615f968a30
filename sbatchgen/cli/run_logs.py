"""The command logs: it shows the log of a run, up to now or until the run ends.

`submit --follow` and `rehearse --on` show the log of their run with `follow_run`.
"""

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
DEFAULT_LINES = 20  # how many of the last lines --follow and --format json show if --lines does not say it


def _complete_program(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the programs of RUN that have logs, and that complete the typed word."""
    from sbatchgen.jobs.runs import program_states

    with contextlib.suppress(SbatchgenError, OSError):
        typed_run = ctx.params.get("run") or next(iter(ctx.args), "")  # --program may come before RUN
        run = find_point(open_index(), typed_run).run
        return [name for name in program_states.logs(run.folder) if name.startswith(incomplete)]
    return []


def _check_program(run: Run, program: str) -> None:
    """Raise CommandLineError if a program of a run has no log."""
    from sbatchgen.jobs.runs import program_states

    names = [*program_states.logs(run.folder)]
    if program in names:
        return
    command_for_job_log, at = f"sbatchgen logs {run.name}", "--program"
    if any(program == state.name for state in program_states.read_programs(run.folder, 0.0)):
        what = f"program {program} is the main program, which prints to the job's log"
        raise CommandLineError.of(what, at=at, fix=command_for_job_log)
    fix = f"one of: {', '.join(names)}" if names else command_for_job_log
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
@task_option("Show only this task of an array or a sweep.")
@click.option(
    "--program",
    metavar="NAME",
    default="",
    shell_complete=_complete_program,
    help="Show the log of one of several programs. [default: the job's log, with the main program]",
)
@FORMAT
def logs(run: str, *, follow: bool, lines: int | None, task: str, program: str, form: str) -> None:
    """Show the log of a run.

    RUN may also be a log or a script of the run. All jobs and requeues of the run count as one log.
    """
    from sbatchgen.jobs.runs.job_log import RunLogs

    if form == "json" and follow:
        what = "--follow prints until the run ends, and makes no JSON document"
        raise CommandLineError.of(what, fix="leave --follow out")
    index = open_index()
    if lines is None and (follow or form == "json"):
        lines = DEFAULT_LINES
    if plain_job := find_plain_job(index, run, task):
        if program:
            what = f"{run} is a job of plain sbatch, which has one log for all of its programs"
            raise CommandLineError.of(what, at="--program", fix="leave --program out")
        with _log_printer(form, run) as print_piece:
            _show_plain_log(plain_job, run, lines, print_piece, follow=follow)
        return
    named_run, point, job_id = find_job(index, run)
    task = task or point
    refuse_other_task(named_run, task, job_id)
    if program:
        _check_program(named_run, program)
    if follow:
        follow_run(index, named_run.name, lines=lines, task=task, program=program, job_id=job_id)
        return
    reader = RunLogs(named_run.folder, lines, task, program=program, job=job_id)
    with _log_printer(form, named_run.name) as print_piece:
        has_log = reader.show(print_piece)
        if not has_log:
            check_folder(named_run)
            fix = f"sbatchgen status {named_run.name}"
            raise DocumentError.of(f"run {named_run.name} has no log so far", fix=fix)
    if reader.is_empty:
        why = "Python may hold back its output while the program runs: --env PYTHONUNBUFFERED=1"
        more = f"sbatchgen diagnose {named_run.name} says how a job ended"
        note(f"note: the log is empty so far. {why}; {more}")


@contextlib.contextmanager
def _log_printer(form: str, run: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that prints pieces of a log: at once as text, or at the end as a JSON document."""
    from sbatchgen.jobs.outputs.runs import logs_output

    if form != "json":
        yield output.put_log
        return
    pieces: list[bytes] = []
    yield pieces.append
    output.put_json(logs_output(run, output.escape_controls(b"".join(pieces))))


def _show_plain_log(
    job: PlainJob, typed: str, lines: int | None, print_piece: Callable[[bytes], None], *, follow: bool
) -> None:
    """Show the log of a job that belongs to no run; with `follow`, until the job has ended.

    `typed` is the word that named the job. `lines` is how many of the last lines to show; None shows all.
    """
    from sbatchgen.jobs.runs import overview
    from sbatchgen.jobs.runs.job_log import RunLogs
    from sbatchgen.jobs.runs.plain_job import find
    from sbatchgen.jobs.runs.status import plain_state

    if job.problems:
        raise DocumentError(map(Problem, job.problems))
    reader = RunLogs(job.folder, lines, "", plain=job.record)
    has_other_tasks = any(row.task and row.id != job.id for row in job.rows)
    if has_other_tasks:
        array_id = job.id.partition("_")[0]
        note(f"note: this log is of {job.id}; sbatchgen logs {array_id} --task N shows another task")
    has_log = reader.show(print_piece)
    asked_at = time.monotonic()
    while follow and job.row and not job.row.state.ended:
        time.sleep(LOG_POLL_S)
        if time.monotonic() - asked_at >= POLL_S:
            job, asked_at = find(job.id, current_folder(), os.environ) or job, time.monotonic()
        has_log = reader.show(print_piece)
    if follow:
        note(f"note: {overview.headline(plain_state(job))}")
    elif not has_log:
        log = job.record.log.replace("%%", "%")  # the record has sbatch's pattern, in which %% stands for %
        raise DocumentError.of(f"there is no log {log}", fix=f"sbatchgen status {quoted(typed)}")


def follow_run(
    index: Index,
    name: str,
    *,
    lines: int | None = None,
    task: str = "",
    since: float = 0.0,
    program: str = "",
    job_id: str = "",
) -> int:
    """Show the log of a run until its jobs have ended; return 0 if the last job completed, else 3.

    Logs of jobs that were submitted before `since` (seconds since 1970) are not shown. `task`, `program` and
    `job_id` choose one of several tasks, programs and jobs.
    """
    from sbatchgen.jobs.runs import cost, status
    from sbatchgen.jobs.runs.job_log import RunLogs

    run = find_run(index, name, in_doubt="ignore")
    reader = RunLogs(run.folder, lines, task, since=since, program=program, job=job_id)
    asked_at: float | None = None  # when Slurm was asked last
    notes = _StateNotes()
    with _progress_bar(run) as update_bar:
        while True:
            if asked_at is None or time.monotonic() - asked_at >= POLL_S:
                (state,), problems = status.run_states(index, os.environ, [run], job_ids=[job_id])
                asked_at = time.monotonic()
                reader.refresh()
                notes.print_news(state, problems)
            reader.show(output.put_log)
            update_bar()
            if all(job.ended for job in state.jobs):
                break
            time.sleep(LOG_POLL_S)
    hint_at_diagnosis(state)
    if used := cost.in_short(cost.make_report(state, os.environ)):
        note(f"note: used: {used}; more: sbatchgen report {run.name}")
    return 0 if state.last_job and state.last_job.state == "COMPLETED" else DocumentError.exit_status


class _StateNotes:
    """Prints notes about a followed run between the lines of its log: new states, and standstills."""

    def __init__(self) -> None:
        self._last_headline, self._was_quiet = "", False

    def print_news(self, state: RunState, problems: Sequence[Problem]) -> None:
        """Print a note if the state has changed since the last call, or if the run now stands still."""
        from sbatchgen.jobs.runs import overview

        headline = overview.headline(state) if not problems else problems[0].what
        # The log itself shows that a job runs.
        is_running = state.last_job is not None and state.last_job.state == "RUNNING"
        if headline != self._last_headline and not is_running:
            note(f"note: {headline}")
        if state.standstill and not self._was_quiet:
            note(f"note: {state.standstill}: it may stand still; sbatchgen diagnose {state.run.name}")
        self._last_headline, self._was_quiet = headline, bool(state.standstill)


@contextlib.contextmanager
def _progress_bar(run: Run) -> Iterator[Callable[[], None]]:
    """Show a progress bar of a run if stderr is a terminal; yield the function that updates the bar."""
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
                description = progress.says or name
                bars.update(bar, completed=progress.step or 0, total=progress.steps, description=description)

        yield update
