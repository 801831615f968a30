"""The commands submit and preflight, and the functions with which other commands ask, submit and report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.base.errors import CommandLineError, SbatchgenError
from sbatchgen.base.quoting import visible
from sbatchgen.cli.jobs import (
    NEEDS,
    SNAPSHOT,
    SNAPSHOT_FILE,
    JobCommand,
    pop_snapshot_files,
    review_of,
    submission_of,
)
from sbatchgen.cli.output import (
    BUDGET,
    FORMAT,
    YES,
    complete_run,
    failure_of,
    note,
    note_lines,
    put,
    put_json,
    put_log,
    show_brief,
    show_review,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbatchgen.jobs.review.review import Review
    from sbatchgen.jobs.runs.index import Index
    from sbatchgen.jobs.submit.sbatch import SubmittedRun
    from sbatchgen.jobs.submit.submission import Submission

DRY_RUN = click.option("--dry-run", is_flag=True, help="Review what the same command would submit, and stop.")

FOLLOW = click.option(
    "--follow", is_flag=True, help="Wait for the job and show its log. Ctrl-C does not end the job."
)
# Key in the `meta` of a click context: `resume` puts findings there, and the review shows them.
EXTRA_FINDINGS = "sbatchgen.found"
REVIEWED = click.option(
    "--reviewed",
    metavar="DIGEST",
    multiple=True,
    help="Submit only if the job's digest is DIGEST, as the review shows it.",
)
# The options of `submit` that say how to submit, for `submit_reviewed`. The others describe the job.
SUBMIT_OPTIONS = ("yes", "dry_run", "again", "reviewed", "follow", "after", "form")
# Default options of the job of `preflight`, which only checks its nodes.
_PREFLIGHT_OPTIONS = {
    "template": "preflight.sh.j2", "preflight": "true", "resume": "off", "job_name": "preflight",
    "time": "00:15:00",
}  # fmt: skip


@click.command(cls=JobCommand, usage="JOB... [OPTIONS] [-- TRAINER ARGS]")
@YES
@DRY_RUN
@BUDGET
@FORMAT
@click.option("--again", is_flag=True, help="Submit the job even if the same job waits or runs already.")
@REVIEWED
@FOLLOW
@click.option("--fit", is_flag=True, help="Submit the first row of `when --fit`.")
@NEEDS
@click.option(
    "--after",
    metavar="RUN",
    multiple=True,
    shell_complete=complete_run,
    help="Start only after this run, or a point such as lr/0, has completed.",
)
@SNAPSHOT
@SNAPSHOT_FILE
@click.option(
    "--keep-sbatch-env", is_flag=True, help="Don't remove SBATCH_* and SLURM_* from sbatch's environment."
)
@click.pass_obj
def submit(
    args: tuple[str, ...], /, job: tuple[str, ...], *, keep_sbatch_env: bool, **typed_options: Any
) -> None:
    """Review a job, then submit it.

    JOB may also be a finished script. Options of sbatch, such as --time, then override the script's own.
    submit sends exactly the bytes that it has shown, and runs nothing of the job here. Several jobs get the
    same options, and none is submitted if one has errors.
    """
    submit_options = {name: typed_options.pop(name) for name in SUBMIT_OPTIONS}
    fit, needs = typed_options.pop("fit"), typed_options.pop("needs")
    if needs and not fit:
        what = "--needs works only with --fit"
        raise CommandLineError.of(what, at="--needs", fix="add --fit, or leave --needs out")
    if fit:
        typed_options |= _options_of_best_start(job, args, typed_options, needs)
    snapshot = pop_snapshot_files(typed_options)
    submissions = [
        submission_of(
            name, args, typed_options, keep_env=keep_sbatch_env, snapshot=snapshot,
            ask_squeue=not submit_options["after"],  # with --after, a job may wait for one in its run folder
        )
        for name in job
    ]  # fmt: skip
    submit_reviewed(*submissions, keep_env=keep_sbatch_env, **submit_options)


def _options_of_best_start(
    jobs: tuple[str, ...], args: tuple[str, ...], typed_options: dict[str, Any], needs: str | None
) -> dict[str, str]:
    """Return the options in the first row of `when --fit`, by name, and print a note about the row."""
    from sbatchgen.check.lint.source import is_script
    from sbatchgen.cli.gpus import find_and_record_starts

    if len(jobs) > 1 or is_script(jobs[0]):
        what = "--fit takes one job, and no finished script"
        raise CommandLineError.of(what, fix="name one job, or leave --fit out")
    job_options = {name: value for name, value in typed_options.items() if not name.startswith("snapshot")}
    rows = find_and_record_starts(jobs[0], args, job_options, needs, fit=True).rows
    best = next((row for row in rows if row.argv), None)  # a row without a command is about a job that waits
    if best is None:
        raise CommandLineError.of("no start is known for the job", at="--fit", fix="leave --fit out")
    note(f"note: {best.kind}: {best.says}")
    flags, values = best.options[::2], best.options[1::2]  # each flag is followed by its value
    return {flag[2:].replace("-", "_"): value for flag, value in zip(flags, values, strict=True)}


@click.command(cls=JobCommand, usage="[OPTIONS]")
@YES
@DRY_RUN
@BUDGET
@FOLLOW
@FORMAT
@click.pass_obj
def preflight(args: tuple[str, ...], /, **typed_options: Any) -> None:
    """Submit a job that checks nodes and their GPUs, and trains nothing.

    For example: sbatchgen preflight --profile msu --nodes 4 --follow. The exit status is 0 if the nodes are
    ready; otherwise the log names the bad nodes. With --preflight true, each JOB checks its nodes before its
    training.
    """
    from sbatchgen.jobs.inputs.search import bundled

    submit_options = {name: typed_options.pop(name) for name in ("yes", "dry_run", "follow", "form")}
    typed_options |= {
        name: value for name, value in _PREFLIGHT_OPTIONS.items() if typed_options.get(name) is None
    }
    # A job must have a trainer. The template of preflight does not start it.
    typed_options["trainer"] = str(bundled("code") / "training/preflight.py")
    submit_reviewed(submission_of("ddp", args, typed_options), **submit_options)


def _refuse_unknown_runs(runs: Sequence[str]) -> None:
    """Raise CommandLineError if the index has no run with one of these names."""
    from sbatchgen.cli.runs import find_point, open_index

    for name in runs:
        find_point(open_index(), name, in_doubt="ask")  # raises for an unknown name


def submit_reviewed(
    *submissions: Submission,
    yes: bool,
    dry_run: bool = False,
    reviewed: tuple[str, ...] = (),
    follow: bool = False,
    after: tuple[str, ...] = (),
    keep_env: bool = False,
    again: bool = True,
    form: str = "text",
) -> None:
    """Show the reviews of submissions, ask once, and submit all in this order.

    The options are those of `submit`. Raises like `show_and_confirm` and `submit_to_slurm`.
    """
    from sbatchgen.jobs.review.screen import in_short
    from sbatchgen.jobs.submit import sbatch, twin

    _refuse_several(submissions, follow=follow)
    if dry_run:  # a command that submits finds the runs in `_dependency`
        _refuse_unknown_runs(after)
    reviews = [submission.review for submission in submissions]
    shows_digest = bool(reviewed) or not yes or form == "json"
    if shows_digest:
        reviews = [review_of(submission, after=after, keep_env=keep_env) for submission in submissions]
    extra_findings = click.get_current_context().meta.get(EXTRA_FINDINGS, ())
    reviews[0] = dataclasses.replace(reviews[0], findings=(*extra_findings, *reviews[0].findings))
    exit_with_json_errors(form, reviews)
    summary = "; ".join(map(in_short, reviews))
    if not show_and_confirm(reviews, summary, yes=yes, dry_run=dry_run, reviewed=reviewed):
        for submission in submissions:
            sbatch.refuse_past_budget(submission, os.environ)
        put_submitted(form, [], reviews)
        return
    index = sbatch.open_index(os.environ, note)
    dependencies = [_dependency(submission, index, after) if after else "" for submission in submissions]
    if submissions[0].local:
        from sbatchgen.jobs.submit import local

        sys.exit(local.run_locally(submissions[0], os.environ, index=index, note=note, show=put_log))
    submission_began = time.time()
    with twin.refuse_twins(() if again or after else submissions, index, os.environ):
        submitted = _submit_all(submissions, index, dependencies, reviews, form, keep_env=keep_env)
    put_submitted(form, submitted, reviews)
    if follow and index:
        from sbatchgen.cli.run_logs import follow_run

        last_record = submitted[-1].record
        since = min(submission_began, last_record.submitted)  # logs of earlier jobs of the run are not shown
        sys.exit(follow_run(index, last_record.run, since=since))


def _submit_all(
    submissions: Sequence[Submission],
    index: Index | None,
    dependencies: Sequence[str],
    reviews: Sequence[Review],
    form: str,
    *,
    keep_env: bool,
) -> list[SubmittedRun]:
    """Submit jobs in this order, each with its dependency; print which jobs are submitted if one fails."""
    submitted: list[SubmittedRun] = []
    for number, submission in enumerate(submissions):
        try:
            with ids_on_stderr(form):
                submit_to_slurm(submission, index, dependencies[number], submitted, keep_env=keep_env)
        except BaseException as error:
            if len(submissions) > 1:
                _note_which_failed([submission.record.name for submission in submissions], number)
            if submitted and isinstance(error, SbatchgenError):
                put_submitted(form, submitted, reviews, refused=error)
            raise
    return submitted


def show_and_confirm(
    reviews: Sequence[Review], summary: str, *, yes: bool, dry_run: bool, reviewed: tuple[str, ...] = ()
) -> bool:
    """Show reviews, exit if a review has errors, and ask; return whether to submit.

    The question begins with the `summary` of the jobs. Raises CommandLineError if there is no terminal to
    ask, DocumentError if a job has none of the `reviewed` digests.
    """
    must_ask = not yes and not dry_run
    shows_brief = must_ask and sys.stdin.isatty() and sys.stderr.isatty()
    show_brief(reviews, sys.stderr) if shows_brief else _show_all(reviews)
    if failure := failure_of([finding for review in reviews for finding in review.findings]):
        sys.exit(failure.exit_status)
    if reviewed:
        from sbatchgen.jobs.submit.reviewed import refuse_unreviewed

        refuse_unreviewed(reviews, reviewed, os.environ)
    if must_ask and not sys.stdin.isatty():
        fix = "add --yes, or --dry-run to review only"
        trainer_args = click.get_current_context().obj or ()
        if misplaced := {"--yes", "--dry-run"}.intersection(trainer_args):
            fix = f"write {min(misplaced)} before the --: all words after it go to the trainer"
        raise CommandLineError.of("no terminal to ask", fix=fix)
    if must_ask:
        _ask(reviews, summary)
    return not dry_run


def _show_all(reviews: Sequence[Review]) -> None:
    """Print whole reviews to stderr."""
    for review in reviews:
        show_review(review, sys.stderr)


def _ask(reviews: Sequence[Review], summary: str) -> None:
    """Ask whether to submit the jobs; return if the user agrees, else raise click.Abort.

    The answer v shows the whole reviews, and the question comes again.
    """
    from sbatchgen.jobs.review.brief import question

    text = f"{visible(question(reviews, summary))} [y/N/v]"
    while True:
        answer = click.prompt(text, default="n", show_default=False, prompt_suffix=" ", err=True)
        match answer.strip().lower():
            case "y" | "yes":
                return
            case "v":
                _show_all(reviews)
            case "n" | "no":
                raise click.Abort
            case _:
                note("note: y submits, n does not, v shows the whole review")


def _note_which_failed(names: Sequence[str], failed_index: int) -> None:
    """Print which of several jobs are submitted, which job failed, and which jobs are not submitted."""
    jobs_by_outcome = {"submitted": names[:failed_index], "stopped at": [names[failed_index]]}
    jobs_by_outcome["not submitted"] = names[failed_index + 1 :]
    for outcome, jobs in jobs_by_outcome.items():
        if jobs:
            note(f"note: {outcome}: {', '.join(jobs)}")


def _refuse_several(submissions: Sequence[Submission], *, follow: bool) -> None:
    """Raise CommandLineError for several jobs that can't be submitted together."""
    if len(submissions) == 1:
        return
    if follow:
        fix = "leave --follow out; later, --follow of sbatchgen logs shows one of the jobs"
        raise CommandLineError.of("--follow takes one job", fix=fix)
    if any(submission.local for submission in submissions):
        what = "several jobs need Slurm, and this profile has none"
        raise CommandLineError.of(what, fix="submit one job at a time")
    unshared_folders = (
        submission.run_dir
        for submission in submissions
        if submission.run_dir and not submission.record.shared
    )
    for folder, job_count in Counter(unshared_folders).most_common(1):
        if job_count > 1:
            what = f"two of the jobs have the run folder {folder}"
            raise CommandLineError.of(what, fix="give each job a name of its own")


