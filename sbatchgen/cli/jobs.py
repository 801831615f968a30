"""The commands render, review, explain and plan.

Other commands that take a JOB get their class, the request, the submission and the review of a job from here.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sbatchgen.base.errors import LIMIT_STATUS, CommandLineError, SlurmError
from sbatchgen.base.quoting import visible, word
from sbatchgen.cli.output import (
    BRIEF,
    FORMAT,
    SEE,
    current_folder,
    failure_of,
    note,
    put,
    put_json,
    report,
    show_review,
)
from sbatchgen.jobs.inputs import completion

if TYPE_CHECKING:
    from sbatchgen.check.script.script import JobScript
    from sbatchgen.jobs.inputs.layers import Layer
    from sbatchgen.jobs.resolved.request import Request
    from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
    from sbatchgen.jobs.review.review import Review
    from sbatchgen.jobs.slurm.refusal import Answer
    from sbatchgen.jobs.submit.submission import Submission
    from sbatchgen.lab.plan.dry_run import DryRunInputs


FILES_ELSEWHERE = "SBATCHGEN_ELSEWHERE"  # the variable that is set if the job's files are on another machine
HELP_ALL = "sbatchgen.all"  # key in the `meta` of a click context: its help shows all options of a job

NEEDS = click.option(
    "--needs",
    metavar="TIME",
    help="Time that the training still needs, such as 30h. [default: as its earlier jobs show]",
)
SNAPSHOT = click.option(
    "--snapshot", is_flag=True, help="Run a copy of the files tracked by git, as they are now."
)
SNAPSHOT_FILE = click.option(
    "--snapshot-file",
    metavar="PATH",
    multiple=True,
    type=click.Path(),
    help="Also copy this file or folder that git does not track.",
)


class JobCommand(click.Command):
    """A command with every option of a job, and with an argument JOB if its usage starts with JOB.

    The options are made when the command is called, because making them takes time.
    """

    def __init__(self, *args: Any, usage: str = "JOB [OPTIONS] [-- TRAINER ARGS]", **more: Any) -> None:
        super().__init__(*args, **more)
        self.usage = usage

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return JOB, the command's own options, and the options of a job."""
        from sbatchgen.jobs.inputs.flags import parameters

        *own_options, help_option = super().get_params(ctx)
        as_help: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        help_all = click.Option(
            ["--help-all"], callback=_print_full_help, help="Show all options.", **as_help
        )
        options = [*own_options, *parameters(), help_all, help_option]
        metavar = self.usage.split()[0]
        if not metavar.startswith("JOB"):
            return options
        word_count = -1 if metavar == "JOB..." else 1  # -1: any number
        job = click.Argument(
            ["job"], metavar=metavar, nargs=word_count, required=True, shell_complete=completion.jobs
        )
        return [job, *options]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own shape
        """Return the usage as it was given, because click would put the options before JOB."""
        return [self.usage]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, and those of a job by group: all of them only with --help-all."""
        from sbatchgen.jobs.inputs.flags import GROUPS, JobOption

        rows_by_group: dict[str, list[tuple[str, str]]] = {group: [] for group in ("Options", *GROUPS)}
        for option in self.get_params(ctx):
            job_option = option if isinstance(option, JobOption) else None
            is_shown = job_option is None or job_option.common or ctx.meta.get(HELP_ALL)
            if is_shown and isinstance(option, click.Option) and (row := option.get_help_record(ctx)):
                rows_by_group[job_option.group if job_option else "Options"].append(row)
        for group, rows in rows_by_group.items():
            with formatter.section(group):
                formatter.write_dl(rows)


def _print_full_help(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's shape
    """Print the help with all options, and exit. click calls this function for --help-all."""
    if value:
        ctx.meta[HELP_ALL] = True
        put(ctx.get_help())
        ctx.exit()


def request_of(job: str, args: tuple[str, ...], job_options: dict[str, Any]) -> Request:
    """Return the request of a command line with a JOB, the arguments of its trainer, and options.

    If the job names no partition, the request gets a partition that the job fits.
    """
    from sbatchgen.jobs.judge.job_check import check
    from sbatchgen.jobs.resolved.request import ONLY_PROFILE, read_request

    refuse_wrong_kind(job, "job")
    request = read_request(
        job, args, job_options, environment=os.environ, folder=current_folder(),
        check=check, read_trainer=_read_trainer,
    )  # fmt: skip
    # The profile was not typed, so the user should see which profile is used.
    if request.profile_by.where == ONLY_PROFILE:
        note(f"profile: {request.profile_file.stem}, {ONLY_PROFILE} ({request.profile_file})")
    return request


def _read_trainer(resolved: ResolvedJob) -> Layer | None:
    """Return the settings that follow from the source of the job's trainer; None without such settings."""
    from sbatchgen.jobs.judge.trainer import layer_without_restarts

    return layer_without_restarts(resolved, job_folder(), os.environ)


