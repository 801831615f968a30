"""The commands gpus and when: they show the free GPUs and shards, and when a job would start."""

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
    "job",
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
    help=f"Show the output again every {DEFAULT_WATCH_S} seconds, or at this interval.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@FORMAT
@click.pass_obj
def gpus(
    args: tuple[str, ...],
    /,
    job: str | None,
    watch: int | None,
    form: str,
    *,
    by_node: bool,
    as_json: bool,
    **job_options: Any,
) -> None:
    """Show which GPUs and shards are free.

    The table has a row for each type of GPU, or for each node; --partition shows one partition. With --for
    JOB and the options of render, gpus shows whether the job would start now, as in:
    sbatchgen gpus --for ddp --nodes 2
    """
    form = "json" if as_json else form
    if job is None and args:
        what = "words after -- are the arguments of a job's trainer, and no job is named"
        raise CommandLineError.of(what, fix=f"add --for ddp, or leave out -- {words(args)}")
    if job is None:
        partition = job_options.pop("partition")
        _refuse_job_options(job_options)
        show = partial(_show_gpus, partition, form, by_node=by_node)
    elif by_node:
        what = "--by-node shows the GPUs of all nodes, and --for asks about one job"
        raise CommandLineError.of(what, fix="leave out --by-node, or --for")
    else:
        show = partial(_show_start_now, job, args, job_options, form)
    show() if watch is None else redraw(show, watch)


def _refuse_job_options(job_options: Mapping[str, Any]) -> None:
    """Raise CommandLineError if an option of a job was typed for `gpus` without --for."""
    typed = [name for name, value in job_options.items() if value not in (None, ())]
    if not typed:
        return
    what = f"--{typed[0].replace('_', '-')} is about a job, and no job is named"
    fix = "add --for ddp"
    if typed == ["profile"]:
        what = "gpus asks the Slurm of this machine: without a job, it takes no --profile"
        fix = "leave --profile out, or name a job: --for ddp"
    raise CommandLineError.of(what, fix=fix)


def _show_gpus(partition: str | None, form: str, *, by_node: bool) -> None:
    """Print the GPUs and shards of a partition, or of all partitions."""
    from sbatchgen.jobs.outputs.gpus import gpus_output
    from sbatchgen.jobs.review import free_gpus as screen
    from sbatchgen.jobs.slurm.gpu_nodes import count_gpus, gpu_nodes
    from sbatchgen.jobs.slurm.node import nodes

    all_nodes = nodes(os.environ)
    partitions = {name for node in all_nodes for name in node.partitions}
    if partition is not None and partition not in partitions:
        what = f"no node is in a partition '{partition}'"
        raise CommandLineError.of(what, at="--partition", fix=did_you_mean(partition, partitions))
    nodes_shown = [node for node in all_nodes if partition is None or partition in node.partitions]
    shown_gpu_nodes = gpu_nodes(nodes_shown, os.environ)
    counts_by_type = count_gpus(shown_gpu_nodes)
    if by_node:
        text = screen.nodes_table(shown_gpu_nodes)
    else:
        text = screen.types_table(counts_by_type, shown_gpu_nodes)
    put_in_form(form, gpus_output(counts_by_type, shown_gpu_nodes), text)


def _show_start_now(job: str, args: tuple[str, ...], job_options: dict[str, Any], form: str) -> None:
    """Print whether a job would start now in each of its partitions, and on which nodes."""
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
        missing = "default partition"
        if "partition" in resources:
            missing = f"partition '{','.join(resources.partitions)}'"
        fix = f"known: {', '.join(partition.name for partition in partitions)}"
        at = str(resolved.origin("options.partition"))
        raise FitError.of(f"this cluster has no {missing}", at=at, fix=fix)
    put_in_form(form, RoomOutput(partitions=availabilities), screen.room_as_text(availabilities))


