"""Computes when each shape of a job would start, by holes, Slurm's plan and rough bounds.

Nothing is submitted: squeue and scontrol are asked, and for a few shapes `sbatch --test-only`.
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
from sbatchgen.jobs.starts.job_shapes import Ask, JobShape, JobShapes
from sbatchgen.jobs.starts.moment import LATE_S, ClusterMoment, QueuedJob
from sbatchgen.jobs.starts.needs import Pace
from sbatchgen.jobs.starts.prospect import Kind, Prospect, Prospects, clock, iso, order
from sbatchgen.jobs.starts.rough import ask_slurm
from sbatchgen.jobs.starts.waiting import plans_of_waiting_jobs

MOST_QUESTIONS = 4  # calls of `sbatch --test-only`, each of which holds a lock of the controller
SLOW_S = 1.0  # after a slower answer, there is no further call
NOT_TESTED = ("dependency", "hold")  # options that `sbatch --test-only` ignores
WAITS = ("begin", *NOT_TESTED)  # options that keep a job from starting now


def starts(
    ask: Ask,
    names: Sequence[str],
    moment: ClusterMoment,
    environment: Mapping[str, str],
    pace: Pace,
    *,
    fit: bool = False,
) -> Prospects:
    """Return when a job would start in each of these partitions, the soonest end first.

    `fit`: the training may be cut into pieces that fit the holes. Raises FitError if the cluster has none of
    these partitions.
    """
    return _Search(JobShapes(ask, moment, environment, pace), fit=fit).rows(names)


@final
class _Search:
    """The search for the starts of a job's shapes, which collects notes for the user."""

    def __init__(self, shapes: JobShapes, *, fit: bool) -> None:
        self._shapes, self._moment, self._fit = shapes, shapes.moment, fit
        self._notes: list[str] = []

    def rows(self, names: Sequence[str]) -> Prospects:
        """Return the rows for these partitions: holes, plans of waiting jobs, and bounds."""
        moment, environment = self._moment, self._shapes.environment
        shapes, hidden = self._shapes.in_partitions(names), "so no hole and no plan is shown"
        if moment.hidden:
            self._notes.append(f"Slurm hides jobs of other users here (PrivateData), {hidden}")
        listed = [row for shape in shapes if not moment.hidden for row in self._holes(shape)]
        whole = {(row.partition, row.nodes, row.time_s) for row in listed}
        listed += plans_of_waiting_jobs(self._shapes.original.resolved, moment, environment)
        listed += self._bounds([shape for shape in shapes if shape.key not in whole])
        listed += _anywhere(listed)
        self._notes += _queue_notes(moment, listed)
        kinds = {row.kind: shown_starts.comparison(environment, row.kind) for row in listed}
        self._notes += [f"{kind}: {comparison}" for kind, comparison in kinds.items() if comparison]
        listed.sort(key=order)
        return Prospects(time=iso(moment.now), rows=listed, out=self._shapes.out, notes=self._notes)

    def _holes(self, shape: JobShape) -> Iterator[Prospect]:
        """Yield the rows of at most two holes: one for all nodes of the shape, and a longer one for fewer."""
        if obstacle := _obstacle(shape):
            self._shapes.out[shape.partition.name] = obstacle
            return
        whole = shape.hole(shape.room.wanted)
        if whole:
            yield self._of_hole(shape, whole)
            if whole.time_s >= shape.time_s:
                return
        else:
            self._shapes.out[shape.partition.name] = _why_no_hole(shape)
        if "nodelist" in shape.job.resources or shape.job.programs:
            return
        fewer = shape.room.wanted // 2
        while fewer:
            part = shape.hole(fewer)
            longer = part and (not whole or part.time_s > whole.time_s)
            if part and longer and (smaller := self._shapes.changed(shape, nodes=str(fewer))):
                yield self._of_hole(smaller, part)
                return
            fewer //= 2

    def _of_hole(self, shape: JobShape, hole: Hole) -> Prospect:
        """Return the row of a shape that starts now in a hole."""
        moment, until, time_s = self._moment, hole.until, min(shape.time_s, hole.time_s)
        if time_s < shape.time_s:  # for a piece, or with --time-min, Slurm chooses a limit that fits the hole
            chooses = self._fit or shape.job.options.time_min
            name = "time-min" if chooses else "time"
            shape = replace(shape, more={**shape.more, name: str(Duration(time_s))})
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
        closed_s = (hole.again - begin).total_seconds() - time_s if hole.again else 0.0
        return self._row("hole", shape, begin, time_s, says, closed_s=max(0.0, closed_s))

    def _row(
        self, kind: Kind, shape: JobShape, begin: datetime, time_s: int, says: str, *, closed_s: float = 0.0
    ) -> Prospect:
        """Return the row of a shape; after its first piece, no other can start for `closed_s` seconds."""
        resources, needs = shape.job.resources, shape.needs_s
        number, trains_s = 1, time_s if needs is None else needs
        if needs is None and self._shapes.pace.per_s:
            says += f"; how long the training needs with {counted(resources.gpus_in_all, 'GPU')} is not known"
        if needs and needs > time_s:
            says += f"; a piece: {time_s / needs:.0%} of what the training needs"
            trains_s, cost_s = time_s, self._shapes.pace.restart_s or 0.0
            if self._fit and time_s > cost_s:
                number = math.ceil(needs / (time_s - cost_s))
                trains_s = needs + (number - 1) * cost_s + closed_s
                cost = f"{cost_s:.0f} s" if cost_s else "what no run has measured"
                says += f", which ends after {number} starts at the soonest; a start costs {cost}"
                shape = replace(shape, more={**shape.more, **_restart_options(shape.job, number)})
        options = tuple(word for name, value in shape.more.items() for word in (f"--{name}", value))
        command, used_s = self._shapes.original.rerun, max(time_s, (trains_s - closed_s) * (number > 1))
        return Prospect(
            kind=kind,
            partition=shape.partition.name,
            nodes=resources.nodes,
            gpus=resources.gpus_in_all,
            time_s=time_s,
            start=iso(begin),
            end=iso(begin + timedelta(seconds=trains_s)),
            gpu_hours=round(resources.gpus_in_all * used_s / 3600, 2),
            needs_s=needs,
            starts=number,
            options=options,
            argv=(*command[:1], "submit", *with_replaced_options(command, options)[2:]),
            says=says,
        )

    def _bounds(self, shapes: Sequence[JobShape]) -> Iterator[Prospect]:
        """Yield the rows of bounds, from `sbatch --test-only`, for shapes that fit no hole unchanged."""
        took, limit_s = self._moment.took_s, min(LATE_S, answer_limit_s())
        for number, shape in enumerate(shapes):
            if took > (SLOW_S if number else LATE_S):
                self._notes.append(f"Slurm took {took:.1f} s to answer, so it was asked for no further bound")
                return
            if number == MOST_QUESTIONS:
                rest = ", ".join(other.partition.name for other in shapes[number:])
                self._notes.append(f"Slurm was asked {MOST_QUESTIONS} times, so no bound is known for {rest}")
                return
            script, asked = render_request(shape.request).encode(), options_of_job(shape.job)
            began = time.monotonic()
            answer = ask_slurm(script, "job.slurm", (), asked, self._shapes.environment, timeout=limit_s)
            took = time.monotonic() - began
            if answer.start:
                begin = datetime.fromisoformat(answer.start).astimezone()
                preempts = [" ".join(warning.split()) for warning in answer.warnings if "reempt" in warning]
                says = "; ".join(["rough: ignores holes, and counts waiting jobs as whole nodes", *preempts])
                row = self._row("bound", shape, begin, shape.time_s, says)
                if unknown := self._ignored_by_slurm(shape, begin):
                    row = replace(row, start=None, end=None, says=f"its start is not known: {unknown}")
                yield row
            elif answer.refusals:
                self._shapes.out[shape.partition.name] = answer.refusals[0].means or answer.refusals[0].says

    def _ignored_by_slurm(self, shape: JobShape, begin: datetime) -> str:
        """Return in words why the job starts later than in Slurm's answer; "" if nothing is known."""
        if option := next((option for option in NOT_TESTED if option in shape.job.resources), ""):
            return f"--{option} keeps it waiting"
        soon = self._moment.now + timedelta(seconds=self._moment.delay_s)
        is_seen = not self._moment.hidden and not _obstacle(shape)
        claim = shape.claim if is_seen else None  # Slurm's answer ignores jobs that wait in other partitions
        why = claim.why if claim and begin < max(claim.at, soon) else ""
        ahead = next((job for job in self._moment.jobs if self._is_ahead(job, shape, begin)), None)
        why = why or (f"job {ahead.id} is planned there" if ahead else "")
        return f"Slurm's answer leaves out that {why}" if why else ""

    def _is_ahead(self, job: QueuedJob, shape: JobShape, begin: datetime) -> bool:
        """Return whether a job of other partitions is planned at the place and time of the shape."""
        lower = self._moment.partitions_below(shape.partition.tier)
        if shape.partition.name in job.partitions or lower.issuperset(job.partitions):
            return False  # Slurm's answer counts jobs of this partition; jobs of lower tiers come later
        if not (job.state == "PENDING" and job.planned and job.start and job.end):
            return False
        named = hosts(shape.job.resources.options.get("nodelist", ""))
        names = [*named] or [node.name for node in self._moment.nodes_of(shape.partition.name)]
        meets = begin < job.end and job.start < begin + timedelta(seconds=shape.time_s)
        return meets and len({*names} - {*job.planned}) < shape.room.wanted