def exit_with_json_errors(form: str, reviews: Sequence[Review]) -> None:
    """Print the JSON document with the reviews and exit, if the form is JSON and a review has errors."""
    failure = failure_of([finding for review in reviews for finding in review.findings])
    if failure and form == "json":
        put_submitted(form, [], reviews)
        sys.exit(failure.exit_status)


def ids_on_stderr(form: str) -> contextlib.AbstractContextManager[object]:
    """Return a context that sends the printed ids of jobs to stderr, if stdout is for a JSON document."""
    return contextlib.redirect_stdout(sys.stderr if form == "json" else sys.stdout)


def put_submitted(
    form: str,
    submitted: Sequence[SubmittedRun],
    reviews: Sequence[Review],
    *,
    refused: SbatchgenError | None = None,
) -> None:
    """Print the submitted jobs as JSON, if that is the form.

    `refused` is the error that kept the other jobs from being submitted. The document holds it too.
    """
    if form == "json":
        from sbatchgen.jobs.outputs.submitted import submit_output

        output = submit_output(submitted, reviews, os.environ)
        put_json(output, refused=refused or output["findings"])


def _dependency(submission: Submission, index: Index | None, after: tuple[str, ...]) -> str:
    """Return the value of --dependency for a job that waits until the trainings of `after` are complete."""
    from sbatchgen.cli.runs import find_point
    from sbatchgen.jobs.runs.status import run_states
    from sbatchgen.jobs.submit.submission import after_completion

    if submission.local:
        raise CommandLineError.of("--after needs Slurm, and this profile has none")
    if "dependency" in submission.option_sources:
        what = "--after and --dependency can't be combined"
        raise CommandLineError.of(what, at=submission.option_sources["dependency"].at, fix="leave one out")
    conditions = [""] * len(after)  # without an index no run is known, and the first is refused below
    if index:
        runs_and_points = [find_point(index, name, in_doubt="ask") for name in after]
        states, _ = run_states(index, os.environ, [run for run, _ in runs_and_points])
        conditions = [
            after_completion(state, point) for state, (_, point) in zip(states, runs_and_points, strict=True)
        ]
    for name, condition in zip(after, conditions, strict=True):
        if not condition:
            raise CommandLineError.of(f"run {name} has no job of Slurm to wait for", fix="sbatchgen status")
        if "?" in condition and len(after) > 1:  # sbatch takes "?" or "," between conditions, not both
            what = f"run {name} is a chain: --after can't combine it with other runs"
            raise CommandLineError.of(what, fix=f"only --after {name}")
    return ",".join(conditions)