def job_folder() -> Path | None:
    """Return the current folder, which has the job's files; None if they are on another machine."""
    return None if os.environ.get(FILES_ELSEWHERE) else current_folder()


def submission_of(
    name: str,
    args: tuple[str, ...],
    job_options: dict[str, Any],
    *,
    keep_env: bool = False,
    snapshot: tuple[str, ...] | None = None,
    review_only: bool = False,
    ask_squeue: bool = False,
) -> Submission:
    """Return the submission of a job or of a finished script.

    `keep_env` is for a script, see `submission_of_script`. The arguments after it are for a job, see
    `submission_of_job`.
    """
    from sbatchgen.check.lint.source import is_script

    refuse_wrong_kind(name, "job")
    if is_script(name):
        from sbatchgen.jobs.submit.finished import submission_of_script

        if snapshot is not None:
            what = f"{name} is a finished script: it can't run a snapshot"
            raise CommandLineError.of(what, fix="leave --snapshot out")
        return submission_of_script(
            Path(name), job_options, args, os.environ, current_folder(), keep_env=keep_env
        )
    from sbatchgen.jobs.submit.rendered import submission_of_job

    request = request_of(name, args, job_options)
    return submission_of_job(
        request, os.environ, job_folder(), snapshot=snapshot, review_only=review_only, ask_squeue=ask_squeue
    )


def review_of(submission: Submission, *, after: tuple[str, ...] = (), keep_env: bool = False) -> Review:
    """Return the review of a submission with its digest, as `review`, `submit` and `sweep` show it.

    The review has no digest if the job's files are on another machine: the digest covers these files.
    """
    from sbatchgen.jobs.submit.reviewed import with_digest

    if os.environ.get(FILES_ELSEWHERE):
        return submission.review
    return with_digest(submission, os.environ, after=after, keep_env=keep_env)


def pop_snapshot_files(job_options: dict[str, Any]) -> tuple[str, ...] | None:
    """Remove --snapshot and --snapshot-file from the options; return the files of --snapshot-file.

    Return None if neither option was typed, because the job then runs no snapshot.
    """
    files, has_flag = job_options.pop("snapshot_file"), job_options.pop("snapshot")
    if not has_flag and not files:
        return None
    job_options["snapshot_dir"] = None  # `resume` puts the earlier job's snapshot here; a new one replaces it
    return tuple(files)


def refuse_wrong_kind(name: str, wanted: str) -> None:
    """Raise CommandLineError if `name` is a file of another kind than `wanted`, "job" or "script"."""
    from sbatchgen.jobs.modes import MODES

    if name not in MODES:
        from sbatchgen.base.wrong_file import wrong_kind

        context = click.get_current_context()
        names = context.params.get("job", ())  # a tuple for commands with several jobs
        typed_modes = [mode for mode in names if mode in MODES] if isinstance(names, tuple) else []
        example_mode = typed_modes[:1]  # the fix shows a mode that the user typed, if there is any
        if problem := wrong_kind(name, wanted, context.info_name or "", *example_mode):
            raise CommandLineError([problem])


@click.command(cls=JobCommand)
@click.option(
    "--write", metavar="FILE", type=click.Path(dir_okay=False), help="Write to FILE instead of stdout."
)
@click.pass_obj
def render(args: tuple[str, ...], /, job: str, write: str | None, **job_options: Any) -> None:
    """Print the script, for example to give it to sbatch by hand.

    Findings go to stderr. The command needs neither Slurm nor a network.
    """
    from sbatchgen.base import files
    from sbatchgen.cli.output import print_bytes
    from sbatchgen.jobs.judge.job_check import check
    from sbatchgen.jobs.render.render import render_request

    request = request_of(job, args, job_options)
    report(check(request.resolved))
    script = render_request(request).encode()
    if write is None:
        print_bytes(script)  # a file or a pipe gets the bytes that `submit` would send
    else:
        files.write(Path(write), script)


