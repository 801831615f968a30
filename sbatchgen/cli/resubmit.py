"""The commands resume and resubmit: they submit an ended run, or points of a sweep, again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.base.errors import CommandLineError, DocumentError, Problem, SlurmError
from sbatchgen.base.quoting import word
from sbatchgen.base.quoting import words as quoted_words
from sbatchgen.cli import submit
from sbatchgen.cli.jobs import pop_snapshot_files
from sbatchgen.cli.output import FORMAT, YES, completed_runs, current_folder
from sbatchgen.cli.runs import check_folder, find_point, open_index
from sbatchgen.cli.sweeps import run_sweep, sweep

if TYPE_CHECKING:
    from sbatchgen.jobs.resolved.sweep import Sweep
    from sbatchgen.jobs.runs.index import Index, Run
    from sbatchgen.jobs.runs.record import Record

# Options that say how to submit a job. They do not describe the job, so no record has them.
_SUBMISSION_OPTIONS = (
    "yes",
    "dry_run",
    "again",
    "budget",
    "reviewed",
    "follow",
    "after",
    "keep_sbatch_env",
    "form",
    "fit",
    "needs",
)
_FROM_COMMAND_LINE = click.core.ParameterSource.COMMANDLINE


def _warn_of_completed(index: Index, run: Run) -> None:
    """Add a warning to the review if the run that is started again has completed."""
    from sbatchgen.base.finding import Finding
    from sbatchgen.jobs.runs.status import run_states

    (state,), _ = run_states(index, os.environ, [run])
    if state.last and state.last.state == "COMPLETED":
        what = f"job {state.last.id} of run {run.name} has completed; resume starts the run again"
        click.get_current_context().meta[submit.EXTRA_FINDINGS] = (Finding("warning", Problem(what)),)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run", metavar="RUN", shell_complete=completed_runs)
@click.argument("options", metavar="[OPTIONS OF SUBMIT]", nargs=-1, type=click.UNPROCESSED)
@YES
@FORMAT
@click.pass_obj
def resume(args: tuple[str, ...], /, run: str, *, options: tuple[str, ...], yes: bool, form: str) -> None:
    """Continue a run that has ended.

    resume submits the job again, with its options and from its folder. The bundled trainer continues from its
    last good checkpoint. More options change the job, as in: sbatchgen resume ddp --time 8:00:00. The review
    shows how the job differs from the last job. A finished script is submitted unchanged, and its program
    decides where it continues. For a sweep, resume does the same as resubmit; lr/0 is one point.
    """
    index = open_index()
    resumed, element = find_point(index, run, in_doubt="ask")
    last = last_record(resumed)
    own_options = [*["--yes"] * yes, "--format", form]
    if last.command[1:2] == ("shell",):
        what = f"run {resumed.name} is a shell of a job, which trains nothing by itself"
        raise CommandLineError.of(what, fix=quoted_words(("sbatchgen", *last.command[1:])))
    if last.command[1:2] == ("sweep",):
        submit_points(args, resumed, (*options, *own_options), only=element)
        return
    _warn_of_completed(index, resumed)
    array = ["--array", element] if element else []
    if last.command:
        words, old_args = _recorded_words(submit.submit, resumed, last)
        # A value of --resume says where the first job began, and this job continues.
        auto = [] if last.by_default("resume") else ["--resume", "auto"]
        typed = [*words, *auto, *array, *options, *own_options]
        with _context(submit.submit, typed, (*old_args, *args)) as context:
            submit.submit.invoke(context)
        return
    with _context(submit.submit, [last.script, *array, *options, *own_options], args) as context:
        job_options = context.params
        submit_options = {
            name: job_options.pop(name)
            for name in ("yes", "dry_run", "again", "reviewed", "follow", "after", "form")
        }
        keep_env = job_options.pop("keep_sbatch_env")
        if pop_snapshot_files(job_options) is not None:
            raise CommandLineError.of(f"{last.script} is a finished script: it can't run a snapshot")
        del job_options["job"]
        _resume_script(resumed, last, job_options, args, keep_env=keep_env, **submit_options)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run", metavar="RUN", shell_complete=completed_runs)
@click.argument("options", metavar="[OPTIONS OF SWEEP]", nargs=-1, type=click.UNPROCESSED)
@click.option("--failed", is_flag=True, help="Only points that ran and failed.")
@click.option("--points", "only", metavar="LIST", default="", help="Only these points, as 3,17-19.")
@YES
@FORMAT
@click.pass_obj
def resubmit(
    args: tuple[str, ...],
    /,
    run: str,
    *,
    options: tuple[str, ...],
    failed: bool,
    only: str,
    yes: bool,
    form: str,
) -> None:
    """Submit the unfinished points of a sweep again, or some of them.

    Points that wait or run are not submitted; lr/0 is one point. Options change the job, as in: sbatchgen
    resubmit lr --failed --time 8:00:00. The bundled trainer continues from its last good checkpoint.
    """
    named, point = find_point(open_index(), run, in_doubt="ask")
    own_options = (*["--yes"] * yes, "--format", form)
    submit_points(args, named, (*options, *own_options), only=only or point, failed=failed)


def submit_points(
    args: tuple[str, ...], run: Run, options: tuple[str, ...], *, only: str = "", failed: bool = False
) -> None:
    """Submit points of a sweep again.

    `only` is a list of points such as 3,17-19. Without a list, all points that are not done are submitted.
    With `failed`, only points that failed or were stopped are submitted.
    """
    from sbatchgen.check.sbatch.array import indices
    from sbatchgen.jobs.runs import points
    from sbatchgen.jobs.runs.status import run_states

    named = {number for numbers in indices(only) or () for number in numbers}
    if only and not named:
        raise CommandLineError.of(f"'{only}' is not a list of points", at="--points", fix="write 3,17-19")
    (state,), problems = run_states(open_index(), os.environ, [run])
    name, before = state.run.name, state.sweep
    if problems:
        raise SlurmError(problems)
    if before is None:
        raise CommandLineError.of(f"run {name} is not a sweep", fix=f"sbatchgen resume {name}")
    chosen = [
        point.number
        for point in before.points
        if not point.live
        and (point.number in named if only else point.state != points.DONE)
        and (not failed or point.state in (points.FAILED, points.STOPPED))
    ]
    last = last_record(state.run)

    def chosen_if_unchanged(now: Sweep) -> list[int]:
        if (now.names, now.points) != (before.names, tuple(point.values for point in before.points)):
            what = f"the points of run {name} have changed since"
            raise CommandLineError.of(what, fix="submit another sweep: --job-name NAME")
        return chosen

    words, old_args = _recorded_words(sweep, run, last)
    trainer_args = (*old_args, *args)
    with _context(sweep, [*words, *options], trainer_args) as context:
        run_sweep(trainer_args, context.params.pop("job"), context.params, chosen_if_unchanged)


def _context(command: click.Command, typed: Sequence[str], args: tuple[str, ...]) -> click.Context:
    """Return the context of a command as if it had been typed with these words, and `args` after --."""
    root = click.get_current_context().find_root()
    return command.make_context(command.name, [*typed], parent=root, obj=args)


def _recorded_words(
    command: click.Command, run: Run, last: Record
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of the recorded command: the options of the job, and the arguments after `--`.

    Raises DocumentError if the record has an option that does not describe a job, such as --yes. A folder
    that was copied from elsewhere may hold any record.
    """
    words, trainer_args = last.typed
    with command.make_context(command.name, [*words], obj=trainer_args) as context:
        typed = [
            name for name in _SUBMISSION_OPTIONS if context.get_parameter_source(name) is _FROM_COMMAND_LINE
        ]
    if typed:
        what = (
            f"the record of run {run.name} has --{typed[0].replace('_', '-')}, which does not describe a job"
        )
        fix = f"look at {word(str(run.folder))}: sbatchgen did not write that record"
        raise DocumentError.of(what, fix=fix)
    return words, trainer_args


