"""gpus: who has which GPUs and shards now, and whether a job would start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.cli.jobs import JobCommand, request_of
from sbatchgen.cli.output import FORMAT, put, redraw, report
from sbatchgen.errors import CommandLineError, FitError, did_you_mean
from sbatchgen.quoting import visible

if TYPE_CHECKING:
    from sbatchgen.plan.request import Request
    from sbatchgen.slurm.node import SlurmNode
    from sbatchgen.slurm.room import Room

WATCH_S, SHORTEST_S = 30, 5  # between two questions to Slurm; its manual pages ask not to hurry


class GpusCommand(JobCommand):
    """It takes the options of a job, without JOB."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own options, and those of every job."""
        return [one for one in super().get_params(ctx) if not isinstance(one, click.Argument)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own shape
        """Without JOB."""
        return ["[OPTIONS]", "[--for JOB [OPTIONS OF RENDER]]"]


@click.command(cls=GpusCommand)
@click.option("--by-node", is_flag=True, help="Show each node, with the numbers of its GPUs.")
@click.option(
    "--for", "of_job", metavar="JOB", help="Say whether this job would start now, and on which nodes."
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
    **given: Any,
) -> None:
    """Show which GPUs and shards are free.

    By type of GPU, or by node; --partition shows those of a partition. With --for JOB and the options of
    render: whether there is room for the job now, as in: sbatchgen gpus --for ddp --nodes 2
    """
    asked = "json" if as_json else form
    if of_job is None:
        _check_alone(given)

    def show() -> None:
        if of_job is None:
            _show(given["partition"], asked, by_node=by_node)
        else:
            _show_room(of_job, args, given, asked)

    show() if watch is None else redraw(show, watch)


def _check_alone(given: dict[str, Any]) -> None:
    """Refuse options of a job without a job."""
    others = [name for name, value in given.items() if value not in (None, ()) and name != "partition"]
    if others:
        flag = others[0].replace("_", "-")
        raise CommandLineError.of(f"--{flag} is about a job, and none is named", fix="name one: --for ddp")


def _nodes() -> list[SlurmNode]:
    from sbatchgen.slurm.node import nodes

    return nodes(os.environ)


def _show(partition: str | None, form: str, *, by_node: bool) -> None:
    from sbatchgen.review import gpus as screen
    from sbatchgen.slurm.gpus import counts, gpu_nodes

    nodes = _nodes()
    known = {name for node in nodes for name in node.partitions}
    if partition is not None and partition not in known:
        what = f"no node is in a partition '{partition}'"
        raise CommandLineError.of(what, at="--partition", fix=did_you_mean(partition, known))
    having = gpu_nodes(
        (node for node in nodes if partition is None or partition in node.partitions), os.environ
    )
    if form == "json":
        put(screen.as_json(counts(having), having), nl=False)
    else:
        text = screen.by_node(having) if by_node else screen.as_table(counts(having), having)
        put(visible(text), nl=False)


def _show_room(job: str, args: tuple[str, ...], given: dict[str, Any], form: str) -> None:
    from sbatchgen.review import gpus as screen
    from sbatchgen.rules.judge import check

    request = request_of(job, args, given)
    plan = request.plan
    if not plan.slurm:
        what = f"profile '{plan.profile.name}' is not of a cluster with Slurm"
        raise CommandLineError.of(what, at=str(plan.origin("profile")), fix="name one: --profile NAME")
    report(check(plan))
    rooms = _rooms(request)
    if form == "json":
        put(screen.room_as_json(rooms), nl=False)
    else:
        put(visible(screen.room_as_text(rooms)), nl=False)


def _rooms(request: Request) -> list[Room]:
    from sbatchgen.slurm.config import config
    from sbatchgen.slurm.gpus import gpu_nodes
    from sbatchgen.slurm.partition import partitions
    from sbatchgen.slurm.room import rooms

    asked = request.plan.resources
    nodes, here_are = _nodes(), partitions(os.environ)
    found = rooms(asked, nodes, gpu_nodes(nodes, os.environ), here_are, config(os.environ))
    if not found:
        known = ", ".join(one.name for one in here_are)
        name = f"partition '{','.join(asked.partitions)}'" if "partition" in asked else "default partition"
        what = f"this cluster has no {name}"
        raise FitError.of(what, at=str(request.plan.origin("options.partition")), fix=f"known: {known}")
    return found