@click.command(cls=JobCommand)
@click.option("--test-only", is_flag=True, help="Also ask Slurm (sbatch --test-only). This uses up a job id.")
@click.option("--whole", is_flag=True, help="Show the whole script, not only the lines of this job.")
@SNAPSHOT
@SNAPSHOT_FILE
@FORMAT
@BRIEF
@click.pass_obj
def review(args: tuple[str, ...], /, job: str, *, test_only: bool, form: str, **job_options: Any) -> None:
    """Show resources, cost, findings and the script.

    submit shows the same before it asks. JOB may also be a finished script. The command submits nothing and
    runs nothing of the job. sbatchgen plan runs the script in a sandbox.
    """
    from sbatchgen.jobs.starts.rough import ask_slurm

    whole, brief = job_options.pop("whole"), job_options.pop("brief")
    snapshot = pop_snapshot_files(job_options)
    submission = submission_of(job, args, job_options, snapshot=snapshot, review_only=True)
    job_review = review_of(submission)
    failure = failure_of(job_review.findings)
    if test_only and submission.local:
        what = "--test-only asks Slurm, and this job runs without Slurm"
        raise CommandLineError.of(what, fix="leave --test-only out")
    if test_only and failure is None:
        answer = ask_slurm(
            submission.script, submission.name, submission.options, submission.option_sources, os.environ
        )
        job_review = dataclasses.replace(job_review, slurm=answer)
        _record_start(submission, answer)
    if brief:
        job_review = dataclasses.replace(job_review, script=None, parts=(), own_lines=None)
    show_review(job_review, sys.stdout, form, whole=whole)
    if failure is None and job_review.slurm and not job_review.slurm.accepted:
        failure = SlurmError
    sys.exit(failure.exit_status if failure else 0)


def _record_start(submission: Submission, answer: Answer) -> None:
    """Record the start that Slurm expects, and print how often earlier expected starts were right."""
    from datetime import datetime

    from sbatchgen.jobs.runs import shown_starts

    if answer.start:
        start = datetime.fromisoformat(answer.start).timestamp()
        kind = "bound"  # the start that sbatch --test-only names is a rough bound
        if accuracy := shown_starts.comparison(os.environ, kind):
            note(f"note: {accuracy}")
        shown_starts.keep_forecasts(os.environ, [(submission.record.command, kind, start)])


@click.command(cls=JobCommand)
@click.option("--lines", is_flag=True, help="Show the template and block of each line of the script.")
@FORMAT
@click.pass_obj
def explain(args: tuple[str, ...], /, job: str, *, lines: bool, form: str, **job_options: Any) -> None:
    """Show where every value comes from.

    For each option, the command shows the value, the place where it was set, and the values that it overrode.
    review shows only the values that you may not expect.
    """
    from sbatchgen.jobs.judge.job_check import check
    from sbatchgen.jobs.render.trace import lines_of
    from sbatchgen.jobs.resolved.origins import settings
    from sbatchgen.jobs.review import screen

    request = request_of(job, args, job_options)
    findings = check(request.resolved)
    values = settings(request)
    shows_lines = lines and not failure_of(findings)
    script, line_origins = lines_of(request) if shows_lines else (None, [])
    if form == "json":
        from sbatchgen.jobs.outputs.explained import explain_output

        put_json(explain_output(values, script, line_origins), refused=findings)
    elif script is None:
        put(visible(screen.explanation(values)), nl=False)
    else:
        put(visible(screen.blame(script, line_origins, current_folder())), nl=False)
    report(findings)