def _restart_options(job: ResolvedJob, number: int) -> dict[str, str]:
    """Return the options with which a training starts `number` times; none if it may do so already."""
    if job.chain > 1:
        return {"chain": str(number)} if number > job.chain else {}
    if job.consecutive:  # the tasks of an array, one after the other
        tasks = len(indices((job.options.array or "").partition("%")[0]) or ())
        return {"array": f"1-{number}%1"} if number > tasks else {}
    return {"max-restarts": str(number)} if number > job.max_restarts + 1 else {}


def _obstacle(shape: JobShape) -> str:
    """Return in words why the job can't start now even if nodes are free; "" if nothing is known."""
    if option := next((option for option in WAITS if option in shape.job.resources), ""):
        return f"--{option} keeps it waiting"
    if shape.room.not_seen:
        return f"whether there is room is not known with {', '.join(shape.room.not_seen)}"
    moment = shape.moment
    in_order = moment.settings.get("SchedulerType", "sched/backfill") != "sched/backfill"
    waiting = [job for job in moment.jobs if job.waits_for_nodes]
    if not any(shape.partition.name in job.partitions for job in waiting):
        return ""
    if in_order:
        return "jobs wait there, and Slurm starts jobs in order here"
    mine, most = sum(job.user == os.getuid() for job in waiting), moment.scheduler("bf_max_job_user", 0)
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
    # Until 22.05 the flag is in the first setting, since then in the second
    flags = settings.get("SlurmctldParameters", "") + settings.get("PreemptParameters", "")
    grace, signal = shape.partition.grace_s, "send_user_signal" in flags
    left = f"{grace} s are left to save" if grace else "no time is left to save"
    options = shape.job.directives
    may_requeue = "requeue" in options or ("no-requeue" not in options and settings.get("JobRequeue") == "1")
    then = "and Slurm starts it again" if may_requeue and mode.startswith("REQUEUE") else "and it ends then"
    left += ", after its signal" * (signal and bool(grace))
    return f"partition {higher[0].name} may preempt it ({mode}): {left}, {then}"