@click.command(cls=JobCommand)
@NEEDS
@click.option(
    "--fit", is_flag=True, help="Cut a training that resumes into shorter jobs that fit into holes."
)
@FORMAT
@click.pass_obj
def when(
    args: tuple[str, ...], /, job: str, needs: str | None, form: str, *, fit: bool, **job_options: Any
) -> None:
    """Show when a job would start, and which shapes of it would end sooner.

    A shape is the job with other options, such as fewer nodes, and its row shows these options. A hole is
    nodes that are free now, until a planned job takes them. A plan is Slurm's own plan for a job that waits.
    A bound is rough, because sbatch --test-only ignores holes. when submits nothing.
    """
    from sbatchgen.jobs.review.free_gpus import starts_as_text

    prospects = find_and_record_starts(job, args, job_options, needs, fit=fit)
    put_in_form(form, prospects, starts_as_text(prospects))


def find_and_record_starts(
    job: str, args: tuple[str, ...], job_options: dict[str, Any], needs: str | None, *, fit: bool
) -> Prospects:
    """Return when a job would start, and record these starts, to compare them with the real starts later.

    `needs` is the typed time that the training still needs. With `fit`, a piece of it may fill a hole.
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
    report(finding for finding in errors if not finding.about_fit)  # another shape of the job may fit
    set_answer_limit(resolved.profile.answer_within)
    moment = read_moment(os.environ)
    default_partitions = [partition.name for partition in moment.partitions if partition.default]
    partitions = [*resolved.resources.partitions] or default_partitions
    partitions += [] if has_partition else map(str, resolved.profile.partitions)
    rerun = typed_request.rerun  # sbatchgen render JOB --profile PROFILE ...
    # With its profile named, a request prints no note about the default profile again.
    named_profile = {"profile": rerun[rerun.index("--profile") + 1]}

    def request_with(changes: Mapping[str, str]) -> Request:
        """Return the typed request with some options changed, such as those of another shape."""
        changed_options = {key.replace("-", "_"): value for key, value in changes.items()}
        options = {**job_options, **named_profile, **changed_options}
        return request_of(job, args, options) if changes else typed_request

    prospects = find_starts(request_with, partitions, moment, os.environ, _pace(needs, resolved), fit=fit)
    starts = [(row, datetime.fromisoformat(row.start).timestamp()) for row in prospects.rows if row.start]
    shown_starts.keep_forecasts(os.environ, [(row.argv, row.kind, start) for row, start in starts])
    shown_starts.keep_plans(os.environ, {row.job: start for row, start in starts if row.job})
    return prospects


def _refuse_without_restarts(resolved: ResolvedJob) -> None:
    """Raise CommandLineError if the job does not continue after its time limit, as --fit needs it."""
    if not resolved.restartable:
        missing_options = ["--resume auto"] if not resolved.stoppable else []
        missing_options += ["--max-restarts 10"] if not resolved.max_restarts else []
        fix = f"leave --fit out, or let the job restart: {' '.join(missing_options)}"
        raise CommandLineError.of("the job does not continue after its time limit", at="--fit", fix=fix)


def _pace(needs: str | None, resolved: ResolvedJob) -> Pace:
    """Return the pace of a training, from the typed time `needs`, or else from the events in its run folder.

    A typed time is the time with the GPUs that the job requests. One sample then stands for one second.
    """
    from sbatchgen.base.units import meant_time, seconds
    from sbatchgen.jobs.starts.needs import Pace, read_pace

    folder = resolved.run_dir
    has_path = not folder.unset(os.environ)  # else a variable in the path is not set here
    pace = read_pace(current_folder() / folder.filled(os.environ)) if has_path else None
    if needs is None:
        return pace or Pace(0, {})
    if not (needs_s := seconds(meant_time(needs) or needs)):
        raise CommandLineError.of(f"'{needs}' is not a time", at="--needs", fix="write 30h, or 1-06:00:00")
    return Pace(needs_s, {resolved.resources.gpus_in_all: 1.0}, pace.restart_s if pace else None)


def _refuse_without_slurm(resolved: ResolvedJob) -> None:
    """Raise CommandLineError if the job's profile is one without Slurm, such as local."""
    if not resolved.uses_slurm:
        what = f"profile '{resolved.profile.name}' is not of a cluster with Slurm"
        fix = "name the profile of a cluster: --profile NAME"
        raise CommandLineError.of(what, at=str(resolved.origin("profile")), fix=fix)
