"""Computes when each shape of a job would start, for `when`. Nothing is submitted.

A shape that fits into a hole in the queue can start now. For a waiting job, Slurm has a plan. For other
shapes, `sbatch --test-only` gives a rough bound, of which `when` asks a few.
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
from sbatchgen.jobs.starts.prospect import Kind, Prospect, Prospects, clock_text, iso_text, sort_key
from sbatchgen.jobs.starts.rough import ask_slurm
from sbatchgen.jobs.starts.waiting import plans_of_waiting_jobs

MAX_CALLS = 4  # the most calls of `sbatch --test-only`, because each holds a lock of the controller
SLOW_S = 1.0  # after an answer that took longer, there is no further call
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

    `pace` says how fast the training is. With `fit`, the training may be cut into pieces, so that each piece
    fits into a hole. Raises FitError if the cluster has none of these partitions.
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
        rows = [row for shape in shapes if not moment.hides_jobs for row in self._rows_of_holes(shape)]
        fitting_keys = {(row.partition, row.nodes, row.time_s) for row in rows}  # see `JobShape.key`
        rows += plans_of_waiting_jobs(self._shapes.original.resolved, moment, environment)
        rows += self._rows_of_bounds([shape for shape in shapes if shape.key not in fitting_keys])
        rows += _row_of_all_partitions(rows)
        self._notes += _queue_notes(moment, rows)
        comparisons = {row.kind: shown_starts.comparison(environment, row.kind) for row in rows}
        self._notes += [f"{kind}: {comparison}" for kind, comparison in comparisons.items() if comparison]
        rows.sort(key=sort_key)
        return Prospects(
            time=iso_text(moment.now), rows=rows, out=self._shapes.why_excluded, notes=self._notes
        )

    def _rows_of_holes(self, shape: JobShape) -> Iterator[Prospect]:
        """Yield a row for the hole with all nodes of the shape, and for a longer hole with fewer nodes."""
        if obstacle := _why_not_now(shape):
            self._shapes.why_excluded[shape.partition.name] = obstacle
            return
        hole = shape.hole(shape.room.wanted)
        if hole:
            yield self._row_of_hole(shape, hole)
            if hole.time_s >= shape.time_s:
                return
        else:
            self._shapes.why_excluded[shape.partition.name] = _why_no_hole(shape)
        if "nodelist" in shape.job.resources or shape.job.programs:
            return  # the number of the job's nodes can't be changed
        node_count = shape.room.wanted // 2
        while node_count:
            smaller_hole = shape.hole(node_count)
            is_longer = smaller_hole and (not hole or smaller_hole.time_s > hole.time_s)
            smaller_shape = self._shapes.with_options(shape, nodes=str(node_count)) if is_longer else None
            if smaller_hole and smaller_shape:
                yield self._row_of_hole(smaller_shape, smaller_hole)
                return
            node_count //= 2

    def _row_of_hole(self, shape: JobShape, hole: Hole) -> Prospect:
        """Return the row of a shape that starts now in a hole."""
        moment, claim, time_s = self._moment, hole.claim, min(shape.time_s, hole.time_s)
        if time_s < shape.time_s:
            # With --time-min, Slurm itself shortens the time limit so that the job fits into the hole.
            slurm_shortens = self._may_cut or shape.job.options.time_min
            option = "time-min" if slurm_shortens else "time"
            shape = replace(shape, added_options={**shape.added_options, option: str(Duration(time_s))})
        count = len(hole.nodes)
        says = f"{counted(count, 'node')} of {shape.partition.name} {'is' if count == 1 else 'are'} free"
        if claim:
            says += f" until {clock_text(claim.begins_at, moment.now)}, when {claim.why}"
        if hole.boot_s:
            says += f"; nodes that are off take up to {hole.boot_s} s to be switched on"
        if "array" in shape.job.resources:
            says += "; for one task of the array"
        if preemption := _preemption_in_words(shape):
            says += f"; {preemption}"
        begin = moment.now + timedelta(seconds=hole.boot_s)
        # A reservation that ends the hole takes all nodes, so the next start must wait for its end.
        gap_s = (hole.free_again - begin).total_seconds() - time_s if hole.free_again else 0.0
        return self._prospect("hole", shape, begin, time_s, says, gap_s=max(0.0, gap_s))

    def _prospect(
        self, kind: Kind, shape: JobShape, begin: datetime, time_s: int, says: str, *, gap_s: float = 0.0
    ) -> Prospect:
        """Return the row of a shape that starts at `begin` with the time limit `time_s`.

        If the training may be cut into pieces, no piece can start in the `gap_s` seconds after the first.
        """
        resources, needs_s = shape.job.resources, shape.needs_s
        start_count = 1
        ends_after_s = time_s if needs_s is None else needs_s
        if needs_s is None and self._shapes.pace.samples_per_s:
            says += f"; how long the training needs with {counted(resources.gpus_in_all, 'GPU')} is not known"
        if needs_s and needs_s > time_s:
            says += f"; a piece: {time_s / needs_s:.0%} of what the training needs"
            ends_after_s, restart_s = time_s, self._shapes.pace.restart_s or 0.0
            if self._may_cut and time_s > restart_s:
                start_count = math.ceil(needs_s / (time_s - restart_s))
                ends_after_s = needs_s + (start_count - 1) * restart_s + gap_s
                cost = f"{restart_s:.0f} s" if restart_s else "what no run has measured"
                says += f", which ends after {start_count} starts at the soonest; a start costs {cost}"
                added_options = {**shape.added_options, **_restart_options(shape.job, start_count)}
                shape = replace(shape, added_options=added_options)
        options = tuple(word for name, value in shape.added_options.items() for word in (f"--{name}", value))
        command = self._shapes.original.rerun
        seconds_with_gpus = time_s if start_count == 1 else max(time_s, ends_after_s - gap_s)
        return Prospect(
            kind=kind,
            partition=shape.partition.name,
            nodes=resources.nodes,
            gpus=resources.gpus_in_all,
            time_s=time_s,
            start=iso_text(begin),
            end=iso_text(begin + timedelta(seconds=ends_after_s)),
            gpu_hours=round(resources.gpus_in_all * seconds_with_gpus / 3600, 2),
            needs_s=needs_s,
            starts=start_count,
            options=options,
            argv=(*command[:1], "submit", *with_replaced_options(command, options)[2:]),
            says=says,
        )

    def _rows_of_bounds(self, shapes: Sequence[JobShape]) -> Iterator[Prospect]:
        """Yield rows with the bound that `sbatch --test-only` gives, for shapes that fit into no hole."""
        took_s, timeout_s = self._moment.took_s, min(LATE_S, answer_limit_s())
        for calls, shape in enumerate(shapes):
            if took_s > (SLOW_S if calls else LATE_S):
                what = f"Slurm took {took_s:.1f} s to answer, so it was asked for no further bound"
                self._notes.append(what)
                return
            if calls == MAX_CALLS:
                names = ", ".join(remaining.partition.name for remaining in shapes[calls:])
                self._notes.append(f"Slurm was asked {MAX_CALLS} times, so no bound is known for {names}")
                return
            script, option_sources = render_request(shape.request).encode(), options_of_job(shape.job)
            environment, began = self._shapes.environment, time.monotonic()
            answer = ask_slurm(script, "job.slurm", (), option_sources, environment, timeout=timeout_s)
            took_s = time.monotonic() - began
            if answer.start:
                begin = datetime.fromisoformat(answer.start).astimezone()
                preempts = [" ".join(warning.split()) for warning in answer.warnings if "reempt" in warning]
                says = "; ".join(["rough: ignores holes, and counts waiting jobs as whole nodes", *preempts])
                row = self._prospect("bound", shape, begin, shape.time_s, says)
                if why_later := self._why_later(shape, begin):
                    row = replace(row, start=None, end=None, says=f"its start is not known: {why_later}")
                yield row
            elif answer.refusals:
                refusal = answer.refusals[0]
                self._shapes.why_excluded[shape.partition.name] = refusal.means or refusal.says

    def _why_later(self, shape: JobShape, begin: datetime) -> str:
        """Return in words why a job starts later than at `begin`, which `sbatch --test-only` has printed.

        Return "" if no reason is known. `sbatch --test-only` ignores some options, and jobs that are only in
        other partitions, although these may be planned on the same nodes.
        """
        if option := next((option for option in UNTESTED_OPTIONS if option in shape.job.resources), ""):
            return f"--{option} keeps it waiting"
        next_look = self._moment.now + timedelta(seconds=self._moment.delay_s)
        can_see_claims = not self._moment.hides_jobs and not _why_not_now(shape)
        claim = shape.claim if can_see_claims else None
        why = claim.why if claim and begin < max(claim.begins_at, next_look) else ""
        blocking = (job for job in self._moment.jobs if self._is_planned_there(job, shape, begin))
        if not why and (job := next(blocking, None)):
            why = f"job {job.id} is planned there"
        return f"Slurm's answer leaves out that {why}" if why else ""

    def _is_planned_there(self, job: QueuedJob, shape: JobShape, begin: datetime) -> bool:
        """Return whether a job of other partitions is planned on nodes that the shape needs from `begin`."""
        lower_partitions = self._moment.partitions_below(shape.partition.tier)
        if shape.partition.name in job.partitions or lower_partitions.issuperset(job.partitions):
            return False  # Slurm's answer counts jobs of this partition, and jobs of lower tiers start later
        if not (job.state == "PENDING" and job.planned_nodes and job.start and job.end):
            return False
        named = hosts(shape.job.resources.options.get("nodelist", ""))
        possible_nodes = [*named] or [node.name for node in self._moment.nodes_of(shape.partition.name)]
        overlaps = begin < job.end and job.start < begin + timedelta(seconds=shape.time_s)
        remaining_nodes = {*possible_nodes} - {*job.planned_nodes}
        return overlaps and len(remaining_nodes) < shape.room.wanted


def _restart_options(job: ResolvedJob, start_count: int) -> dict[str, str]:
    """Return the options with which a training may start `start_count` times.

    Return {} if the job may already start so many times.
    """
    if job.chain > 1:
        return {"chain": str(start_count)} if start_count > job.chain else {}
    if job.consecutive:  # an array whose tasks continue one training, one after the other
        tasks = len(indices((job.options.array or "").partition("%")[0]) or ())
        return {"array": f"1-{start_count}%1"} if start_count > tasks else {}
    return {"max-restarts": str(start_count)} if start_count > job.max_restarts + 1 else {}


def _why_not_now(shape: JobShape) -> str:
    """Return in words why a job can't start now, or may not, even if nodes are free; "" without a reason."""
    if option := next((option for option in WAITING_OPTIONS if option in shape.job.resources), ""):
        return f"--{option} keeps it waiting"
    if shape.room.not_seen:
        return f"whether there is room is not known with {', '.join(shape.room.not_seen)}"
    moment = shape.moment
    waiting_jobs = [job for job in moment.jobs if job.waits_for_nodes]
    if not any(shape.partition.name in job.partitions for job in waiting_jobs):
        return ""
    if moment.settings.get("SchedulerType", "sched/backfill") != "sched/backfill":
        return "jobs wait there, and Slurm starts jobs in order here"
    own_count = sum(job.user == os.getuid() for job in waiting_jobs)
    limit = moment.scheduler_parameter("bf_max_job_user", 0)  # 0 stands for no limit
    if 0 < limit <= own_count:
        return f"your waiting jobs are {own_count}, and Slurm looks at {limit} of each user (bf_max_job_user)"
    return ""


