"""The command rehearse: it tries a job on this machine, or for five minutes on a cluster."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sbatchgen.base.errors import CommandLineError, DocumentError
from sbatchgen.base.quoting import word
from sbatchgen.cli.jobs import JobCommand, request_of
from sbatchgen.cli.output import BUDGET, FORMAT, SEE, YES, current_folder, note, put, put_json, report
from sbatchgen.jobs.inputs import completion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
    from sbatchgen.jobs.submit.sbatch import SubmittedRun
    from sbatchgen.lab.rehearsal.outcome import RehearseOutput, Row
    from sbatchgen.lab.rehearsal.rehearsal import Rehearsal

SHORT_TIME = "00:05:00"  # the time limit of a rehearsal on the cluster, without --time
MAX_LEAD_S = 65535  # the most seconds between a --signal and the time limit: sbatch(1)
# Options that only a rehearsal on this machine takes, each with its parameter.
LOCAL_OPTIONS = {"seconds": "--seconds", "stop_after": "--stop-after", "network": "--network", "see": "--see"}


class _Seconds(click.FloatRange):
    """A number of seconds from 1 on. click.FloatRange takes nan and inf too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail for a text that is not a finite number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


SECONDS = _Seconds(min=1)


@click.command(cls=JobCommand)
@click.option(
    "--seconds",
    metavar="SECONDS",
    type=SECONDS,
    default=120,
    show_default=True,
    help="Limit the time of each start until its first steps, and of the last start until its end.",
)
@click.option(
    "--stop-after",
    metavar="SECONDS",
    type=SECONDS,
    default=30,
    show_default=True,
    help="Stop a trainer that prints no steps after this time.",
)
@click.option(
    "--on",
    "cluster",
    metavar="PROFILE",
    shell_complete=completion.profiles,
    help="Submit the job to this cluster for five minutes instead. It is stopped half way, and starts again.",
)
@YES
@BUDGET
@click.option("--network", is_flag=True, help="Let the job use this machine's network.")
@SEE
@FORMAT
@click.pass_obj
def rehearse(
    args: tuple[str, ...],
    /,
    job: str,
    *,
    seconds: float,
    stop_after: float,
    cluster: str | None,
    yes: bool,
    network: bool,
    see: tuple[str, ...],
    form: str,
    **job_options: Any,
) -> None:
    """Run a job on this machine, through its time limit and restarts.

    This runs the job's script and its trainer. The job starts, nears its limit, is requeued, is cancelled,
    and ends. The job runs in a sandbox, and can write only a run folder, which is removed at the end. This
    machine plays all nodes. The table shows what works, and what only the cluster can show. With --on, the
    job runs on the cluster, as in: sbatchgen rehearse ddp --on msu --partition debug
    """
    from sbatchgen.jobs.judge.job_check import check
    from sbatchgen.lab.rehearsal.outcome import rows
    from sbatchgen.lab.rehearsal.rehearsal import refuse_unfit
    from sbatchgen.lab.rehearsal.rehearsal import rehearse as run_here

    if cluster:
        if job_options.get("profile"):
            what = "--profile and --on both name a profile"
            raise CommandLineError.of(what, at="--on", fix="leave --profile out")
        outcomes = _rehearse_on_cluster(job, args, {**job_options, "profile": cluster}, yes=yes)
        _print_outcomes(outcomes, {"rows": outcomes}, form)
        sys.exit(any(row.outcome == "failed" for row in outcomes))
    request = request_of(job, args, job_options)
    report(check(request.resolved))
    refuse_unfit(request.resolved)
    rehearsal = run_here(
        request, os.environ, current_folder(), seconds=seconds, stop_after=stop_after, has_network=network,
        extra_folders=see, tell=lambda text: note(f"note: {text}. This takes some minutes"),
    )  # fmt: skip
    outcomes = [*rows(rehearsal)]
    _print_rehearsal(rehearsal, outcomes, form)
    sys.exit(any(row.outcome == "failed" for row in outcomes))


