"""The search for the runs, points and jobs that the words of a command line name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbatchgen.base.errors import (
    CommandLineError,
    DocumentError,
    Problem,
    SbatchgenError,
    did_you_mean,
)
from sbatchgen.base.quoting import ALSO, one_line
from sbatchgen.base.quoting import word as quoted
from sbatchgen.cli.output import completed_runs, current_folder, note

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.index import Index, Run
    from sbatchgen.jobs.runs.plain_job import PlainJob
    from sbatchgen.jobs.runs.status import RunState

_TASK = re.compile(r"[0-9]{1,9}")  # the number of a task; Slurm has none with more digits
POLL_S = 10.0  # seconds between two questions to Slurm, whose manual pages ask for few questions

RUN = click.argument("run", metavar="RUN", shell_complete=completed_runs)
RUNS = click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=completed_runs)


def task_option(help_: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --task, with its help for a command; its value is a number in digits, or ""."""
    return click.option("--task", metavar="N", default="", callback=_task_number, help=help_)


def _task_number(_: click.Context, __: click.Parameter, typed: str) -> str:
    """Return the number of a task without zeros at its start; raise CommandLineError for another word."""
    if typed and not _TASK.fullmatch(typed):
        what = f"'{typed}' is not the number of a task"
        raise CommandLineError.of(what, at="--task", fix="write one number, as in: --task 3")
    return typed and str(int(typed))


def open_index() -> Index:
    """Return the index of runs; raises DocumentError if it can't be used."""
    from sbatchgen.jobs.runs.index import Index, index_file

    return Index(index_file(os.environ), note)


def find_run(index: Index, word: str, *, changes: bool | None = False) -> Run:
    """Return the run that a word names; raises CommandLineError if no run or several runs have the name.

    If ./runs/NAME is another run, a command that `changes` runs asks which run is meant, and is refused
    without a terminal. Other commands print a note with the run that they show, or with None no note.
    """
    runs = index.find(word, current_folder())
    if len(runs) == 1:
        if changes is not None and (others := index.others_in_folder(runs[0], word, current_folder())):
            _confirm_run(index, word, runs[0], others[0], changes=changes)
        return runs[0]
    if not runs and (plain := find_plain_job(index, word)):
        raise _refusal_to_change(plain)
    names = [run.name for run in (runs or index.runs())]
    if runs:
        raise CommandLineError.of(f"'{word}' is ambiguous", fix=f"name one run: {', '.join(names[-20:])}")
    fix = "sbatchgen status --all lists your runs; its --scan enters those of a folder"
    suggestion = did_you_mean(word, names[-1000:]) if names else ""
    has_near_name = suggestion.startswith("did")  # else it lists all names
    raise CommandLineError.of(f"there is no run '{word}'", fix=suggestion if has_near_name else fix)


def _confirm_run(index: Index, word: str, named: Run, other: Run, *, changes: bool) -> None:
    """Print a note that a word may also mean another run, or ask; raise if the user must name one run."""
    says = f"'{word}' is the run in {named.folder}, and ./runs/{word} is run {other.name}"
    if not changes:
        note(f"note: {says}; this is about {word}")
    elif sys.stdin.isatty():
        click.confirm(one_line(f"{says}. Is {word} meant?"), abort=True, err=True)
    else:
        ids = [job.id for job in index.jobs(named.name) if job.id]
        unique = ids[-1] if named.shared and ids else str(named.folder)  # a shared folder names several runs
        raise CommandLineError.of(says, fix=f"name one: {unique} or {other.name}")


def find_plain_job(index: Index, word: str, task: str = "") -> PlainJob | None:
    """Return the job that a word names if it belongs to no run (plain sbatch, or a colleague's); else None.

    Raises CommandLineError for a file that is not a log, and for an unknown id or `task`; DocumentError or
    SlurmError if a file or Slurm's answer can't be read.
    """
    from sbatchgen.jobs.runs.plain_job import find

    base, _, point = word.rpartition("/")
    if index.find(word, current_folder()) or (
        base and point.isdecimal() and index.find(base, current_folder())
    ):
        return None
    return find(word, current_folder(), os.environ, task)


def _refusal_to_change(job: PlainJob) -> SbatchgenError:
    """Return the error of a command that would change or restart a job which belongs to no run."""
    if job.owner:
        fix = f"{_how_to_continue(job)}{ALSO}status, logs, diagnose and plot can read it"
        return CommandLineError.of(f"{job.word} belongs to {job.owner}", fix=fix)
    what = f"{job.word} is a job that was not submitted by sbatchgen"
    is_live = job.row is not None and not job.row.state.ended
    fix = f"scancel {job.id} cancels it; " if is_live else ""
    script = job.record.script
    if script:
        fix += f"sbatchgen submit {quoted(_typed_path(script))} submits its script as a run"
    return CommandLineError.of(what, fix=fix or "submit its script by sbatchgen, to have a run")