def _why_no_hole(shape: JobShape) -> str:
    """Return in words why a partition has no hole for a job: too few nodes are free, or not long enough."""
    room, claim, now = shape.room, shape.claim, shape.moment.now
    if claim is None:
        lacking = "; ".join(f"{counted(len(names), 'node')}: {lack}" for lack, names in room.lacking.items())
        return f"{len(room.nodes)} of {counted(room.wanted, 'node')} with room now ({lacking})"
    when = ""
    if claim.begins_at != now:
        when = f" at {clock_text(claim.begins_at, now)}" if claim.begins_at > now else " already"
    return f"nodes are free, and {claim.why}{when}"


def _preemption_in_words(shape: JobShape) -> str:
    """Return in words which partition's jobs may preempt the job, and how long it then has to save.

    Return "" if no jobs of other partitions may preempt the job.
    """
    mode, settings = shape.partition.preempt, shape.moment.settings
    if settings.get("PreemptType") != "preempt/partition_prio" or mode in ("", "OFF"):
        return ""
    higher = [partition for partition in shape.moment.partitions if partition.tier > shape.partition.tier]
    if not higher:
        return ""
    # The flag send_user_signal is in the first setting until Slurm 22.05, and in the second since then.
    flags = settings.get("SlurmctldParameters", "") + settings.get("PreemptParameters", "")
    grace_s, sends_signal = shape.partition.grace_s, "send_user_signal" in flags
    time_to_save = f"{grace_s} s are left to save" if grace_s else "no time is left to save"
    options = shape.job.directives
    may_requeue = "requeue" in options or ("no-requeue" not in options and settings.get("JobRequeue") == "1")
    then = "and Slurm starts it again" if may_requeue and mode.startswith("REQUEUE") else "and it ends then"
    time_to_save += ", after its signal" * (sends_signal and bool(grace_s))
    return f"partition {higher[0].name} may preempt it ({mode}): {time_to_save}, {then}"


