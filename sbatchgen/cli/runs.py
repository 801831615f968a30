"""The runs, points and jobs that the words of a command line name.

Commands about runs use these functions. A word may be a run's name, its folder, a job id, a log or a script.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

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
from sbatchgen.cli.output import complete_run, current_folder, note

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.index import Index, Run
    from sbatchgen.jobs.runs.plain_job import PlainJob
    from sbatchgen.jobs.runs.status import RunState

_TASK = re.compile(r"[0-9]{1,9}")  # the number of a task; Slurm has none with more digits
POLL_S = 10.0  # seconds between two questions to Slurm, whose manual pages ask for few questions

# What a command does if ./runs/NAME is the folder of another run than the run NAME: it prints a note which
# run it shows, it asks the user because it changes a run, or it uses the run NAME without a note.
InDoubt = Literal["note", "ask", "ignore"]

RUN = click.argument("run", metavar="RUN", shell_complete=complete_run)
RUNS = click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)


class NamedPoint(NamedTuple):
    """The run that a word names, and its point or task."""

    run: Run
    point: str  # the number of a point of a sweep or of a task of an array; "" for the whole run


class NamedJob(NamedTuple):
    """The run that a word names, its point or task, and its job."""

    run: Run
    point: str  # as in NamedPoint
    job_id: str  # "" for the whole run


def task_option(help_: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --task with a command's own help; the value is a number in digits, or ""."""
    return click.option("--task", metavar="N", default="", callback=_task_number, help=help_)


def _task_number(_: click.Context, __: click.Parameter, typed: str) -> str:
    """Return the number of a task without zeros at its start; raise CommandLineError for another word."""
    if typed and not _TASK.fullmatch(typed):
        what = f"'{typed}' is not the number of a task"
        raise CommandLineError.of(what, at="--task", fix="write one number, as in: --task 3")
    return typed and str(int(typed))


def open_index() -> Index:
    """Return the index of the user's runs; raise DocumentError if it can't be used."""
    from sbatchgen.jobs.runs.index import Index, index_file

    return Index(index_file(os.environ), note)


def find_run(index: Index, word: str, *, in_doubt: InDoubt = "note") -> Run:
    """Return the run that a word names.

    Raises CommandLineError if no run or several runs have the name, or if the command must ask (`in_doubt`)
    and there is no terminal.
    """
    runs = index.find(word, current_folder())
    if len(runs) == 1:
        others = index.others_in_folder(runs[0], word, current_folder()) if in_doubt != "ignore" else []
        if others:
            _tell_apart(index, word, runs[0], others[0], must_ask=in_doubt == "ask")
        return runs[0]
    if not runs and (plain_job := find_plain_job(index, word)):
        raise _refusal_of_plain_job(plain_job)
    names = [run.name for run in (runs or index.runs())]
    if runs:
        raise CommandLineError.of(f"'{word}' is ambiguous", fix=f"name one run: {', '.join(names[-20:])}")
    fix = "sbatchgen status --all lists your runs; its --scan adds the runs in a folder"
    suggestion = did_you_mean(word, names[-1000:]) if names else ""
    has_near_name = suggestion.startswith("did you mean")  # else the suggestion lists all names
    raise CommandLineError.of(f"there is no run '{word}'", fix=suggestion if has_near_name else fix)


def _tell_apart(index: Index, word: str, named: Run, other: Run, *, must_ask: bool) -> None:
    """Print a note that the name of a run is also the folder of another run, or ask whether `named` is meant.

    Raises CommandLineError if there is no terminal to ask, click.Abort if the answer is no.
    """
    says = f"'{word}' is the run in {named.folder}, and ./runs/{word} is run {other.name}"
    if not must_ask:
        note(f"note: {says}; this command shows {word}")
    elif sys.stdin.isatty():
        click.confirm(one_line(f"{says}. Do you mean run {word}?"), abort=True, err=True)
    else:
        ids = [job.id for job in index.jobs(named.name) if job.id]
        # Several runs may share a folder, so the path of a shared folder names no single run.
        unique_name = ids[-1] if named.shared and ids else str(named.folder)
        raise CommandLineError.of(says, fix=f"name one: {unique_name} or {other.name}")


def find_plain_job(index: Index, word: str, task: str = "") -> PlainJob | None:
    """Return the job that a word names, if it belongs to no run of the user; else None.

    The user has submitted such a job with sbatch, or it is a colleague's. `task` chooses a task of its array.
    Raises CommandLineError for a file that is not a log, and for an unknown id or task. Raises DocumentError
    or SlurmError if a file or Slurm's answer can't be read.
    """
    from sbatchgen.jobs.runs.plain_job import find

    run_word, _, point = word.rpartition("/")  # lr/0 is a point of the run lr
    is_run = bool(index.find(word, current_folder()))
    is_point = run_word and point.isdecimal() and index.find(run_word, current_folder())
    if is_run or is_point:
        return None
    return find(word, current_folder(), os.environ, task)


def _refusal_of_plain_job(job: PlainJob) -> SbatchgenError:
    """Return the error for a job that belongs to no run, if the command needs a run."""
    if job.owner:
        fix = f"{_how_to_continue(job)}{ALSO}status, logs, diagnose and plot can read it"
        return CommandLineError.of(f"{job.word} belongs to {job.owner}", fix=fix)
    what = f"{job.word} is a job that was not submitted by sbatchgen"
    waits_or_runs = job.row is not None and not job.row.state.ended
    fix = f"scancel {job.id} cancels it; " if waits_or_runs else ""
    script = job.record.script
    if script:
        fix += f"sbatchgen submit {quoted(_typed_path(script))} submits its script as a run"
    return CommandLineError.of(what, fix=fix or "submit its script with sbatchgen, which makes a run")


