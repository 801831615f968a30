"""The commands report, diagnose and plot: they show what a run cost, why it failed, and its curves."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem
from sbatchgen.base.quoting import ALSO, numbers_as_text, word
from sbatchgen.cli.output import (
    FORMAT,
    complete_run,
    current_folder,
    note,
    print_bytes,
    put,
    put_in_form,
    say,
)
from sbatchgen.cli.runs import (
    RUN,
    RUNS,
    find_job,
    find_plain_job,
    find_point,
    open_index,
    read_states,
    refuse_other_task,
    task_option,
)

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.plot import History


@click.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--month", metavar="YYYY-MM", default="", help="Show the sum of the jobs submitted in a month.")
@click.option(
    "--below", metavar="FOLDER", type=click.Path(), help="Show the sum of your runs below a folder."
)
@FORMAT
def report(run: str | None, *, month: str, below: str | None, form: str) -> None:
    """Show what a run has cost, or the sum of several runs.

    For one run, report compares the resources that it asked for and used, and says what to ask for next time.
    --month and --below list the cost of your runs in a month, below a folder, or both, and the sum.
    """
    from sbatchgen.jobs.runs import cost

    asks_for_sum = bool(month) or below is not None
    if bool(run) == asks_for_sum:  # both or neither
        what = "report needs the name of a run"
        if run:
            what = "report takes a run, or --month and --below for a sum"
        fix = f"name one run; or for a sum: sbatchgen report --below . --month {time.strftime('%Y-%m')}"
        raise CommandLineError.of(what, fix=fix)
    if run is None:
        _report_sum(month, below, form)
        return
    (state,), problems = read_states(open_index(), [run])
    run_report = cost.make_report(state, os.environ)
    put_in_form(form, run_report, cost.as_text(run_report))
    slow_rank = f"slow: {state.progress.slow}" if state.progress and state.progress.slow else ""
    signs_of_trouble = filter(None, [state.standstill, slow_rank])
    for text in (*signs_of_trouble, *(problem.what for problem in problems), *run_report.problems):
        note(f"note: {text}")


def _report_sum(month: str, below: str | None, form: str) -> None:
    """Print the cost of several runs, and the sum.

    `month` is YYYY-MM, or "" for any time. `below` is a folder that holds the run folders, or None for all
    runs.
    """
    from sbatchgen.jobs.runs import bill
    from sbatchgen.jobs.runs.status import run_states

    try:
        period = bill.month_period(month) if month else bill.ALL_TIME
    except ValueError as error:
        fix = f"as in: --month {time.strftime('%Y-%m')}"
        raise CommandLineError.of(f"'{month}' is not a month", at="--month", fix=fix) from error
    index = open_index()
    top_folder = Path(os.path.realpath(current_folder() / below)) if below is not None else Path("/")
    if not top_folder.is_dir():
        raise CommandLineError.of(f"there is no folder {below}", at="--below")
    runs = [run for run in index.runs() if Path(os.path.realpath(run.folder)).is_relative_to(top_folder)]
    states, problems = run_states(index, os.environ, runs) if runs else ([], [])
    total = bill.make_bill(states, os.environ, period)
    if form == "text" and not total.runs:
        note("note: no jobs of yours: sbatchgen status --all lists your runs")
        return
    put_in_form(form, total, bill.as_text(total))
    for text in (*(problem.what for problem in problems), *total.problems):
        note(f"note: {text}")


@click.command()
@RUN
@task_option("Diagnose this task of an array or a sweep. [default: the first that failed]")
@FORMAT
def diagnose(run: str, *, task: str, form: str) -> None:
    """Say why a run failed, and how to fix the cause.

    diagnose reads Slurm's answers, the end of the log and the run folder, and shows the lines that prove the
    cause. RUN may also be a log or a script of the run. The exit status is 0 even if the run has failed.
    """
    from sbatchgen.jobs.runs import diagnosis
    from sbatchgen.jobs.runs.status import plain_state, run_states

    index = open_index()
    if plain_job := find_plain_job(index, run, task):
        state, problems = plain_state(plain_job), list[Problem]()
        point, job_id = "", ""
    else:
        named_run, point, job_id = find_job(index, run)
        refuse_other_task(named_run, task or point, job_id)
        (state,), problems = run_states(index, os.environ, [named_run], job_ids=[job_id])
    result = diagnosis.diagnose(state, os.environ, task or point, job_id)
    put_in_form(form, result, diagnosis.as_text(result))
    for problem in dict.fromkeys([*problems, *result.problems]):
        say(problem, "warning")


def _read_histories(name: str, pattern: str) -> list[History]:
    """Return the history of a run or of a point such as lr/0; for a sweep, the histories of its points.

    `name` may also be a folder. `pattern` is a regular expression for lines of the log with metrics, and
    "" without --metrics. Points of a sweep that have no metrics yet are left out, and a note
    names them.
    """
    from sbatchgen.jobs.runs.events import FIX_WITHOUT_NUMBERS
    from sbatchgen.jobs.runs.plot import read_history
    from sbatchgen.jobs.runs.points import read_sweep

    folder, index = Path(name), open_index()
    # The name of a run means this run, even if a folder has the same name.
    is_run_name = any(run.name == name for run in index.find(name, current_folder()))
    is_folder = folder.is_dir() and not is_run_name
    # A folder of this user is read even if it is in no index of runs, such as a copy of a run folder.
    is_own_folder = is_folder and folder.stat().st_uid == os.geteuid()
    if not is_own_folder:
        if plain_job := find_plain_job(index, name):
            history = read_history(plain_job.folder, pattern, [plain_job.record])
            return [replace(history, folder=Path(name))]
        if not is_folder:
            run, point = find_point(index, name)
            folder = run.folder / point
    sweep = read_sweep(folder)
    if sweep is None:
        return [read_history(folder, pattern)]
    histories, without_metrics = [], []
    for number, values in enumerate(sweep.points):
        try:
            history = read_history(folder / str(number), pattern)
        except DocumentError:
            without_metrics.append(number)
        else:
            histories.append(replace(history, point=dict(zip(sweep.names, values, strict=True))))
    if not histories:
        what = "nothing was measured in the points of this sweep so far"
        raise DocumentError.of(
            what, at=str(folder), fix=f"sbatchgen status {word(name)}{ALSO}{FIX_WITHOUT_NUMBERS}"
        )
    if without_metrics:
        numbers = numbers_as_text(without_metrics)
        missing_count, point_count = len(without_metrics), len(sweep.points)
        note(f"note: {missing_count} of {point_count} points have no metrics so far: {numbers}")
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
    help="Find the numbers in lines of the log by this pattern, as the key metrics of a job does.",
)
@click.option("--text", is_flag=True, help="Draw with characters, which needs no matplotlib.")
def plot(names: tuple[str, ...], *, output: Path | None, metrics: str, text: bool) -> None:
    """Plot loss, accuracy and throughput of runs.

    RUN is a run folder or the name of a run, which may still be running. Each point of a sweep is a curve;
    lr/0 is one point.
    """
    from sbatchgen.base.texts import LinePattern
    from sbatchgen.jobs.runs import plot as picture

    try:
        pattern = LinePattern.parse(metrics) if metrics else ""
    except ValueError as error:
        raise CommandLineError.of(str(error), at="--metrics") from error
    histories = [history for name in names for history in _read_histories(name, pattern)]
    if text or not (output or picture.can_draw()):  # with --output, a missing matplotlib is an error
        from sbatchgen.jobs.runs.chart import chart

        put(chart(histories, shutil.get_terminal_size().columns), nl=False)
        if not text:
            from sbatchgen.base.machine.packages import to_install

            note(f"note: a picture needs matplotlib: {to_install('matplotlib')}")
        return
    print_bytes(os.fsencode(picture.plot(histories, output)) + b"\n")
