"""rehearse: run a job here before it waits in the queue."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import click

from sbatchgen.cli.jobs import JobCommand, request_of
from sbatchgen.cli.output import FORMAT, here, note, put, put_json, report


@click.command(cls=JobCommand)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=120,
    show_default=True,
    help="How long each start may take until its first steps, and the last until the end.",
)
@click.option(
    "--stop-after",
    type=click.FloatRange(min=1),
    default=30,
    show_default=True,
    help="Seconds after which a trainer that prints no steps is stopped.",
)
@click.option("--offline", is_flag=True, help="Give the job no network, as on nodes without one.")
@FORMAT
@click.pass_obj
def rehearse(
    args: tuple[str, ...],
    /,
    job: str,
    *,
    seconds: float,
    stop_after: float,
    offline: bool,
    form: str,
    **job_options: Any,
) -> None:
    """Run the job on this machine: start, time limit, requeue, scancel, end.

    In a sandbox, where it can write nothing but a run folder that is thrown away. This machine plays all
    nodes. Shows what that proved and what it can't show.
    """
    from sbatchgen.dryrun.outcome import FAILED, rows
    from sbatchgen.dryrun.rehearsal import rehearse as run
    from sbatchgen.rules.judge import check
    from sbatchgen.table import table

    request = request_of(job, args, job_options)
    report(check(request.plan))
    note("note: this takes some minutes; the job runs in a sandbox on this machine")
    done = run(request, os.environ, here(), seconds=seconds, patience=stop_after, network=not offline)
    tried = list(rows(done))
    if form == "json":
        put_json(
            rows=[dataclasses.asdict(row) for row in tried],
            unproven=dict(done.unproven),
            seconds=round(done.seconds, 1),
            memory_bytes=done.memory,
        )
    else:
        put(
            table(
                [
                    (row.what, row.outcome, row.detail + (f" (fix: {row.fix})" if row.fix else ""))
                    for row in tried
                ]
            ),
            nl=False,
        )
        put(f"\ntook {done.seconds:.0f} s, at most {done.memory / (1 << 30):.1f} GiB of memory")
        put("\nNot shown:")
        put(table((f"  {what}", why) for what, why in done.unproven), nl=False)
    sys.exit(any(row.outcome == FAILED for row in tried))
