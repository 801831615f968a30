"""Computes when each shape of a job would start, by holes, Slurm's plan and rough bounds.

Nothing is submitted. The answers come from squeue and scontrol, and for a few shapes from
`sbatch --test-only`.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import final

from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Duration
from sbatchgen.check.sbatch.array import indices
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import with_replaced_options
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runs import shown_starts
from sbatchgen.jobs.slurm.client import answer_limit_s
from sbatchgen.jobs.slurm.refusal import options_of_job
from sbatchgen.jobs.starts.holes import Hole
from sbatchgen.jobs.starts.job_shapes import JobShape, JobShapes, RequestWith
from sbatchgen.jobs.starts.moment import LATE_S, ClusterMoment, QueuedJob
from sbatchgen.jobs.starts.needs import Pace
from sbatchgen.jobs.starts.prospect import Kind, Prospect, Prospects, clock, iso, order
from sbatchgen.jobs.starts.rough import ask_slurm
from sbatchgen.jobs.starts.waiting import plans_of_waiting_jobs

MOST_QUESTIONS = 4  # calls of `sbatch --test-only`, each of which holds a lock of the controller
SLOW_S = 1.0  # after a slower answer, there is no further call
UNTESTED_OPTIONS = ("dependency", "hold")  # options that `sbatch --test-only` ignores
WAITING_OPTIONS = ("begin", *UNTESTED_OPTIONS)  # options that keep a job from starting now


def find_starts(
    request_with: RequestWith,
    partitions: Sequence[str],
    moment: ClusterMoment,
    environment: Mapping[str, str],
    pace: Pace,
    *,
    fit: bool = False,
) -> Prospects:
    """Return when a job would start in each of these partitions, the soonest end first.

    With `fit`, the training may be cut into pieces that fit the holes. Raises FitError if the cluster has
    none of these partitions.
    """
    shapes = JobShapes(request_with, moment, environment, pace)
    return _Search(shapes, may_cut=fit).prospects(partitions)


@final
class _Search:
    """The search for the starts of a job's shapes; it also collects notes for the user."""

    def __init__(self, shapes: JobShapes, *, may_cut: bool) -> None:
        self._shapes, self._moment = shapes, shapes.moment
        self._may_cut = may_cut  # whether the training may be cut into pieces that fit holes
        self._notes: list[str] = []

    def prospects(self, partitions: Sequence[str]) -> Prospects:
        """Return the rows for these partitions: holes, plans of waiting jobs, and bounds."""
        moment, environment = self._moment, self._shapes.environment
        shapes = self._shapes.in_partitions(partitions)
        if moment.hides_jobs:
            what = "Slurm hides jobs of other users here (PrivateData), so no hole and no plan is shown"
            self._notes.append(what)
        rows = [row for shape in shapes if not moment.hides_jobs for row in self._holes(shape)]
        fitting = {(row.partition, row.nodes, row.time_s) for row in rows}  # keys of shapes that fit a hole
        rows += plans_of_waiting_jobs(self._shapes.original.resolved, moment, environment)
        rows += self._bounds([shape for shape in shapes if shape.key not in fitting])
        rows += _in_any_partition(rows)
        self._notes += _queue_notes(moment, rows)
        comparisons = {row.kind: shown_starts.comparison(environment, row.kind) for row in rows}
        self._notes += [f"{kind}: {comparison}" for kind, comparison in comparisons.items() if comparison]
        rows.sort(key=order)
        return Prospects(time=iso(moment.now), rows=rows, out=self._shapes.why_excluded, notes=self._notes)

    def _holes(self, shape: JobShape) -> Iterator[Prospect]:
        """Yield the rows of at most two holes: one for all nodes of the shape, and a longer one for fewer."""
        if obstacle := _obstacle(shape):
            self._shapes.why_excluded[shape.partition.name] = obstacle
            return
        for_all = shape.hole(shape.room.wanted)
        if for_all:
            yield self._row_of_hole(shape, for_all)
            if for_all.time_s >= shape.time_s:
                return
        else:
            self._shapes.why_excluded[shape.partition.name] = _why_no_hole(shape)
        if "nodelist" in shape.job.resources or shape.job.programs:
            return  # the number of its nodes can't be changed
        node_count = shape.room.wanted // 2
        while node_count:
            for_fewer = shape.hole(node_count)
            is_longer = for_fewer and (not for_all or for_fewer.time_s > for_all.time_s)
            smaller = self._shapes.changed(shape, nodes=str(node_count)) if is_longer else None
            if for_fewer and smaller:
                yield self._row_of_hole(smaller, for_fewer)
                return
            node_count //= 2

    def _row_of_hole(self, shape: JobShape, hole: Hole) -> Prospect:
        """Return the row of a shape that starts now in a hole."""
        moment, until, time_s = self._moment, hole.until, min(shape.time_s, hole.time_s)
        if time_s < shape.time_s:
            # With --time-min, Slurm shortens the time limit itself so that the job fits the hole.
            slurm_shortens = self._may_cut or shape.job.options.time_min
            option = "time-min" if slurm_shortens else "time"
            shape = replace(shape, more={**shape.more, option: str(Duration(time_s))})
        count = len(hole.nodes)
        says = f"{counted(count, 'node')} of {shape.partition.name} {'is' if count == 1 else 'are'} free"
        if until:
            says += f" until {clock(until.at, moment.now)}, when {until.why}"
        if hole.boot_s:
            says += f"; nodes that are off take up to {hole.boot_s} s to be switched on"
        if "array" in shape.job.resources:
            says += "; for one task of the array"
        if preempt := _preemption(shape):
            says += f"; {preempt}"
        begin = moment.now + timedelta(seconds=hole.boot_s)
        # From the end of this start until the end of the reservation, no other start is possible.
        closed_s = (hole.free_again - begin).total_seconds() - time_s if hole.free_again else 0.0
        return self._row("hole", shape, begin, time_s, says, closed_s=max(0.0, closed_s))

    def _row(
        self, kind: Kind, shape: JobShape, begin: datetime, time_s: int, says: str, *, closed_s: float = 0.0
    ) -> Prospect:
        """Return the row of a shape; no second piece can start for `closed_s` seconds after the first."""
        resources, needs_s = shape.job.resources, shape.needs_s
        start_count = 1
        ends_after_s = time_s if needs_s is None else needs_s
        if needs_s is None and self._shapes.pace.per_s:
            says += f"; how long the training needs with {counted(resources.gpus_in_all, 'GPU')} is not known"
        if needs_s and needs_s > time_s:
            says += f"; a piece: {time_s / needs_s:.0%} of what the training needs"
            ends_after_s, cost_s = time_s, self._shapes.pace.restart_s or 0.0
            if self._may_cut and time_s > cost_s:
                start_count = math.ceil(needs_s / (time_s - cost_s))
                ends_after_s = needs_s + (start_count - 1) * cost_s + closed_s
                cost = f"{cost_s:.0f} s" if cost_s else "what no run has measured"
                says += f", which ends after {start_count} starts at the soonest; a start costs {cost}"
                shape = replace(shape, more={**shape.more, **_restart_options(shape.job, start_count)})
        options = tuple(word for name, value in shape.more.items() for word in (f"--{name}", value))
        command = self._shapes.original.rerun
        # For how many seconds the job may hold its GPUs
        used_s = time_s if start_count == 1 else max(time_s, ends_after_s - closed_s)
        return Prospect(
            kind=kind,
            partition=shape.partition.name,
            nodes=resources.nodes,
            gpus=resources.gpus_in_all,
            time_s=time_s,
            start=iso(begin),
            end=iso(begin + timedelta(seconds=ends_after_s)),
            gpu_hours=round(resources.gpus_in_all * used_s / 3600, 2),
            needs_s=needs_s,
            starts=start_count,
            options=options,
            argv=(*command[:1], "submit", *with_replaced_options(command, options)[2:]),
            says=says,
        )

    def _bounds(self, shapes: Sequence[JobShape]) -> Iterator[Prospect]:
        """Yield the rows of bounds, from `sbatch --test-only`, for shapes that fit no hole unchanged."""
        took_s, timeout_s = self._moment.took_s, min(LATE_S, answer_limit_s())
        for questions, shape in enumerate(shapes):
            if took_s > (SLOW_S if questions else LATE_S):
                what = f"Slurm took {took_s:.1f} s to answer, so it was asked for no further bound"
                self._notes.append(what)
                return
            if questions == MOST_QUESTIONS:
                rest = ", ".join(other.partition.name for other in shapes[questions:])
                self._notes.append(f"Slurm was asked {MOST_QUESTIONS} times, so no bound is known for {rest}")
                return
            script, option_sources = render_request(shape.request).encode(), options_of_job(shape.job)
            environment, began = self._shapes.environment, time.monotonic()
            answer = ask_slurm(script, "job.slurm", (), option_sources, environment, timeout=timeout_s)
            took_s = time.monotonic() - began
            if answer.start:
                begin = datetime.fromisoformat(answer.start).astimezone()
                preempts = [" ".join(warning.split()) for warning in answer.warnings if "reempt" in warning]
                says = "; ".join(["rough: ignores holes, and counts waiting jobs as whole nodes", *preempts])
                row = self._row("bound", shape, begin, shape.time_s, says)
                if unknown := self._ignored_by_slurm(shape, begin):
                    row = replace(row, start=None, end=None, says=f"its start is not known: {unknown}")
                yield row
            elif answer.refusals:
                self._shapes.why_excluded[shape.partition.name] = (
                    answer.refusals[0].means or answer.refusals[0].says
                )

    def _ignored_by_slurm(self, shape: JobShape, begin: datetime) -> str:
        """Return in words why the job starts later than in Slurm's answer; "" if nothing is known."""
        if option := next((option for option in UNTESTED_OPTIONS if option in shape.job.resources), ""):
            return f"--{option} keeps it waiting"
        next_look = self._moment.now + timedelta(seconds=self._moment.delay_s)
        can_see_claims = not self._moment.hides_jobs and not _obstacle(shape)
        claim = shape.claim if can_see_claims else None  # by a job that may be in another partition
        why = claim.why if claim and begin < max(claim.at, next_look) else ""
        ahead = next((job for job in self._moment.jobs if self._is_ahead(job, shape, begin)), None)
        why = why or (f"job {ahead.id} is planned there" if ahead else "")
        return f"Slurm's answer leaves out that {why}" if why else ""

    def _is_ahead(self, job: QueuedJob, shape: JobShape, begin: datetime) -> bool:
        """Return whether a job of other partitions is planned on the shape's nodes at the shape's time."""
        lower = self._moment.partitions_below(shape.partition.tier)
        if shape.partition.name in job.partitions or lower.issuperset(job.partitions):
            return False  # Slurm's answer counts jobs of this partition; jobs of lower tiers come later
        if not (job.state == "PENDING" and job.planned_nodes and job.start and job.end):
            return False
        named = hosts(shape.job.resources.options.get("nodelist", ""))
        names = [*named] or [node.name for node in self._moment.nodes_of(shape.partition.name)]
        overlaps = begin < job.end and job.start < begin + timedelta(seconds=shape.time_s)
        return overlaps and len({*names} - {*job.planned_nodes}) < shape.room.wanted