def _typed_path(path: str) -> str:
    """Return a path as a user types it: relative if it is below the current folder."""
    return os.path.relpath(path) if Path(path).is_relative_to(current_folder()) else path


def _how_to_continue(job: PlainJob) -> str:
    """Return the fix that continues a colleague's training in a run folder of the user's own."""
    from sbatchgen.base.machine.trust import user_name

    checkpoint = job.newest_checkpoint
    resume = f"--resume {quoted(str(checkpoint))}" if checkpoint else "--resume and its checkpoint"
    run_dir = quoted(f"runs-{user_name(os.geteuid())}/{job.folder.name}")
    return f"to continue its training, submit your job with {resume} --run-dir {run_dir}"


def find_point(index: Index, word: str, *, in_doubt: InDoubt = "note") -> NamedPoint:
    """Return the run and the point or task that a word names, such as lr/0 or a log of the task.

    Asks and raises like `find_run`. Raises CommandLineError also for a point of a run that has none.
    """
    from sbatchgen.jobs.runs.job_log import task_of
    from sbatchgen.jobs.runs.points import POINTS_FILE
    from sbatchgen.jobs.runs.record import records

    run_word, _, number = word.rpartition("/")
    is_point = run_word and number.isdecimal() and not index.find(word, current_folder())
    run = find_run(index, run_word if is_point else word, in_doubt=in_doubt)
    submissions = records(run.folder)
    if is_point:
        has_points = any(record.array for record in submissions) or (run.folder / POINTS_FILE).exists()
        if not has_points:
            what = f"run {run.name} is not a sweep or an array"
            raise CommandLineError.of(what, fix=f"leave out /{number}")
        return NamedPoint(run, number)
    path = Path(current_folder(), word)
    tasks = (task_of(record, path) for record in submissions if path.is_file())
    return NamedPoint(run, next(filter(None, tasks), ""))


def find_job(index: Index, word: str, *, in_doubt: InDoubt = "note") -> NamedJob:
    """Return the run, the point or task, and the job that a word names. Asks and raises like `find_point`."""
    from sbatchgen.jobs.runs.record import read_record

    run, point = find_point(index, word, in_doubt=in_doubt)
    job_id = index.job_of(run, word, current_folder())
    task = word.removeprefix(f"{job_id}_")  # "3" of "4711_3"
    names_task = job_id and task != word and task.isdecimal()
    record = read_record(run.folder, job_id) if names_task else None
    if record and record.array:  # a large sweep has several arrays, and its record says which point is task 0
        point = str(int(task) + record.first)
    return NamedJob(run, point, job_id)


def refuse_other_task(run: Run, task: str, job_id: str = "") -> None:
    """Raise CommandLineError if a run, or its array with the id `job_id`, has no such task or point."""
    from sbatchgen.jobs.runs.points import POINTS_FILE, has_number
    from sbatchgen.jobs.runs.record import records

    if not task or has_number(run.folder, task, job_id):
        return
    is_sweep = (run.folder / POINTS_FILE).exists()
    if not is_sweep and not any(record.array for record in records(run.folder)):
        what = f"run {run.name} is not a sweep or an array"
        raise CommandLineError.of(what, at="--task", fix="leave it out")
    what = f"run {run.name} has no {'point' if is_sweep else 'task'} {task}"
    raise CommandLineError.of(what, fix=f"sbatchgen status {run.name}")


def read_states(
    index: Index, names: Sequence[str], *, in_doubt: InDoubt = "note"
) -> tuple[list[RunState], list[Problem]]:
    """Return the states of runs, of points such as lr/0 and of jobs of no run, and problems with reading."""
    from sbatchgen.jobs.runs.points import POINTS_FILE
    from sbatchgen.jobs.runs.status import plain_state, point_state, run_states

    plain_jobs = {at: job for at, name in enumerate(names) if (job := find_plain_job(index, name))}
    run_words = [name for at, name in enumerate(names) if at not in plain_jobs]
    named_jobs = [find_job(index, word, in_doubt=in_doubt) for word in run_words]
    only_point = named_jobs[0].point if len(named_jobs) == 1 else ""
    runs, job_ids = [named.run for named in named_jobs], [named.job_id for named in named_jobs]
    states, problems = run_states(index, os.environ, runs, only_point, job_ids) if runs else ([], [])
    for at, (run, point, _) in enumerate(named_jobs):
        # The log of a sweep's point names the point. The log of an array's task names the whole run.
        if point and (not Path(run_words[at]).is_file() or (run.folder / POINTS_FILE).exists()):
            # Only the state of a single run has the points of its sweep.
            (run_state,) = states if len(runs) == 1 else run_states(index, os.environ, [run], point)[0]
            states[at] = point_state(run_state, point)
    for at, plain_job in plain_jobs.items():  # each at the place of its name
        states.insert(at, plain_state(plain_job))
        problems += [Problem(text) for text in plain_job.problems]
    return states, problems


def check_folder(run: Run) -> None:
    """Raise DocumentError if the folder of a run does not exist any more, OSError if it can't be read."""
    try:
        os.scandir(run.folder).close()
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"the folder of run {run.name} is gone: {run.folder}"
        raise DocumentError.of(
            what, fix="if it was moved, add it again: --scan of sbatchgen status takes the folder above it"
        ) from error
