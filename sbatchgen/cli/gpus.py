"""gpus: who has which GPUs and shards now, and whether a job would start."""

import os
from functools import partial
from typing import Any

import click

from sbatchgen.base.errors import CommandLineError, FitError, did_you_mean
from sbatchgen.cli.jobs import JobCommand, request_of
from sbatchgen.cli.output import FORMAT, put_in_form, redraw, report
from sbatchgen.jobs.inputs import completion

WATCH_S, SHORTEST_S = 30, 5  # between two questions to Slurm; its manual pages ask not to hurry


@click.command(cls=JobCommand, usage="[OPTIONS] [--for JOB [OPTIONS OF RENDER]]")
@click.option("--by-node", is_flag=True, help="Show each node, with the numbers of its GPUs.")
@click.option(
    "--for",
    "of_job",
    metavar="JOB",
    shell_complete=completion.jobs,
    help="Say whether this job would start now, and on which nodes.",
)
@click.option(
    "--watch",
    metavar="[SECONDS]",
    type=click.IntRange(min=SHORTEST_S),
    is_flag=False,
    flag_value=WATCH_S,
    help=f"Show it again every {WATCH_S} seconds, or at this interval.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@FORMAT
@click.pass_obj
def gpus(
    args: tuple[str, ...],
    /,
    of_job: str | None,
    watch: int | None,
    form: str,
    *,
    by_node: bool,
    as_json: bool,
    **job_options: Any,
) -> None:
    """Show which GPUs and shards are free.

    By type of GPU, or by node; --partition shows those of a partition. With --for JOB and the options of
    render: whether there is room for the job now, as in: sbatchgen gpus --for ddp --nodes 2
    """
    asked = "json" if as_json else form
    show = partial(_show_room, of_job or "", args, job_options, asked)
    if of_job is None:
        partition = job_options.pop("partition")
        if others := [name for name, value in job_options.items() if value not in (None, ())]:
            what = f"--{others[0].replace('_', '-')} is about a job, and no job is named"
            fix = "add --for ddp"
            if others == ["profile"]:
                what = "gpus asks the Slurm of this machine: without a job, it takes no --profile"
                fix = "leave it out, or name a job: --for ddp"
            raise CommandLineError.of(what, fix=fix)
        show = partial(_show, partition, asked, by_node=by_node)
    show() if watch is None else redraw(show, watch)


def _show(partition: str | None, form: str, *, by_node: bool) -> None:
    from sbatchgen.jobs.outputs.gpus import gpus_output
    from sbatchgen.jobs.review import free_gpus as screen
    from sbatchgen.jobs.slurm.gpu_nodes import counts, gpu_nodes
    from sbatchgen.jobs.slurm.node import nodes

    all_nodes = nodes(os.environ)
    known = {name for node in all_nodes for name in node.partitions}
    if partition is not None and partition not in known:
        what = f"no node is in a partition '{partition}'"
        raise CommandLineError.of(what, at="--partition", fix=did_you_mean(partition, known))
    chosen = [node for node in all_nodes if partition is None or partition in node.partitions]
    having = gpu_nodes(chosen, os.environ)
    text = screen.by_node(having) if by_node else screen.as_table(counts(having), having)
    put_in_form(form, gpus_output(counts(having), having), text)


def _show_room(job: str, args: tuple[str, ...], job_options: dict[str, Any], form: str) -> None:
    from sbatchgen.jobs.judge.job_check import check
    from sbatchgen.jobs.outputs.gpus import RoomOutput
    from sbatchgen.jobs.review import free_gpus as screen
    from sbatchgen.jobs.slurm.config import config
    from sbatchgen.jobs.slurm.gpu_nodes import gpu_nodes
    from sbatchgen.jobs.slurm.node import nodes
    from sbatchgen.jobs.slurm.partition import partitions
    from sbatchgen.jobs.slurm.room import rooms

    resolved = request_of(job, args, job_options).resolved
    if not resolved.slurm:
        what = f"profile '{resolved.profile.name}' is not of a cluster with Slurm"
        raise CommandLineError.of(what, at=str(resolved.origin("profile")), fix="name one: --profile NAME")
    report(check(resolved))
    asked, all_nodes, known = resolved.resources, nodes(os.environ), partitions(os.environ)
    availabilities = rooms(asked, all_nodes, gpu_nodes(all_nodes, os.environ), known, config(os.environ))
    if not availabilities:
        name = f"partition '{','.join(asked.partitions)}'" if "partition" in asked else "default partition"
        fix = f"known: {', '.join(partition.name for partition in known)}"
        at = str(resolved.origin("options.partition"))
        raise FitError.of(f"this cluster has no {name}", at=at, fix=fix)
    put_in_form(form, RoomOutput(partitions=availabilities), screen.room_as_text(availabilities))