def _restart_options(job: ResolvedJob, start_count: int) -> dict[str, str]:
    """Return the options with which a training may start so many times; none if the job has them already."""
    if job.chain > 1:
        return {"chain": str(start_count)} if start_count > job.chain else {}
    if job.consecutive:  # the tasks of an array, one after the other
        tasks = len(indices((job.options.array or "").partition("%")[0]) or ())
        return {"array": f"1-{start_count}%1"} if start_count > tasks else {}
    return {"max-restarts": str(start_count)} if start_count > job.max_restarts + 1 else {}


def _obstacle(shape: JobShape) -> str:
    """Return in words why the job can't start now even if nodes are free; "" if nothing is known."""
    if option := next((option for option in WAITING_OPTIONS if option in shape.job.resources), ""):
        return f"--{option} keeps it waiting"
    if shape.room.not_seen:
        return f"whether there is room is not known with {', '.join(shape.room.not_seen)}"
    moment = shape.moment
    starts_in_order = moment.settings.get("SchedulerType", "sched/backfill") != "sched/backfill"
    waiting = [job for job in moment.jobs if job.waits_for_nodes]
    if not any(shape.partition.name in job.partitions for job in waiting):
        return ""
    if starts_in_order:
        return "jobs wait there, and Slurm starts jobs in order here"
    mine = sum(job.user == os.getuid() for job in waiting)
    most = moment.scheduler_parameter("bf_max_job_user", 0)  # 0: as many as there are
    if 0 < most <= mine:
        return f"your waiting jobs are {mine}, and Slurm looks at {most} of each user (bf_max_job_user)"
    return ""