def _refuse_local_options() -> None:
    """Raise CommandLineError if an option of LOCAL_OPTIONS was typed together with --on."""
    context = click.get_current_context()
    typed = [
        option
        for name, option in LOCAL_OPTIONS.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if typed:
        options = " and ".join(typed)
        what = f"{options} can't be used with --on, because the cluster runs the job"
        fix = f"leave {options} out; or leave --on out to run the job on this machine"
        raise CommandLineError.of(what, at="--on", fix=fix)


def _print_rehearsal(rehearsal: Rehearsal, outcomes: Sequence[Row], form: str) -> None:
    """Print the outcomes of a rehearsal on this machine, its time and memory, and what it can't show."""
    from sbatchgen.base.quoting import table
    from sbatchgen.base.units import in_bytes

    output: RehearseOutput = {
        "rows": [*outcomes],
        "unproven": dict(rehearsal.unproven),
        "seconds": round(rehearsal.seconds, 1),
        "memory_bytes": rehearsal.memory,
    }
    _print_outcomes(outcomes, output, form)
    if form == "json":
        return
    put(f"took {rehearsal.seconds:.0f} s, at most {in_bytes(rehearsal.memory)} of memory\n\nNot shown:")
    put(table((f"  {part}", reason) for part, reason in rehearsal.unproven), nl=False)


def _print_outcomes(outcomes: Sequence[Row], output: RehearseOutput, form: str) -> None:
    """Print the outcomes of a rehearsal as a table with fixes, or the whole `output` as JSON."""
    from sbatchgen.base.quoting import fix_lines, one_line, table

    if form == "json":
        put_json(output)
        return
    shown_fixes: set[str] = set()
    lines = table((row.what, row.outcome, one_line(row.detail)) for row in outcomes).split("\n")
    for row, line in zip(outcomes, lines, strict=False):  # `lines` ends with an empty line
        put(line)
        if row.fix and row.fix not in shown_fixes:
            put("\n".join(fix_lines(row.fix, indent=4)))
        shown_fixes.add(row.fix)
    if outcomes:
        failure_count = sum(row.outcome == "failed" for row in outcomes)
        put(f"\n{failure_count} of {len(outcomes)} failed")


def _options_of_short_job(resolved: ResolvedJob, job_options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that stop a job half-way, and give it a name and a run folder of its own.

    The run folder is new, because the trainer would resume a rehearsal in an older folder.
    """
    options = {"job_name": f"{resolved.name}-rehearsal", "max_restarts": "1"}
    options["run_dir"] = f"{resolved.run_dir}-rehearsal-{time.strftime('%m%d-%H%M%S')}"
    if time_s := resolved.resources.time:  # the job is stopped after half of its time
        lead_s = min(int(time_s) // 2, MAX_LEAD_S)
        options["signal"] = job_options.get("signal") or f"B:USR1@{lead_s}"
    return options


def _rehearse_on_cluster(
    job: str, args: tuple[str, ...], job_options: dict[str, Any], *, yes: bool
) -> list[Row]:
    """Submit the job as a short job with a run folder of its own, follow it, and return its outcomes.

    Return [] if the user does not agree to submit.
    """
    from sbatchgen.cli.run_logs import follow_run
    from sbatchgen.cli.submit import show_and_confirm, submit_to_slurm
    from sbatchgen.jobs.review.screen import in_short
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.jobs.submit.rendered import submission_of_job

    _refuse_local_options()
    job_options = {**job_options, "time": job_options.get("time") or SHORT_TIME}
    resolved = request_of(job, args, job_options).resolved
    if not resolved.uses_slurm:
        what = f"--on submits to Slurm, and profile '{resolved.profile.name}' has none"
        raise CommandLineError.of(what, fix="name a profile with Slurm")
    short_job = request_of(job, args, {**job_options, **_options_of_short_job(resolved, job_options)})
    submission = submission_of_job(short_job, os.environ, current_folder())
    if not show_and_confirm([submission.review], in_short(submission.review), yes=yes, dry_run=False):
        return []
    index = sbatch.open_index(os.environ, note)
    submitted: list[SubmittedRun] = []
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the table
        submit_to_slurm(submission, index, "", submitted, keep_env=False)
        record, run_dir = submitted[-1].record, submitted[-1].run_dir
        if index is None or not submitted[-1].is_in_index:
            what = f"run {record.run} can't be followed, because it is in no index"
            raise CommandLineError.of(what, fix=f"sbatchgen status --scan {word(str(run_dir))}")
        try:
            follow_run(index, record.run)
        except KeyboardInterrupt:
            note(f"note: the job stays in the queue; end it: sbatchgen cancel {record.run}")
            raise
    return _outcomes_of_run(submitted[-1], short_job.resolved)


def _outcomes_of_run(run: SubmittedRun, resolved: ResolvedJob) -> list[Row]:
    """Return the outcomes of a run; for an array, those of its first element."""
    from sbatchgen.jobs.runs.job_log import find_logs, last_lines
    from sbatchgen.jobs.runs.metrics import read_events
    from sbatchgen.jobs.runs.record import point_numbers
    from sbatchgen.lab.rehearsal.outcome import cluster_rows

    elements = () if run.record.is_one_training else point_numbers(run.record, run.record.array)
    task = str(min(elements, default=""))
    log = "\n".join(line for path in find_logs(run.record, task) for _, line in last_lines(path))
    events: list[dict[str, Any]] = []
    with contextlib.suppress(DocumentError):
        events += read_events(run.run_dir / task)
    return list(cluster_rows(events, log, resolved))
