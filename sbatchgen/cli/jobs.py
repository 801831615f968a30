"""The commands render, review, explain and plan, and the class of all commands that take a JOB."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

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
HELP_ALL = "sbatchgen.all"  # key in the `meta` of a context whose help shows all options

NEEDS = click.option(
    "--needs", metavar="TIME", help="Time that the training still needs, such as 30h; default: as measured."
)
SNAPSHOT = click.option(
    "--snapshot", is_flag=True, help="Run a copy of the files tracked by git, as they are now."
)
SNAPSHOT_FILE = click.option(
    "--snapshot-file",
    metavar="PATH",
    multiple=True,
    type=click.Path(),
    help="Copy this file or folder too, which git does not track.",
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
        flag: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        help_all = click.Option(["--help-all"], callback=_help_all, help="Show all options.", **flag)
        options = [*own_options, *parameters(), help_all, help_option]
        metavar = self.usage.split()[0]
        if not metavar.startswith("JOB"):
            return options
        count = -1 if metavar == "JOB..." else 1  # -1: any number
        job = click.Argument(
            ["job"], metavar=metavar, nargs=count, required=True, shell_complete=completion.jobs
        )
        return [job, *options]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own shape
        """Return the usage, JOB first."""
        return [self.usage]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the job's common options by group, or all with --help-all."""
        from sbatchgen.jobs.inputs.flags import GROUPS, JobOption

        shown: dict[str, list[tuple[str, str]]] = {group: [] for group in ("Options", *GROUPS)}
        for option in self.get_params(ctx):
            job_option = option if isinstance(option, JobOption) else None
            is_shown = job_option is None or job_option.common or ctx.meta.get(HELP_ALL)
            if is_shown and isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                shown[job_option.group if job_option else "Options"].append(record)
        for group, records in shown.items():
            with formatter.section(group):
                formatter.write_dl(records)


def _help_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's shape
    """Print the help with all options, and exit."""
    if value:
        ctx.meta[HELP_ALL] = True
        put(ctx.get_help())
        ctx.exit()


def request_of(job: str, args: tuple[str, ...], job_options: dict[str, Any]) -> Request:
    """Return the request of a command line. If it names no partition, one that the job fits is chosen."""
    from sbatchgen.jobs.judge.job_check import check
    from sbatchgen.jobs.resolved.request import ONLY_PROFILE, read_request

    refuse_wrong_kind(job, "job")
    request = read_request(
        job,
        args,
        job_options,
        environment=os.environ,
        folder=current_folder(),
        check=check,
        read_trainer=_read_trainer,
    )
    if request.profile_by.where == ONLY_PROFILE:
        note(f"profile: {request.profile_file.stem}, {ONLY_PROFILE} ({request.profile_file})")
    return request


def _read_trainer(resolved: ResolvedJob) -> Layer | None:
    """Return the settings that follow from the text of the job's trainer; None without any."""
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
    **how: bool,
) -> Submission:
    """Return the submission of a job or of a finished script; `how`: see `submission_of_job`."""
    from sbatchgen.check.lint.source import is_script

    refuse_wrong_kind(name, "job")
    if not is_script(name):
        from sbatchgen.jobs.submit.rendered import submission_of_job

        return submission_of_job(
            request_of(name, args, job_options), os.environ, job_folder(), snapshot=snapshot, **how
        )
    if snapshot is not None:
        what = f"{name} is a finished script: it can't run a snapshot"
        raise CommandLineError.of(what, fix="leave --snapshot out")
    from sbatchgen.jobs.submit.finished import submission_of_script

    return submission_of_script(
        Path(name), job_options, args, os.environ, current_folder(), keep_env=keep_env
    )


def review_of(submission: Submission, *, after: tuple[str, ...] = (), keep_env: bool = False) -> Review:
    """Return the review of a submission with its digest, as `review`, `submit` and `sweep` show it.

    It has no digest if the files of the job are on another machine.
    """
    from sbatchgen.jobs.submit.reviewed import with_digest

    if os.environ.get(FILES_ELSEWHERE):
        return submission.review
    return with_digest(submission, os.environ, after=after, keep_env=keep_env)


def snapshot_of(job_options: dict[str, Any]) -> tuple[str, ...] | None:
    """Take the snapshot options out of the options, and return the files for it that git does not track.

    The result is None without a snapshot option.
    """
    files, has_flag = job_options.pop("snapshot_file"), job_options.pop("snapshot")
    if not has_flag and not files:
        return None
    job_options["snapshot_dir"] = None  # a resumed job has the snapshot of the earlier job here
    return tuple(files)


def refuse_wrong_kind(name: str, wanted: str) -> None:
    """Raise CommandLineError for a file that belongs to another command; `wanted` is "job", for example."""
    from sbatchgen.jobs.modes import MODES

    if name not in MODES:
        from sbatchgen.base.wrong_file import wrong_kind

        context = click.get_current_context()
        names = context.params.get("job", ())  # a tuple for commands with several jobs
        typed_modes = [mode for mode in names if mode in MODES] if isinstance(names, tuple) else []
        if problem := wrong_kind(name, wanted, context.info_name or "", *typed_modes[:1]):
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
@click.option("--test-only", is_flag=True, help="Ask Slurm too (sbatch --test-only); uses up a job id.")
@click.option("--whole", is_flag=True, help="Show the whole script, not only what this job decides.")
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
    snapshot = snapshot_of(job_options)
    submission = submission_of(job, args, job_options, snapshot=snapshot, review_only=True)
    shown = review_of(submission)
    failure = failure_of(shown.findings)
    if test_only and submission.local:
        raise CommandLineError.of("--test-only asks Slurm: this job runs without Slurm", fix="leave it out")
    if test_only and failure is None:
        answer = ask_slurm(
            submission.script, submission.name, submission.options, submission.option_sources, os.environ
        )
        shown = dataclasses.replace(shown, slurm=answer)
        _record_start(submission, answer)
    if brief:
        shown = dataclasses.replace(shown, script=None, parts=(), own_lines=None)
    show_review(shown, sys.stdout, form, whole=whole)
    if failure is None and shown.slurm and not shown.slurm.accepted:
        failure = SlurmError
    sys.exit(failure.exit_status if failure else 0)