def submit_to_slurm(
    submission: Submission,
    index: Index | None,
    dependency: str,
    submitted: list[SubmittedRun],
    *,
    keep_env: bool,
) -> None:
    """Submit the job, or all jobs of a chain, add them to `submitted`, and print their ids.

    If Slurm refuses a job of a chain, the earlier jobs stay in the queue, and a warning says how many.
    """
    from sbatchgen.jobs.slurm.queue import new_key
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.jobs.submit.submission import options_of_chain

    chain: list[SubmittedRun] = []
    typed_dependency, key = submission.option_sources.get("dependency"), new_key()
    try:
        with sbatch.reserve_run_folder(submission, os.environ, note) as (reserved, lock):
            while len(chain) < submission.jobs:
                earlier_jobs = [run.record.job for run in chain]
                # sbatch reads the first job's dependency in the script. An option overrides it for a later
                # job, which depends on the earlier jobs too.
                script_dependency = typed_dependency.value if typed_dependency and earlier_jobs else ""
                options = options_of_chain(earlier_jobs, dependency or script_dependency)
                run = sbatch.submit(
                    reserved, options, lock=lock, environment=os.environ, index=index, note=note,
                    keep_env=keep_env, key=f"{key}{len(chain):02x}" if submission.jobs > 1 else key,
                )  # fmt: skip
                chain.append(run)
    finally:
        submitted += chain
        if chain:
            show_submitted(chain, "status, logs, cancel, resume")
        if 0 < len(chain) < submission.jobs:
            what = f"{len(chain)} of {submission.jobs} jobs of the chain are submitted"
            fix = f"if they are too few: sbatchgen resume {chain[-1].record.run}, once they have ended"
            note(f"warning: {what}, and continue the training")
            note(f"  fix: {fix}")


def show_submitted(runs: Sequence[SubmittedRun], verbs: str) -> None:
    """Print the ids of submitted jobs, the messages of sbatch, and `verbs`, the commands for the run."""
    # An id is printed as `sbatch --parsable` prints it: 4711, or 4711;CLUSTER.
    ids = [f"{run.record.job};{run.record.cluster}".removesuffix(";") for run in runs]
    try:
        put("\n".join(ids))
    except OSError:  # stdout takes no more text, and the user must still learn the ids
        note(f"note: job {', '.join(ids)} is submitted")
        raise
    finally:
        note_lines(filter(None, "\n".join(run.accepted.messages for run in runs).split("\n")))
        note(runs[-1].note_on_run(verbs))
