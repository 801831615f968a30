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
    review_of,
    snapshot_of,
    submission_of,
)
from sbatchgen.cli.output import (
    BUDGET,
    FORMAT,
    YES,
    completed_runs,
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

DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Review what this very command would submit, and stop."
)

FOLLOW = click.option(
    "--follow", is_flag=True, help="Wait for the job and show its log. Ctrl-C leaves it alone."
)
# The key in the `meta` of a context, under which a command that calls `submit` leaves its own findings.
EXTRA_FINDINGS = "sbatchgen.found"
REVIEWED = click.option(
    "--reviewed",
    metavar="DIGEST",
    multiple=True,
    help="Submit only if the job's digest is DIGEST, as the review shows it.",
)
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
@click.option("--again", is_flag=True, help="Submit it although the same job waits or runs already.")
@REVIEWED
@FOLLOW
@click.option("--fit", is_flag=True, help="Submit the first row of `when --fit`.")
@NEEDS
@click.option(
    "--after",
    metavar="RUN",
    multiple=True,
    shell_complete=completed_runs,
    help="Start only when this run, or point as lr/0, has completed.",
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

    JOB may also be a finished script; options of sbatch, as --time, go with it and count before its own.
    Exactly the bytes that were shown are submitted, and nothing of the job runs here. Several jobs get the
    same options, and none is submitted if one has errors.
    """
    submit_options = {
        name: typed_options.pop(name)
        for name in ("yes", "dry_run", "again", "reviewed", "follow", "after", "form")
    }
    fit, needs = typed_options.pop("fit"), typed_options.pop("needs")
    if needs and not fit:
        raise CommandLineError.of(
            "--needs is about --fit", at="--needs", fix="add --fit, or leave --needs out"
        )
    if fit:
        typed_options |= _options_of_best_start(job, args, typed_options, needs)
    snapshot = snapshot_of(typed_options)
    options = {"keep_env": keep_sbatch_env, "ask_squeue": not submit_options["after"]}
    submissions = [submission_of(name, args, typed_options, snapshot=snapshot, **options) for name in job]
    submit_reviewed(*submissions, keep_env=keep_sbatch_env, **submit_options)


def _options_of_best_start(
    jobs: tuple[str, ...], args: tuple[str, ...], typed_options: dict[str, Any], needs: str | None
) -> dict[str, str]:
    """Return the options of the first row of `when --fit`, by name, and print a note about the row."""
    from sbatchgen.check.lint.source import is_script
    from sbatchgen.cli.gpus import find_and_record_starts

    if len(jobs) > 1 or is_script(jobs[0]):
        raise CommandLineError.of(
            "--fit is for one job, and no script", fix="name one job, or leave --fit out"
        )
    job_options = {name: value for name, value in typed_options.items() if not name.startswith("snapshot")}
    rows = find_and_record_starts(jobs[0], args, job_options, needs, fit=True).rows
    best = next((row for row in rows if row.argv), None)  # a row without a command is about a job that waits
    if best is None:
        raise CommandLineError.of("no start is known for the job", at="--fit", fix="leave --fit out")
    note(f"note: {best.kind}: {best.says}")
    names = [name[2:].replace("-", "_") for name in best.options[::2]]  # options and values take turns
    return dict(zip(names, best.options[1::2], strict=True))


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
    typed_options["trainer"] = str(bundled("code") / "training/preflight.py")  # required, but not started
    submit_reviewed(submission_of("ddp", args, typed_options), **submit_options)


def _refuse_unknown_runs(runs: Sequence[str]) -> None:
    """Raise CommandLineError if a run is not known."""
    from sbatchgen.cli.runs import find_point, open_index

    for name in runs:
        find_point(open_index(), name, changes=True)


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
    _refuse_unknown_runs(after if dry_run else ())
    reviews = [submission.review for submission in submissions]
    if reviewed or not yes or form == "json":  # otherwise no user sees the digest
        reviews = [review_of(submission, after=after, keep_env=keep_env) for submission in submissions]
    extra_findings = click.get_current_context().meta.get(EXTRA_FINDINGS, ())
    reviews[0] = dataclasses.replace(reviews[0], findings=(*extra_findings, *reviews[0].findings))
    exit_with_json_errors(form, reviews)
    if not show_and_confirm(
        reviews, "; ".join(map(in_short, reviews)), yes=yes, dry_run=dry_run, reviewed=reviewed
    ):
        for submission in submissions:
            sbatch.refuse_past_budget(submission, os.environ)
        put_submitted(form, [], reviews)
        return
    index = sbatch.open_index(os.environ, note)
    dependencies = [_dependency(submission, index, after) if after else "" for submission in submissions]
    if submissions[0].local:
        from sbatchgen.jobs.submit import local

        sys.exit(local.run_locally(submissions[0], os.environ, index=index, note=note, show=put_log))
    began = time.time()
    done: list[SubmittedRun] = []
    with twin.refuse_twins(() if again or after else submissions, index, os.environ):
        for number, submission in enumerate(submissions):
            try:
                with ids_on_stderr(form):
                    submit_to_slurm(submission, index, dependencies[number], done, keep_env=keep_env)
            except BaseException as error:
                if len(submissions) > 1:
                    _note_which_failed([submission.record.name for submission in submissions], number)
                if done and isinstance(error, SbatchgenError):
                    put_submitted(form, done, reviews, refused=error)
                raise
    put_submitted(form, done, reviews)
    if follow and index:
        from sbatchgen.cli.run_logs import follow_run

        sys.exit(follow_run(index, done[-1].record.run, since=min(began, done[-1].record.submitted)))


def show_and_confirm(
    reviews: Sequence[Review], what: str, *, yes: bool, dry_run: bool, reviewed: tuple[str, ...] = ()
) -> bool:
    """Show reviews, exit if a review has errors, and ask; return whether to submit.

    Raises CommandLineError: there is no terminal to ask. Raises DocumentError: a job differs from the
    `reviewed` digests.
    """
    asks = not yes and not dry_run
    in_brief = asks and sys.stdin.isatty() and sys.stderr.isatty()
    show_brief(reviews, sys.stderr) if in_brief else _show_all(reviews)
    if failure := failure_of([finding for review in reviews for finding in review.findings]):
        sys.exit(failure.exit_status)
    if reviewed:
        from sbatchgen.jobs.submit.reviewed import refuse_unreviewed

        refuse_unreviewed(reviews, reviewed, os.environ)
    if asks and not sys.stdin.isatty():
        fix = "add --yes, or --dry-run to review only"
        trainer_args = click.get_current_context().obj or ()
        if misplaced := {"--yes", "--dry-run"}.intersection(trainer_args):
            fix = f"write {min(misplaced)} before the --, after which all is the trainer's"
        raise CommandLineError.of("no terminal to ask", fix=fix)
    if asks:
        _ask(reviews, what)
    return not dry_run


def _show_all(reviews: Sequence[Review]) -> None:
    """Print whole reviews to stderr."""
    for review in reviews:
        show_review(review, sys.stderr)


def _ask(reviews: Sequence[Review], what: str) -> None:
    """Ask whether to submit; return if the user agrees, else raise click.Abort.

    `what` describes the jobs. The answer v shows the whole reviews.
    """
    from sbatchgen.jobs.review.brief import question

    text = f"{visible(question(reviews, what))} [y/N/v]"
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


def _note_which_failed(names: Sequence[str], failed: int) -> None:
    """Print which of several jobs are submitted, which job failed (by its index), and which are left."""
    before, after = names[:failed], names[failed + 1 :]
    for outcome, jobs in (("submitted", before), ("stopped at", [names[failed]]), ("not submitted", after)):
        if jobs:
            note(f"note: {outcome}: {', '.join(jobs)}")


def _refuse_several(submissions: Sequence[Submission], *, follow: bool) -> None:
    """Raise CommandLineError for several jobs that can't be submitted together."""
    if len(submissions) == 1:
        return
    if follow:
        raise CommandLineError.of(
            "--follow is for one job",
            fix="leave --follow out; later, --follow of sbatchgen logs shows one of them",
        )
    if any(submission.local for submission in submissions):
        what = "several jobs need Slurm, and this profile has none"
        raise CommandLineError.of(what, fix="submit one by one")
    not_shared = (
        submission.run_dir
        for submission in submissions
        if submission.run_dir and not submission.record.shared
    )
    for folder, jobs in Counter(not_shared).most_common(1):
        if jobs > 1:
            what = f"two of the jobs have the run folder {folder}"
            raise CommandLineError.of(what, fix="name them differently")


def exit_with_json_errors(form: str, reviews: Sequence[Review]) -> None:
    """Print the JSON document and exit, if the form is JSON and a review has errors."""
    failure = failure_of([finding for review in reviews for finding in review.findings])
    if failure and form == "json":
        put_submitted(form, [], reviews)
        sys.exit(failure.exit_status)


def ids_on_stderr(form: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which stdout is stderr if the form is JSON: then stdout is for the document."""
    return contextlib.redirect_stdout(sys.stderr if form == "json" else sys.stdout)


def put_submitted(
    form: str,
    done: Sequence[SubmittedRun],
    reviews: Sequence[Review],
    *,
    refused: SbatchgenError | None = None,
) -> None:
    """Print the submitted jobs, and the error that `refused` the rest, if the form is JSON."""
    if form == "json":
        from sbatchgen.jobs.outputs.submitted import submit_output

        output = submit_output(done, reviews, os.environ)
        put_json(output, refused=refused or output["findings"])


def _dependency(submission: Submission, index: Index | None, after: tuple[str, ...]) -> str:
    """Return the value of --dependency for a job that waits until the trainings of runs are complete."""
    from sbatchgen.cli.runs import find_point
    from sbatchgen.jobs.runs.status import run_states
    from sbatchgen.jobs.submit.submission import after_completion

    if submission.local:
        raise CommandLineError.of("--after needs Slurm, and this profile has none")
    if "dependency" in submission.option_sources:
        what = "--after and --dependency exclude each other"
        raise CommandLineError.of(what, at=submission.option_sources["dependency"].at, fix="leave one out")
    conditions = [""] * len(after)
    if index:
        named = [find_point(index, name, changes=True) for name in after]
        states, _ = run_states(index, os.environ, [run for run, _ in named])
        points = [point for _, point in named]
        conditions = [after_completion(state, point) for state, point in zip(states, points, strict=True)]
    for name, condition in zip(after, conditions, strict=True):
        if not condition:
            raise CommandLineError.of(f"run {name} has no job of Slurm to wait for", fix="sbatchgen status")
        if "?" in condition and len(after) > 1:  # sbatch takes "?" or "," between conditions, not both
            what = f"run {name} is a chain: --after can't combine it with other runs"
            raise CommandLineError.of(what, fix=f"--after {name} alone")
    return ",".join(conditions)


def submit_to_slurm(
    submission: Submission,
    index: Index | None,
    dependency: str,
    submitted: list[SubmittedRun],
    *,
    keep_env: bool,
) -> None:
    """Submit the job, or all jobs of a chain, and add them to `submitted`.

    If Slurm refuses a job of a chain, the earlier jobs stay in the queue, and are reported.
    """
    from sbatchgen.jobs.slurm.queue import new_key
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.jobs.submit.submission import options_of_chain

    done: list[SubmittedRun] = []
    typed_dependency, key = submission.option_sources.get("dependency"), new_key()
    try:
        with sbatch.reserve_run_folder(submission, os.environ, note) as (reserved, lock):
            while len(done) < submission.jobs:
                earlier_jobs = [run.record.job for run in done]
                # The first job has its dependency in the script; later jobs depend on the earlier jobs too.
                in_script = typed_dependency.value if typed_dependency and earlier_jobs else ""
                options = options_of_chain(earlier_jobs, dependency or in_script)
                run = sbatch.submit(
                    reserved, options, lock=lock, environment=os.environ, index=index, note=note,
                    keep_env=keep_env, key=f"{key}{len(done):02x}" if submission.jobs > 1 else key,
                )  # fmt: skip
                done.append(run)
    finally:
        submitted += done
        if done:
            show_submitted(done, "status, logs, cancel, resume")
        if 0 < len(done) < submission.jobs:
            what = f"{len(done)} of {submission.jobs} jobs of the chain are submitted"
            fix = f"if they are too few: sbatchgen resume {done[-1].record.run}, once they have ended"
            note(f"warning: {what}, and continue the training")
            note(f"  fix: {fix}")


def show_submitted(done: Sequence[SubmittedRun], verbs: str) -> None:
    """Print the ids of the jobs, the messages of sbatch, and the commands for the run."""
    jobs = [f"{run.record.job};{run.record.cluster}".removesuffix(";") for run in done]
    try:
        put("\n".join(jobs))
    except OSError:
        note(f"note: job {', '.join(jobs)} is submitted")
        raise
    finally:
        note_lines(filter(None, "\n".join(run.accepted.messages for run in done).split("\n")))
        note(done[-1].note_on_run(verbs))