def _anywhere(listed: Sequence[Prospect]) -> Iterator[Prospect]:
    """Yield a row for the job in all partitions with a bound, if there are several and no hole."""
    bounds = [row for row in listed if row.kind == "bound" and row.start]
    if len({row.partition for row in bounds}) > 1 and not any(row.kind == "hole" for row in listed):
        first = min(bounds, key=order)
        names = ",".join(dict.fromkeys(row.partition for row in bounds))
        named = dict(zip(first.options[::2], first.options[1::2], strict=True)) | {"--partition": names}
        options = tuple(word for pair in named.items() for word in pair)
        says = f"{first.says}; Slurm starts the job in the first of {names} that has room"
        argv = tuple(with_replaced_options(first.argv, options))
        yield replace(first, partition=names, options=options, argv=argv, says=says)


def _queue_notes(moment: ClusterMoment, listed: Sequence[Prospect]) -> Iterator[str]:
    """Yield notes about jobs that may take a hole first, and about the time that Slurm needs."""
    if any(row.kind == "hole" for row in listed):
        yield "Jobs of higher priority may take a hole first, and Slurm may need a minute to look"
        with_holes = {row.partition for row in listed if row.kind == "hole"}
        waiting = [job for job in moment.jobs if job.waits_for_nodes and with_holes & {*job.partitions}]
        if unplanned := sum(not job.planned for job in waiting):
            yield f"{counted(unplanned, 'waiting job')} without a planned start may take a hole first"
        if waiting and (depth := moment.scheduler("bf_max_job_test", 500)) <= len(waiting):
            yield f"Slurm looks at {depth} waiting jobs (bf_max_job_test), so yours may wait longer"