def _why_no_hole(shape: JobShape) -> str:
    """Return in words why a partition has no hole for the job: too few nodes, or for too short a time."""
    room, claim, now = shape.room, shape.claim, shape.moment.now
    if claim is None:
        lacking = "; ".join(f"{counted(len(names), 'node')}: {lack}" for lack, names in room.lacking.items())
        return f"{len(room.nodes)} of {counted(room.wanted, 'node')} with room now ({lacking})"
    when = f" at {clock(claim.at, now)}" if claim.at > now else " already" if claim.at < now else ""
    return f"nodes are free, and {claim.why}{when}"


def _preemption(shape: JobShape) -> str:
    """Return in words that jobs of other partitions may preempt the job, and its time to save; "" if not."""
    mode, settings = shape.partition.preempt, shape.moment.settings
    if settings.get("PreemptType") != "preempt/partition_prio" or mode in ("", "OFF"):
        return ""
    higher = [partition for partition in shape.moment.partitions if partition.tier > shape.partition.tier]
    if not higher:
        return ""
    # The flag send_user_signal is in the first of these settings until 22.05, in the second since then.
    flags = settings.get("SlurmctldParameters", "") + settings.get("PreemptParameters", "")
    grace_s, sends_signal = shape.partition.grace_s, "send_user_signal" in flags
    time_to_save = f"{grace_s} s are left to save" if grace_s else "no time is left to save"
    options = shape.job.directives
    may_requeue = "requeue" in options or ("no-requeue" not in options and settings.get("JobRequeue") == "1")
    then = "and Slurm starts it again" if may_requeue and mode.startswith("REQUEUE") else "and it ends then"
    time_to_save += ", after its signal" * (sends_signal and bool(grace_s))
    return f"partition {higher[0].name} may preempt it ({mode}): {time_to_save}, {then}"