def last_record(run: Run) -> Record:
    """Return the record of a run's newest job, and change to the folder that the job was submitted from.

    Raises DocumentError: the run has no record, or the folder does not exist any more.
    """
    from sbatchgen.jobs.runs.record import records, submitting
    from sbatchgen.jobs.runs.run_folder import refusal

    if problem := refusal(run.folder):
        raise DocumentError([problem])
    last = next(reversed(records(run.folder)), None) or submitting(run.folder)
    if last is None:
        check_folder(run)
        what = f"run {run.name} has no record in {run.folder}"
        raise DocumentError.of(what, fix="submit it again, with --run-dir")
    try:
        os.chdir(last.folder)
    except OSError as error:
        what = f"the run was submitted from {last.folder}: {error.strerror}"
        raise DocumentError.of(what, fix="make that folder again, or submit the job from another") from error
    return last


def _resume_script(
    run: Run,
    last: Record,
    job_options: dict[str, Any],
    args: tuple[str, ...],
    *,
    keep_env: bool,
    **submit_options: Any,
) -> None:
    """Submit the script of a run again; only options of sbatch may differ."""
    from sbatchgen.base.files import read_file, read_own
    from sbatchgen.base.finding import Finding
    from sbatchgen.jobs.inputs.document import MAX_BYTES
    from sbatchgen.jobs.runs import folder_check, submitted_scripts
    from sbatchgen.jobs.submit.finished import submission_of_script

    copy, script = submitted_scripts.path(run.folder, last.job), Path(last.script)
    try:
        is_unchanged = read_own(copy, MAX_BYTES) == read_file(script, MAX_BYTES)
    except OSError:
        is_unchanged = False
    if not is_unchanged:
        what = f"{script} has changed since job {last.job} ran it"
        raise DocumentError.of(what, fix=f"submit that one, or {copy}, which is what it ran")
    submission = submission_of_script(
        script, job_options, args, os.environ, current_folder(), keep_env=keep_env, earlier=last.options
    )
    find_conflict = partial(folder_check.conflict_with_job, run.folder, os.environ)
    if problem := find_conflict():
        raise CommandLineError([problem])
    findings = submission.review.findings
    if loss := submitted_scripts.loss_on_restart(last, run.folder):
        findings = (*findings, Finding("warning", Problem(loss.says, last.script, loss.fix())))
    review = dataclasses.replace(submission.review, findings=findings)
    again = dataclasses.replace(submission, review=review, run_dir=run.folder, folder_conflict=find_conflict)
    submit.submit_reviewed(again, keep_env=keep_env, **submit_options)