def _typed_path(path: str) -> str:
    """Return the path of a file as a user types it in the current folder."""
    return os.path.relpath(path) if Path(path).is_relative_to(current_folder()) else path


def _how_to_continue(job: PlainJob) -> str:
    """Return the fix that continues the training of a colleague's run."""
    from sbatchgen.base.machine.trust import user_name

    newest = job.newest_checkpoint
    resume = f"--resume {quoted(str(newest))}" if newest else "--resume and its checkpoint"
    run_dir = quoted(f"runs-{user_name(os.geteuid())}/{job.folder.name}")
    return f"to continue its training, submit your job with {resume} --run-dir {run_dir}"


def find_point(index: Index, word: str, *, changes: bool | None = False) -> tuple[Run, str]:
    """Return the run that a word names, and the number of the point or task that it names, or "".

    The word may be lr/0, or a log of the point or task. Asks and raises like `find_run`.
    """
    from sbatchgen.jobs.runs.job_log import task_of
    from sbatchgen.jobs.runs.points import POINTS_FILE
    from sbatchgen.jobs.runs.record import records

    base, _, point = word.rpartition("/")
    is_point = base and point.isdecimal() and not index.find(word, current_folder())
    run, path = find_run(index, base if is_point else word, changes=changes), Path(current_folder(), word)
    submissions = records(run.folder)
    if (
        is_point
        and not any(record.array for record in submissions)
        and not (run.folder / POINTS_FILE).exists()
    ):
        raise CommandLineError.of(f"run {run.name} is not a sweep or an array", fix=f"leave out /{point}")
    tasks = (task_of(record, path) for record in submissions if path.is_file())
    return run, point if is_point else next(filter(None, tasks), "")


def find_job(index: Index, word: str, *, changes: bool | None = False) -> tuple[Run, str, str]:
    """Return the run, the point or task, and the job id that a word names; the last two may be ""."""
    from sbatchgen.jobs.runs.record import read_record

    run, point = find_point(index, word, changes=changes)
    job = index.job_of(run, word, current_folder())
    task = word.removeprefix(f"{job}_")  # "3" of "4711_3"
    record = read_record(run.folder, job) if job and task != word and task.isdecimal() else None
    return run, (str(int(task) + record.first) if record and record.array else point), job


def refuse_other_task(run: Run, task: str, job: str = "") -> None:
    """Raise CommandLineError if a run, or its array with the id `job`, has no such task or point."""
    from sbatchgen.jobs.runs.points import POINTS_FILE, has_number
    from sbatchgen.jobs.runs.record import records

    if not task or has_number(run.folder, task, job):
        return
    is_sweep = (run.folder / POINTS_FILE).exists()
    if not is_sweep and not any(record.array for record in records(run.folder)):
        what = f"run {run.name} is not a sweep or an array"
        raise CommandLineError.of(what, at="--task", fix="leave it out")
    what = f"run {run.name} has no {'point' if is_sweep else 'task'} {task}"
    raise CommandLineError.of(what, fix=f"sbatchgen status {run.name}")


def point_states_of(
    index: Index, names: Sequence[str], *, changes: bool = False
) -> tuple[list[RunState], list[Problem]]:
    """Return the states of runs, of points such as lr/0 and of jobs of no run, and problems with reading."""
    from sbatchgen.jobs.runs.points import POINTS_FILE
    from sbatchgen.jobs.runs.status import plain_state, point_state, run_states

    plain = {at: job for at, name in enumerate(names) if (job := find_plain_job(index, name))}
    run_names = [name for at, name in enumerate(names) if at not in plain]
    chosen = [find_job(index, name, changes=changes) for name in run_names]
    only_point = chosen[0][1] if len(chosen) == 1 else ""
    runs, jobs = [run for run, _, _ in chosen], [job for _, _, job in chosen]
    states, problems = run_states(index, os.environ, runs, only_point, jobs) if chosen else ([], [])
    for at, (run, point, _) in enumerate(chosen):
        if point and (not Path(run_names[at]).is_file() or (run.folder / POINTS_FILE).exists()):
            (run_state,) = states if len(chosen) == 1 else run_states(index, os.environ, [run], point)[0]
            states[at] = point_state(run_state, point)
    for at, job in plain.items():  # at its place in the order of the names
        states.insert(at, plain_state(job))
        problems += [Problem(text) for text in job.problems]
    return states, problems


def check_folder(run: Run) -> None:
    """Raise DocumentError if the folder of a run does not exist any more, OSError if it can't be read."""
    try:
        os.scandir(run.folder).close()
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"the folder of run {run.name} is gone: {run.folder}"
        raise DocumentError.of(
            what, fix="if it was moved, enter it again: --scan of sbatchgen status takes the folder above it"
        ) from error