def _record_start(submission: Submission, answer: Answer) -> None:
    """Record the start that Slurm expects, and print how accurate such starts have been so far."""
    from datetime import datetime

    from sbatchgen.jobs.runs import shown_starts

    if answer.start:
        start = datetime.fromisoformat(answer.start).timestamp()
        if so_far := shown_starts.comparison(os.environ, "bound"):
            note(f"note: {so_far}")
        shown_starts.keep_forecasts(os.environ, [(submission.record.command, "bound", start)])


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
    script, places = lines_of(request) if shows_lines else (None, [])
    if form == "json":
        from sbatchgen.jobs.outputs.explained import explain_output

        put_json(explain_output(values, script, places), refused=findings)
    else:
        text = (
            screen.explanation(values) if script is None else screen.blame(script, places, current_folder())
        )
        put(visible(text), nl=False)
    report(findings)


@click.command(cls=JobCommand, usage="JOB... [OPTIONS] [-- ARGUMENTS]")
@click.option(
    "--var", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of the submitting shell."
)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH[=FILE]",
    help="A file that counts as there; a folder ends in /.",
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
    scripts = [_script_of(name, args, job_options, variables, files) for name in job]
    note(SANDBOX_NOTE.format(", ".join(script.file for script, *_ in scripts)))
    if not diff:
        Timer(0.02, judge.rules, (judge.STARTED,)).start()  # loads the rules while the sandbox runs
    plans = [
        plan_of(script, os.environ, current_folder(), inputs, nodes=nodes, extra_folders=see)
        for script, inputs, nodes in scripts
    ]
    if diff:
        put(visible(listing.difference(*plans)), nl=False)
        return
    (script, _, nodes), dry_run = scripts[0], plans[0]
    refused = refusal(script)
    findings = [*((refused,) if refused else ()), *misfits(script, nodes=nodes), *lint_started(dry_run)]
    if form == "json":
        from sbatchgen.lab.plan.plan_output import plan_output

        put_json(plan_output(dry_run, findings, refused, brief=brief), refused=findings)
        failure = failure_of(findings)
        sys.exit(failure.exit_status if failure else LIMIT_STATUS * bool(dry_run.result.limit))
    put(visible(listing.as_text(dry_run, refused, process=process)))
    report(findings)
    if dry_run.result.limit:  # the script may do more than the plan shows
        sys.exit(LIMIT_STATUS)


def _refuse_wrong_count(jobs: tuple[str, ...], *, diff: bool) -> None:
    """Raise CommandLineError unless `plan` has one job, or with --diff two jobs."""
    if len(jobs) == 1 + diff:
        return
    wanted = "plan --diff takes 2 jobs" if diff else "plan takes 1 job"
    fix = "name two after --diff" if diff else ""
    if len(jobs) == 2:  # two jobs without --diff: the user may have forgotten the option
        fix = f"sbatchgen plan --diff {word(jobs[0])} {word(jobs[1])}"
    raise CommandLineError.of(f"{wanted}, not {len(jobs)}", fix=fix)


def _script_of(
    job: str,
    args: tuple[str, ...],
    job_options: dict[str, Any],
    variables: tuple[str, ...],
    files: tuple[str, ...],
) -> tuple[JobScript, DryRunInputs, int | None]:
    """Return the script to plan, the inputs of its dry run, and the nodes that replace its own; else None."""
    from sbatchgen.check.lint.source import is_script, read_source
    from sbatchgen.lab.plan.planning import read_inputs, script_of

    if not (is_script(job) or job == "-"):
        from sbatchgen.jobs.render.render import render_request

        request = request_of(job, args, job_options)
        script = script_of(job, render_request(request), profile=request.resolved.profile)
        return script, read_inputs((), variables, files), None
    from sbatchgen.jobs.inputs.flags import layer_of
    from sbatchgen.jobs.inputs.search import Places
    from sbatchgen.jobs.judge.read_settings import settings_of

    source = read_source(job)
    unusable = [
        name
        for name, value in job_options.items()
        if value not in (None, ()) and name not in ("profile", "nodes")
    ]
    if unusable:
        what = f"{job} is a finished script: --{unusable[0].replace('_', '-')} can't change it"
        raise CommandLineError.of(what, fix="edit the script; --nodes and --profile go with it")
    settings = settings_of(Places(current_folder(), os.environ), job_options.get("profile"), runs_here=True)
    release = "" if settings.is_release_assumed else settings.slurm
    script = script_of(source.file, source.text, profile=settings.profile, slurm=release)
    nodes = (
        layer_of((), {"nodes": job_options["nodes"]}).values.get("options.nodes")
        if job_options["nodes"]
        else None
    )
    return script, read_inputs(args, variables, files), nodes
