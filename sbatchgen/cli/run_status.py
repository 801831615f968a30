"""The command status: the state of runs, the reasons why they wait, and their progress."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbatchgen.base.errors import CommandLineError, Problem
from sbatchgen.base.quoting import counted
from sbatchgen.cli import output
from sbatchgen.cli.output import BRIEF, FORMAT, complete_run, current_folder, note, put, say
from sbatchgen.cli.runs import (
    POLL_S,
    open_index,
    read_states,
)

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.index import Index
    from sbatchgen.jobs.runs.plain_job import PlainJob
    from sbatchgen.jobs.runs.status import RunState

RECENT_S = 7 * 86400.0  # without --all, status shows only runs that wait, run or ended in the last 7 days


@click.command()
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
@click.option("--all", "all_runs", is_flag=True, help="Also show runs that ended more than a week ago.")
@click.option("--watch", is_flag=True, help=f"Show the output again every {POLL_S:g} seconds.")
@click.option("--scan", metavar="FOLDER", type=click.Path(), help="First add the runs found in this folder.")
@click.option(
    "--sort",
    metavar="METRIC",
    default="",
    help="Sort the points of a sweep by a metric, the best first, or by a parameter.",
)
@click.option("--reverse", is_flag=True, help="With --sort: show the last point first.")
@FORMAT
@BRIEF
def status(
    names: tuple[str, ...],
    *,
    all_runs: bool,
    watch: bool,
    scan: str | None,
    sort: str,
    reverse: bool,
    form: str,
    brief: bool,
) -> None:
    """Show the state of runs, why they wait, and their progress.

    RUN is the name of a run, its folder, or the id of a job, and lr/0 is point 0 of the sweep lr. For a
    single RUN, status shows all details.
    """
    if (sort or reverse) and not (sort and len(names) == 1 and form != "json"):
        what = "--sort METRIC and --reverse are about the table of one sweep"
        raise CommandLineError.of(what, fix="name the sweep, and write no --format json")
    index = open_index()
    if scan is not None:
        _scan(index, Path(scan))

    # Without names, --scan also shows the jobs of logs in the folder that belong to no run.
    log_folder = Path(scan) if scan is not None and not names else None
    show = partial(
        _show_status, index, names, log_folder,
        all_runs=all_runs, form=form, sort=sort, reverse=reverse, brief=brief,
    )  # fmt: skip
    output.redraw(show, POLL_S) if watch else show()


def _scan(index: Index, folder: Path) -> None:
    """Add the runs below a folder to the index, and print their number."""
    from sbatchgen.jobs.runs.index import scan

    if not folder.is_dir():
        raise CommandLineError.of(f"there is no folder {folder}", at="--scan")
    scanned = [*scan(folder.absolute())]  # None stands for a record of another user
    runs, skipped_count = index.add(run for run in scanned if run), scanned.count(None)
    about_skipped = ""
    if skipped_count:
        about_skipped = f"; skipped: {counted(skipped_count, 'record')} of other users, "
        about_skipped += "whose runs status, logs and diagnose read by their folders"
    note(f"note: {counted(len(runs), 'run')} found in {folder}{about_skipped}")


def _plain_jobs(index: Index, folder: Path) -> list[PlainJob]:
    """Return the jobs that belong to no run, found by the newest logs in a folder, such as slurm-4711.out."""
    from sbatchgen.jobs.runs import plain_job

    logs = [path for path in plain_job.logs_in(folder) if not index.find(str(path), current_folder())]
    jobs = plain_job.jobs_of_logs(logs, os.environ)
    return [replace(job, word=os.path.relpath(job.word, current_folder())) for job in jobs]


def _show_status(
    index: Index,
    names: Sequence[str],
    log_folder: Path | None,
    *,
    all_runs: bool,
    form: str,
    sort: str,
    reverse: bool,
    brief: bool,
) -> None:
    """Show the named runs. Without names, show recent runs or all, and the plain jobs of `log_folder`."""
    from sbatchgen.jobs.runs import overview
    from sbatchgen.jobs.runs.status import plain_state, problems_of, run_states

    since = 0.0 if all_runs else time.time() - RECENT_S
    if names:
        states, problems = read_states(index, names)
    else:
        states, problems = run_states(index, os.environ, index.runs(since=since))
        if log_folder:
            states = [*map(plain_state, _plain_jobs(index, log_folder)), *states]
    if form == "json":
        from sbatchgen.jobs.outputs.runs import brief_output, status_output

        output.put_json((brief_output if brief else status_output)(states, problems))
    elif len(names) == 1:
        _show_one(states[0], sort=sort, reverse=reverse)
    elif states:
        put(overview.overview(states), nl=False)
    else:
        note("note: no runs yet" if all_runs else "note: no runs of the last week; --all shows older ones")
    _warn_of_old_states(states, problems)
    if form != "json":
        for problem in problems_of(states):
            say(problem, "warning")
        if len(names) == 1:
            hint_at_diagnosis(states[0])


def _warn_of_old_states(states: Sequence[RunState], problems: Sequence[Problem]) -> None:
    """Print the problems of Slurm's answer, and how old the states therefore are."""
    from sbatchgen.jobs.runs import overview

    for problem in problems:
        has_runs = any(not state.plain for state in states)
        age = f"; states are those of {overview.states_seen_at(states)}" if has_runs else ""
        say(Problem(f"{problem.what}{age}", fix=problem.fix), "warning")


def _show_one(state: RunState, *, sort: str, reverse: bool) -> None:
    """Show all details of a run; `sort` and `reverse` are for the table of a sweep."""
    from sbatchgen.jobs.runs import job_log, overview
    from sbatchgen.jobs.runs.status import submissions

    records = submissions(state)
    last_record = next(
        (record for record in records if state.last_job and record.job == state.last_job.id), None
    )
    logs = [str(path) for path in job_log.newest_logs(last_record, state.point)] if last_record else []
    if sort and not state.sweep:
        what = f"run {state.run.name} is not a sweep"
        raise CommandLineError.of(what, at="--sort", fix="leave --sort out")
    put(overview.page(state, records, logs, sort=sort, reverse=reverse), nl=False)


def hint_at_diagnosis(state: RunState) -> None:
    """Print the command that explains a failed run, unless the run was cancelled, or saved and stopped."""
    from sbatchgen.jobs.runs.diagnosis import is_failed
    from sbatchgen.jobs.runs.seen_jobs import SAVED

    job = state.last_job
    if is_failed(state) and not (job and (job.state == "CANCELLED" or job.says == SAVED)):
        note(f"note: sbatchgen diagnose {state.job or state.run.name} says why it failed")