@click.command(cls=JobCommand, usage="JOB... [OPTIONS] [-- ARGUMENTS]")
@click.option(
    "--var", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable of the submitting shell."
)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH[=FILE]",
    help="Act as if PATH existed, with the contents of FILE. A folder ends in /.",
)
@click.option(
    "--process", metavar="RANK", type=click.IntRange(0), help="Show this process of each step in full."
)
@click.option("--diff", is_flag=True, help="Show how the plans of two jobs differ.")
@SEE
@FORMAT
@BRIEF
@click.pass_obj
def plan(
    args: tuple[str, ...], /, job: tuple[str, ...], *, form: str, diff: bool, **job_options: Any
) -> None:
    """Run a script in a sandbox, and show every process that it would start.

    JOB may also be any script. It runs on nodes that do not exist, and stand-ins take the place of srun,
    python, modules and containers. It changes no file, reaches no network, and sees no variable of your
    shell. Exit status: 3 if sbatch refuses the script, 4 if it does not fit the cluster, 6 if the plan
    reached a limit before the script ended, else 0.
    """
    from sbatchgen.check.rules import judge
    from sbatchgen.check.rules.refusals import misfits, refusal
    from sbatchgen.lab.plan import listing
    from sbatchgen.lab.plan.planning import SANDBOX_NOTE, plan_of
    from sbatchgen.lab.started.judge_started import lint_started

    variables, files, process, see, brief = (
        job_options.pop(name) for name in ("variables", "files", "process", "see", "brief")
    )
    _refuse_wrong_count(job, diff=diff)
    scripts = [_script_to_plan(name, args, job_options, variables, files) for name in job]
    note(SANDBOX_NOTE.format(", ".join(planned.script.file for planned in scripts)))
    if not diff:
        Timer(0.02, judge.rules, (judge.STARTED,)).start()  # loads the rules while the sandbox runs
    dry_runs = [
        plan_of(script, os.environ, current_folder(), inputs, nodes=nodes, extra_folders=see)
        for script, inputs, nodes in scripts
    ]
    if diff:
        put(visible(listing.difference(*dry_runs)), nl=False)
        return
    (script, _, nodes), dry_run = scripts[0], dry_runs[0]
    refused = refusal(script)  # the finding that sbatch refuses the script, or None
    findings = [*([refused] if refused else []), *misfits(script, nodes=nodes), *lint_started(dry_run)]
    # After a limit, the script may do more than is shown.
    status = LIMIT_STATUS if dry_run.result.limit else 0
    if form == "json":
        from sbatchgen.lab.plan.plan_output import plan_output

        put_json(plan_output(dry_run, findings, refused, brief=brief), refused=findings)
        failure = failure_of(findings)
        sys.exit(failure.exit_status if failure else status)
    put(visible(listing.as_text(dry_run, refused, rank=process)))
    report(findings)
    sys.exit(status)


def _refuse_wrong_count(jobs: tuple[str, ...], *, diff: bool) -> None:
    """Raise CommandLineError unless `plan` has one job, or with --diff two jobs."""
    job_count = 2 if diff else 1
    if len(jobs) == job_count:
        return
    usage = "plan --diff takes 2 jobs" if diff else "plan takes 1 job"
    fix = "name two jobs after --diff" if diff else ""
    if len(jobs) == 2:  # two jobs without --diff: the user may have forgotten the option
        fix = f"sbatchgen plan --diff {word(jobs[0])} {word(jobs[1])}"
    raise CommandLineError.of(f"{usage}, not {len(jobs)}", fix=fix)


class _ScriptToPlan(NamedTuple):
    """A script that `plan` runs, and the inputs of its dry run."""

    script: JobScript
    inputs: DryRunInputs
    nodes: int | None  # the typed --nodes, which replaces the --nodes of a finished script


def _script_to_plan(
    job: str,
    args: tuple[str, ...],
    job_options: dict[str, Any],
    variables: tuple[str, ...],
    files: tuple[str, ...],
) -> _ScriptToPlan:
    """Return the script of a job, or a finished script, with its inputs from --var and --file."""
    from sbatchgen.check.lint.source import is_script, read_source
    from sbatchgen.lab.plan.planning import read_inputs, script_of

    if not (is_script(job) or job == "-"):
        from sbatchgen.jobs.render.render import render_request

        request = request_of(job, args, job_options)
        script = script_of(job, render_request(request), profile=request.resolved.profile)
        return _ScriptToPlan(script, read_inputs((), variables, files), None)
    from sbatchgen.jobs.inputs.flags import layer_of
    from sbatchgen.jobs.inputs.search import Places
    from sbatchgen.jobs.judge.read_settings import settings_of

    source = read_source(job)
    typed = [name for name, value in job_options.items() if value not in (None, ())]
    if unusable := [name for name in typed if name not in ("profile", "nodes")]:
        what = f"{job} is a finished script: --{unusable[0].replace('_', '-')} can't change it"
        raise CommandLineError.of(what, fix="edit the script; only --nodes and --profile go with a script")
    settings = settings_of(Places(current_folder(), os.environ), job_options.get("profile"), runs_here=True)
    known_release = "" if settings.is_release_assumed else settings.slurm
    script = script_of(source.file, source.text, profile=settings.profile, slurm=known_release)
    typed_nodes = {"nodes": job_options["nodes"]} if job_options["nodes"] else {}
    nodes = layer_of((), typed_nodes).values.get("options.nodes")
    return _ScriptToPlan(script, read_inputs(args, variables, files), nodes)
