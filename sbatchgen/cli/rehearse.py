"""The command rehearse: a run of a job on this machine, before it waits in the queue."""

from __future__ import annotations

import contextlib
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

SHORT_TIME = "00:05:00"  # the time limit of a rehearsal on the cluster
MAX_LEAD_S = 65535  # seconds before the time limit, at most, of a --signal: sbatch(1)
# Options of a rehearsal on this machine, by their names in click.
HERE_ALONE = {"seconds": "--seconds", "stop_after": "--stop-after", "network": "--network", "see": "--see"}


@click.command(cls=JobCommand)
@click.option(
    "--seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=120,
    show_default=True,
    help="How long each start may take until its first steps, and the last until the end.",
)
@click.option(
    "--stop-after",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=30,
    show_default=True,
    help="Seconds after which a trainer that prints no steps is stopped.",
)
@click.option(
    "--on",
    "cluster",
    metavar="PROFILE",
    shell_complete=completion.profiles,
    help="Submit it there as a job of five minutes instead, which is stopped half way and starts again.",
)
@YES
@BUDGET
@click.option("--network", is_flag=True, help="Give the job this machine's network.")
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
    from sbatchgen.lab.rehearsal.rehearsal import rehearse as run

    if cluster:
        outcomes = _on_cluster(job, args, {**job_options, "profile": cluster}, yes=yes)
        _show(outcomes, {"rows": outcomes}, form)
        sys.exit(any(row.outcome == "failed" for row in outcomes))
    request = request_of(job, args, job_options)
    report(check(request.resolved))
    refuse_unfit(request.resolved)
    done = run(
        request, os.environ, current_folder(), seconds=seconds, patience=stop_after, network=network, see=see,
        tell=lambda text: note(f"note: {text}. This takes some minutes"),
    )  # fmt: skip
    outcomes = [*rows(done)]
    _show_rehearsal(done, outcomes, form)
    sys.exit(any(row.outcome == "failed" for row in outcomes))


def _refuse_options_here() -> None:
    """Raise CommandLineError for a typed option that has no effect on a job of the cluster."""
    context = click.get_current_context()
    typed = [
        option
        for name, option in HERE_ALONE.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if typed:
        what = f"{' and '.join(typed)}: for a rehearsal on this machine, and --on submits the job"
        raise CommandLineError.of(what, at="--on", fix=f"leave {' and '.join(typed)} out, or --on")


def _show_rehearsal(done: Rehearsal, outcomes: Sequence[Row], form: str) -> None:
    """Print the rows of a rehearsal, the time that it took, and what it can't show."""
    from sbatchgen.base.quoting import table
    from sbatchgen.base.units import in_bytes

    output: RehearseOutput = {"rows": [*outcomes], "unproven": dict(done.unproven)}
    _show(outcomes, {**output, "seconds": round(done.seconds, 1), "memory_bytes": done.memory}, form)
    if form == "json":
        return
    put(f"took {done.seconds:.0f} s, at most {in_bytes(done.memory)} of memory\n\nNot shown:")
    put(table((f"  {what}", why) for what, why in done.unproven), nl=False)


def _show(outcomes: Sequence[Row], output: RehearseOutput, form: str) -> None:
    """Print the rows of a rehearsal as a table with fixes, or the output as JSON."""
    from sbatchgen.base.quoting import fix_lines, one_line, table

    if form == "json":
        put_json(output)
        return
    shown_fixes: set[str] = set()
    lines = table((row.what, row.outcome, one_line(row.detail)) for row in outcomes).split("\n")
    for row, line in zip(outcomes, lines, strict=False):  # after the last row there is an empty line
        put(line)
        if row.fix and row.fix not in shown_fixes:
            put("\n".join(fix_lines(row.fix, indent=4)))
        shown_fixes.add(row.fix)
    if outcomes:
        failed = sum(row.outcome == "failed" for row in outcomes)
        put(f"\n{failed} of {len(outcomes)} failed")


def _on_cluster(job: str, args: tuple[str, ...], job_options: dict[str, Any], *, yes: bool) -> list[Row]:
    """Submit the job as a short job with a run folder of its own, follow it, and return its outcomes.

    Return [] if the user does not agree.
    """
    from sbatchgen.cli.run_logs import follow_run
    from sbatchgen.cli.submit import show_and_confirm, submit_to_slurm
    from sbatchgen.jobs.review.screen import in_short
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.jobs.submit.rendered import submission_of_job

    _refuse_options_here()
    job_options = {**job_options, "time": job_options.get("time") or SHORT_TIME}
    resolved = request_of(job, args, job_options).resolved
    if not resolved.slurm:
        what = f"--on submits to Slurm, and profile '{resolved.profile.name}' has none"
        raise CommandLineError.of(what, fix="name a profile with Slurm")
    name, now = f"{resolved.name}-rehearsal", time.strftime("%m%d-%H%M%S")
    # a new run folder, because an older rehearsal would be resumed
    run_options = {"job_name": name, "run_dir": f"{resolved.run_dir}-rehearsal-{now}", "max_restarts": "1"}
    if time_s := resolved.resources.time:  # the job is stopped after half of its time
        lead_s = min(int(time_s) // 2, MAX_LEAD_S)
        run_options["signal"] = job_options.get("signal") or f"B:USR1@{lead_s}"
    short_job = request_of(job, args, {**job_options, **run_options})
    submission = submission_of_job(short_job, os.environ, current_folder())
    if not show_and_confirm([submission.review], in_short(submission.review), yes=yes, dry_run=False):
        return []
    index = sbatch.open_index(os.environ, note)
    done: list[SubmittedRun] = []
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the table
        submit_to_slurm(submission, index, "", done, keep_env=False)
        if index is None or not done[-1].in_index:
            fix = f"sbatchgen status --scan {word(str(done[-1].run_dir))}"
            raise CommandLineError.of("the run is not in the index, so it can't be followed", fix=fix)
        try:
            follow_run(index, done[-1].record.run)
        except KeyboardInterrupt:
            note(f"note: the job stays in the queue; end it: sbatchgen cancel {done[-1].record.run}")
            raise
    return _rows_of_run(done[-1], short_job.resolved)


def _rows_of_run(run: SubmittedRun, resolved: ResolvedJob) -> list[Row]:
    """Return the outcomes of a run; of an array, whose elements are runs of their own, those of the first."""
    from sbatchgen.jobs.runs.job_log import find_logs, last_lines
    from sbatchgen.jobs.runs.metrics import read_events
    from sbatchgen.jobs.runs.record import point_numbers
    from sbatchgen.lab.rehearsal.outcome import cluster_rows

    elements = () if run.record.one_training else point_numbers(run.record, run.record.array)
    task = str(min(elements, default=""))
    log = "\n".join(line for path in find_logs(run.record, task) for _, line in last_lines(path))
    events: list[dict[str, Any]] = []
    with contextlib.suppress(DocumentError):
        events += read_events(run.run_dir / task)
    return list(cluster_rows(events, log, resolved))