def _row_of_all_partitions(rows: Sequence[Prospect]) -> Iterator[Prospect]:
    """Yield a row for the job with all partitions that have a bound, as in --partition=a,b.

    Slurm starts such a job in the first partition that has room. There is no row if a hole is free, or if
    only one partition has a bound.
    """
    bounds = [row for row in rows if row.kind == "bound" and row.start]
    if len({row.partition for row in bounds}) > 1 and not any(row.kind == "hole" for row in rows):
        first = min(bounds, key=sort_key)
        names = ",".join(dict.fromkeys(row.partition for row in bounds))
        # The options are words in pairs: --time 01:00:00 --qos long
        values = dict(zip(first.options[::2], first.options[1::2], strict=True)) | {"--partition": names}
        options = tuple(word for pair in values.items() for word in pair)
        says = f"{first.says}; Slurm starts the job in the first of {names} that has room"
        argv = tuple(with_replaced_options(first.argv, options))
        yield replace(first, partition=names, options=options, argv=argv, says=says)


def _queue_notes(moment: ClusterMoment, rows: Sequence[Prospect]) -> Iterator[str]:
    """Yield notes on why a job may not get its hole: other jobs may take it, or Slurm may look too late."""
    if partitions := {row.partition for row in rows if row.kind == "hole"}:
        yield "Jobs of higher priority may take a hole first, and Slurm may need a minute to look"
        rivals = [job for job in moment.jobs if job.waits_for_nodes and partitions & {*job.partitions}]
        if unplanned := sum(not job.planned_nodes for job in rivals):
            yield f"{counted(unplanned, 'waiting job')} without a planned start may take a hole first"
        if rivals and (limit := moment.scheduler_parameter("bf_max_job_test", 500)) <= len(rivals):
            yield f"Slurm looks at {limit} waiting jobs (bf_max_job_test), so yours may wait longer"