def _in_any_partition(rows: Sequence[Prospect]) -> Iterator[Prospect]:
    """Yield a row for the job in all partitions with a bound, if there are several and no hole."""
    bounds = [row for row in rows if row.kind == "bound" and row.start]
    if len({row.partition for row in bounds}) > 1 and not any(row.kind == "hole" for row in rows):
        first = min(bounds, key=order)
        names = ",".join(dict.fromkeys(row.partition for row in bounds))
        values = dict(zip(first.options[::2], first.options[1::2], strict=True)) | {"--partition": names}
        options = tuple(word for pair in values.items() for word in pair)
        says = f"{first.says}; Slurm starts the job in the first of {names} that has room"
        argv = tuple(with_replaced_options(first.argv, options))
        yield replace(first, partition=names, options=options, argv=argv, says=says)


def _queue_notes(moment: ClusterMoment, rows: Sequence[Prospect]) -> Iterator[str]:
    """Yield notes about jobs that may take a hole first, and about the time that Slurm needs."""
    if with_holes := {row.partition for row in rows if row.kind == "hole"}:
        yield "Jobs of higher priority may take a hole first, and Slurm may need a minute to look"
        waiting = [job for job in moment.jobs if job.waits_for_nodes and with_holes & {*job.partitions}]
        if unplanned := sum(not job.planned_nodes for job in waiting):
            yield f"{counted(unplanned, 'waiting job')} without a planned start may take a hole first"
        if waiting and (depth := moment.scheduler_parameter("bf_max_job_test", 500)) <= len(waiting):
            yield f"Slurm looks at {depth} waiting jobs (bf_max_job_test), so yours may wait longer"
