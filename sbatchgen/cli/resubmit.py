"""The commands resume and resubmit: they submit the job of an ended run, or points of a sweep, again."""

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
from sbatchgen.cli.output import FORMAT, YES, complete_run, current_folder
from sbatchgen.cli.runs import check_folder, find_point, open_index
from sbatchgen.cli.sweeps import run_sweep, sweep

if TYPE_CHECKING:
    from sbatchgen.jobs.resolved.sweep import Sweep
    from sbatchgen.jobs.runs.index import Index, Run
    from sbatchgen.jobs.runs.points import Point
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


def _warn_if_completed(index: Index, run: Run) -> None:
    """Add a warning to the review if the run has completed, because a user seldom starts such a run again."""
    from sbatchgen.base.finding import Finding
    from sbatchgen.jobs.runs.status import run_states

    (state,), _ = run_states(index, os.environ, [run])
    if state.last_job and state.last_job.state == "COMPLETED":
        what = f"job {state.last_job.id} of run {run.name} has completed; resume starts the run again"
        click.get_current_context().meta[submit.EXTRA_FINDINGS] = (Finding("warning", Problem(what)),)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run", metavar="RUN", shell_complete=complete_run)
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
    named_run, point = find_point(index, run, in_doubt="ask")
    record = _enter_folder_of_last_job(named_run)
    all_options = (*options, *_words_of_own_options(form, yes=yes))
    verb = record.command[1:2]  # of the recorded command, such as sbatchgen shell; () for a finished script
    if verb == ("shell",):
        what = f"run {named_run.name} is a shell of a job, which trains nothing by itself"
        raise CommandLineError.of(what, fix=quoted_words(("sbatchgen", *record.command[1:])))
    if verb == ("sweep",):
        submit_points(args, named_run, all_options, point_list=point)
        return
    _warn_if_completed(index, named_run)
    array = ["--array", point] if point else []
    if record.command:
        job_words, recorded_args = _recorded_words(submit.submit, named_run, record)
        # A recorded --resume says where the first job began. This job continues that job.
        resume_auto = [] if record.has_default("resume") else ["--resume", "auto"]
        words = [*job_words, *resume_auto, *array, *all_options]
        with _context_of_words(submit.submit, words, (*recorded_args, *args)) as context:
            submit.submit.invoke(context)
        return
    with _context_of_words(submit.submit, [record.script, *array, *all_options], args) as context:
        job_options = context.params
        submit_options = {name: job_options.pop(name) for name in submit.SUBMIT_OPTIONS}
        keep_env = job_options.pop("keep_sbatch_env")
        if pop_snapshot_files(job_options) is not None:
            what = f"{record.script} is a finished script: it can't run a snapshot"
            raise CommandLineError.of(what, fix="leave --snapshot out")
        del job_options["job"]
        _resume_script(named_run, record, job_options, args, keep_env=keep_env, **submit_options)


def _words_of_own_options(form: str, *, yes: bool) -> list[str]:
    """Return --yes and --format as words, for the command that `resume` or `resubmit` calls."""
    return [*(["--yes"] if yes else []), "--format", form]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.argument("options", metavar="[OPTIONS OF SWEEP]", nargs=-1, type=click.UNPROCESSED)
@click.option("--failed", is_flag=True, help="Only points that failed or were stopped.")
@click.option(
    "--points", "point_list", metavar="LIST", default="", help="Only these points, such as 3,17-19."
)
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
    point_list: str,
    yes: bool,
    form: str,
) -> None:
    """Submit the unfinished points of a sweep again, or some of them.

    Points that wait or run are not submitted; lr/0 is one point. Options change the job, as in: sbatchgen
    resubmit lr --failed --time 8:00:00. The bundled trainer continues from its last good checkpoint.
    """
    named_run, point = find_point(open_index(), run, in_doubt="ask")
    all_options = (*options, *_words_of_own_options(form, yes=yes))
    submit_points(args, named_run, all_options, point_list=point_list or point, failed=failed)


def submit_points(
    args: tuple[str, ...], run: Run, options: tuple[str, ...], *, point_list: str = "", failed: bool = False
) -> None:
    """Submit points of a sweep again, apart from points that wait or run.

    `point_list` is a list such as 3,17-19. Without a list, all points that are not done are submitted. With
    `failed`, only points that failed or were stopped are submitted. `options` are words for `sweep`.
    """
    from sbatchgen.jobs.runs.status import run_states

    listed_points = _numbers_in(point_list)
    (state,), problems = run_states(open_index(), os.environ, [run])
    name, recorded_sweep = state.run.name, state.sweep
    if problems:
        raise SlurmError(problems)
    if recorded_sweep is None:
        raise CommandLineError.of(f"run {name} is not a sweep", fix=f"sbatchgen resume {name}")
    chosen = _points_to_submit(recorded_sweep.points, listed_points, failed=failed)
    record = _enter_folder_of_last_job(state.run)

    def choose_if_unchanged(sweep_now: Sweep) -> list[int]:
        """Return the chosen numbers; raise CommandLineError if they would mean other values now."""
        recorded_points = tuple(point.values for point in recorded_sweep.points)
        if (sweep_now.names, sweep_now.points) != (recorded_sweep.names, recorded_points):
            what = f"the points of run {name} have changed since it was submitted"
            raise CommandLineError.of(what, fix="submit another sweep: --job-name NAME")
        return chosen

    job_words, recorded_args = _recorded_words(sweep, run, record)
    trainer_args = (*recorded_args, *args)
    with _context_of_words(sweep, [*job_words, *options], trainer_args) as context:
        run_sweep(trainer_args, context.params.pop("job"), context.params, choose_if_unchanged)


