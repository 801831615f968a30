"""The commands gpus and when: the free GPUs and shards, and when a job would start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.base.errors import CommandLineError, FitError, did_you_mean
from sbatchgen.base.quoting import words
from sbatchgen.cli.jobs import NEEDS, JobCommand, request_of
from sbatchgen.cli.output import FORMAT, current_folder, put_in_form, redraw, report
from sbatchgen.jobs.inputs import completion

if TYPE_CHECKING:
    from sbatchgen.jobs.resolved.request import Request
    from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
    from sbatchgen.jobs.starts.needs import Pace
    from sbatchgen.jobs.starts.prospect import Prospects

# Seconds between two questions to Slurm, whose manual pages ask for few questions.
DEFAULT_WATCH_S = 30
SHORTEST_WATCH_S = 5


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
    type=click.IntRange(min=SHORTEST_WATCH_S),
    is_flag=False,
    flag_value=DEFAULT_WATCH_S,
    help=f"Show it again every {DEFAULT_WATCH_S} seconds, or at this interval.",
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

    The table is by type of GPU, or by node; --partition shows one partition. With --for JOB and the options
    of render, gpus shows whether the job would start now, as in: sbatchgen gpus --for ddp --nodes 2
    """
    form = "json" if as_json else form
    show = partial(_show_room, of_job or "", args, job_options, form)
    if of_job is not None and by_node:
        what = "--by-node shows the GPUs of all nodes, and --for asks about one job"
        raise CommandLineError.of(what, fix="leave out --by-node, or --for")
    if of_job is None and args:
        what = "words after -- are the arguments of a job's trainer, and no job is named"
        raise CommandLineError.of(what, fix=f"add --for ddp, or leave out -- {words(args)}")
    if of_job is None:
        partition = job_options.pop("partition")
        if job_flags := [name for name, value in job_options.items() if value not in (None, ())]:
            what = f"--{job_flags[0].replace('_', '-')} is about a job, and no job is named"
            fix = "add --for ddp"
            if job_flags == ["profile"]:
                what = "gpus asks the Slurm of this machine: without a job, it takes no --profile"
                fix = "leave it out, or name a job: --for ddp"
            raise CommandLineError.of(what, fix=fix)
        show = partial(_show_gpus, partition, form, by_node=by_node)
    show() if watch is None else redraw(show, watch)


def _show_gpus(partition: str | None, form: str, *, by_node: bool) -> None:
    """Print the GPUs and shards of a partition, or of all partitions."""
    from sbatchgen.jobs.outputs.gpus import gpus_output
    from sbatchgen.jobs.review import free_gpus as screen
    from sbatchgen.jobs.slurm.gpu_nodes import counts, gpu_nodes
    from sbatchgen.jobs.slurm.node import nodes

    all_nodes = nodes(os.environ)
    partitions = {name for node in all_nodes for name in node.partitions}
    if partition is not None and partition not in partitions:
        what = f"no node is in a partition '{partition}'"
        raise CommandLineError.of(what, at="--partition", fix=did_you_mean(partition, partitions))
    nodes_shown = [node for node in all_nodes if partition is None or partition in node.partitions]
    with_gpus = gpu_nodes(nodes_shown, os.environ)
    by_type = counts(with_gpus)
    text = screen.nodes_table(with_gpus) if by_node else screen.types_table(by_type, with_gpus)
    put_in_form(form, gpus_output(by_type, with_gpus), text)


def _show_room(job: str, args: tuple[str, ...], job_options: dict[str, Any], form: str) -> None:
    """Print whether a job would start now, in each of its partitions."""
    from sbatchgen.jobs.judge.job_check import check
    from sbatchgen.jobs.outputs.gpus import RoomOutput
    from sbatchgen.jobs.review import free_gpus as screen
    from sbatchgen.jobs.starts.moment import read_moment
    from sbatchgen.jobs.starts.room import rooms

    resolved = request_of(job, args, job_options).resolved
    _refuse_without_slurm(resolved)
    report(check(resolved))
    resources, moment = resolved.resources, read_moment(os.environ, with_queue=False)
    partitions = moment.partitions
    availabilities = rooms(resources, moment.nodes, moment.gpu_nodes, partitions, moment.settings)
    if not availabilities:
        requested = f"partition '{','.join(resources.partitions)}'"
        name = requested if "partition" in resources else "default partition"
        fix = f"known: {', '.join(partition.name for partition in partitions)}"
        at = str(resolved.origin("options.partition"))
        raise FitError.of(f"this cluster has no {name}", at=at, fix=fix)
    put_in_form(form, RoomOutput(partitions=availabilities), screen.room_as_text(availabilities))