def _numbers_in(point_list: str) -> set[int]:
    """Return the numbers in a list such as 3,17-19; raise CommandLineError for another text, except ""."""
    from sbatchgen.check.sbatch.array import indices

    numbers = {number for span in indices(point_list) or () for number in span}
    if point_list and not numbers:
        what = f"'{point_list}' is not a list of points"
        raise CommandLineError.of(what, at="--points", fix="write 3,17-19")
    return numbers


def _points_to_submit(sweep_points: Sequence[Point], listed: set[int], *, failed: bool) -> list[int]:
    """Return the numbers of the listed points, or of all unfinished points, that neither wait nor run.

    With `failed`, return only points that failed or were stopped.
    """
    from sbatchgen.jobs.runs import points

    return [
        point.number
        for point in sweep_points
        if not point.is_active
        and (point.number in listed if listed else point.state != points.DONE)
        and (not failed or point.state in (points.FAILED, points.STOPPED))
    ]


def _context_of_words(command: click.Command, words: Sequence[str], args: tuple[str, ...]) -> click.Context:
    """Return the context of a command as if a user had typed these words, and `args` after --."""
    root = click.get_current_context().find_root()
    return command.make_context(command.name, [*words], parent=root, obj=args)


def _recorded_words(
    command: click.Command, run: Run, record: Record
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of the recorded command that describe the job, and the trainer's arguments.

    Raises DocumentError if the record has an option that does not describe a job, such as --yes. A folder
    that was copied from elsewhere may hold any record.
    """
    job_words, trainer_args = record.typed_words
    with command.make_context(command.name, [*job_words], obj=trainer_args) as context:
        wrong_options = [
            name for name in _SUBMISSION_OPTIONS if context.get_parameter_source(name) is _FROM_COMMAND_LINE
        ]
    if wrong_options:
        option = f"--{wrong_options[0].replace('_', '-')}"
        what = f"the record of run {run.name} has {option}, which does not describe a job"
        fix = f"look at {word(str(run.folder))}: sbatchgen did not write that record"
        raise DocumentError.of(what, fix=fix)
    return job_words, trainer_args


def _enter_folder_of_last_job(run: Run) -> Record:
    """Change to the folder from which a run's newest job was submitted, and return the job's record.

    Relative paths in the record's command start at this folder. Raises DocumentError if the run has no
    record, or if the folder does not exist any more.
    """
    from sbatchgen.jobs.runs.record import read_submitting, records
    from sbatchgen.jobs.runs.run_folder import why_not_trusted

    if problem := why_not_trusted(run.folder):
        raise DocumentError([problem])
    record = next(reversed(records(run.folder)), None) or read_submitting(run.folder)
    if record is None:
        check_folder(run)
        what = f"run {run.name} has no record in {run.folder}"
        raise DocumentError.of(what, fix="submit the job again, with --run-dir and this folder")
    try:
        os.chdir(record.folder)
    except OSError as error:
        what = f"the run was submitted from {record.folder}: {error.strerror}"
        fix = "make this folder again, or submit the job from another folder"
        raise DocumentError.of(what, fix=fix) from error
    return record


def _resume_script(
    run: Run,
    record: Record,
    job_options: dict[str, Any],
    args: tuple[str, ...],
    *,
    keep_env: bool,
    **submit_options: Any,
) -> None:
    """Submit the finished script of a run again, with other options of sbatch if these were typed.

    Raises DocumentError if the script has changed since the run's last job.
    """
    from sbatchgen.base.finding import Finding
    from sbatchgen.jobs.runs import folder_check, submitted_scripts
    from sbatchgen.jobs.submit.finished import submission_of_script

    script = Path(record.script)
    _refuse_changed_script(script, submitted_scripts.script_file(run.folder, record.job), record.job)
    submission = submission_of_script(
        script, job_options, args, os.environ, current_folder(), keep_env=keep_env, earlier=record.options
    )
    find_conflict = partial(folder_check.conflict_with_job, run.folder, os.environ)
    if problem := find_conflict():
        raise CommandLineError([problem])
    findings = submission.review.findings
    if loss := submitted_scripts.loss_on_restart(record, run.folder):
        findings = (*findings, Finding("warning", Problem(loss.says, record.script, loss.fix())))
    review = dataclasses.replace(submission.review, findings=findings)
    resubmission = dataclasses.replace(
        submission, review=review, run_dir=run.folder, find_conflict=find_conflict
    )
    submit.submit_reviewed(resubmission, keep_env=keep_env, **submit_options)


def _refuse_changed_script(script: Path, submitted_copy: Path, job_id: str) -> None:
    """Raise DocumentError if a script differs from the copy that was kept when the job was submitted."""
    from sbatchgen.base.files import read_file, read_own
    from sbatchgen.jobs.inputs.document import MAX_BYTES

    try:
        is_unchanged = read_own(submitted_copy, MAX_BYTES) == read_file(script, MAX_BYTES)
    except OSError:
        is_unchanged = False
    if not is_unchanged:
        what = f"{script} has changed since job {job_id} ran it"
        fix = f"submit {script} as a new run, or {submitted_copy}, which job {job_id} ran"
        raise DocumentError.of(what, fix=fix)