@click.command(cls=JobCommand)
@NEEDS
@click.option("--fit", is_flag=True, help="Cut a training that resumes into pieces that fit holes.")
@FORMAT
@click.pass_obj
def when(
    args: tuple[str, ...], /, job: str, needs: str | None, form: str, *, fit: bool, **job_options: Any
) -> None:
    """Show when a job would start, and which shapes of it would end sooner.

    A hole is free now. A plan is Slurm's own, for a job that waits. A bound is rough, because sbatch
    --test-only ignores holes. Each row shows the options of its shape. Submits nothing.
    """
    from sbatchgen.jobs.review.free_gpus import starts_as_text

    answer = find_and_record_starts(job, args, job_options, needs, fit=fit)
    put_in_form(form, answer, starts_as_text(answer))


def find_and_record_starts(
    job: str, args: tuple[str, ...], job_options: dict[str, Any], needs: str | None, *, fit: bool
) -> Prospects:
    """Return when a job would start, and record these times, to compare them with the real times later.

    `needs` is the time that the training still needs, as typed. With `fit`, the starts are pieces of the
    training that fit holes.
    """
    from sbatchgen.jobs.judge.job_check import check
    from sbatchgen.jobs.runs import shown_starts
    from sbatchgen.jobs.slurm.client import set_answer_limit
    from sbatchgen.jobs.starts.moment import read_moment
    from sbatchgen.jobs.starts.prospects import find_starts

    typed_request = request_of(job, args, job_options)
    resolved, has_partition = typed_request.resolved, bool(job_options["partition"])
    _refuse_without_slurm(resolved)
    if fit:
        _refuse_without_restarts(resolved)
    errors = (finding for finding in check(resolved) if finding.severity == "error")
    report(finding for finding in errors if not finding.about_fit)
    set_answer_limit(resolved.profile.answer_within)
    moment = read_moment(os.environ)
    profile = typed_request.rerun[4]  # of sbatchgen render JOB --profile PROFILE
    named_profile = {"profile": profile}  # then the note about the default profile is printed only once
    defaults = [partition.name for partition in moment.partitions if partition.default]
    partitions = [*resolved.resources.partitions] or defaults
    partitions += [] if has_partition else map(str, resolved.profile.partitions)

    def request_with(changes: Mapping[str, str]) -> Request:
        """Return the request with other options, such as those of another shape."""
        changed = {**job_options, **named_profile, **{key.replace("-", "_"): changes[key] for key in changes}}
        return request_of(job, args, changed) if changes else typed_request

    answer = find_starts(request_with, partitions, moment, os.environ, _pace(needs, resolved), fit=fit)
    rows = [(row, datetime.fromisoformat(row.start).timestamp()) for row in answer.rows if row.start]
    shown_starts.keep_offers(os.environ, [(row.argv, row.kind, start) for row, start in rows])
    shown_starts.keep_plans(os.environ, {row.job: start for row, start in rows if row.job})
    return answer


def _refuse_without_restarts(resolved: ResolvedJob) -> None:
    """Raise CommandLineError for --fit with a job that does not continue after its time limit."""
    if not resolved.restartable:
        options = ["--resume auto"] if not resolved.stoppable else []
        options += ["--max-restarts 10"] if not resolved.max_restarts else []
        fix = f"leave --fit out, or let the job restart: {' '.join(options)}"
        raise CommandLineError.of("the job does not continue after its time limit", at="--fit", fix=fix)


def _pace(needs: str | None, resolved: ResolvedJob) -> Pace:
    """Return the pace of a training: from the typed time `needs`, or as measured in its run folder."""
    from sbatchgen.base.units import meant_time, seconds
    from sbatchgen.jobs.starts.needs import Pace, read_pace

    folder = resolved.run_dir
    pace = None if folder.unset(os.environ) else read_pace(current_folder() / folder.filled(os.environ))
    if needs is None:
        return pace or Pace(0, {})
    if not (needs_s := seconds(meant_time(needs) or needs)):
        raise CommandLineError.of(f"'{needs}' is not a time", at="--needs", fix="write 30h, or 1-06:00:00")
    return Pace(needs_s, {resolved.resources.gpus_in_all: 1.0}, pace.restart_s if pace else None)


def _refuse_without_slurm(resolved: ResolvedJob) -> None:
    """Raise CommandLineError for a job of a profile without Slurm."""
    if not resolved.slurm:
        what = f"profile '{resolved.profile.name}' is not of a cluster with Slurm"
        raise CommandLineError.of(what, at=str(resolved.origin("profile")), fix="name one: --profile NAME")
