"""Shapes of a job, and when each would start: holes, Slurm's plan, and rough bounds; the soonest end first.

Nothing is submitted: squeue and scontrol are read, and `sbatch --test-only` is asked for few shapes.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from sbatchgen.base.errors import FitError, SbatchgenError
from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Duration
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.choice import closed
from sbatchgen.jobs.resolved.request import Request, typed
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runs import shown_starts
from sbatchgen.jobs.slurm.partition import SlurmPartition
from sbatchgen.jobs.slurm.refusal import asked_by
from sbatchgen.jobs.starts.account_limits import held_back, other_qos, read_limits
from sbatchgen.jobs.starts.holes import Claim, Hole, hole, taken
from sbatchgen.jobs.starts.moment import ClusterMoment
from sbatchgen.jobs.starts.needs import MARGIN, Pace
from sbatchgen.jobs.starts.prospect import Kind, Prospect, Prospects, clock, iso, order
from sbatchgen.jobs.starts.room import Availability, rooms
from sbatchgen.jobs.starts.rough import ask_slurm
from sbatchgen.jobs.starts.waiting import plans

Fitted = Callable[[Mapping[str, str]], tuple[Request, Mapping[str, str], float | None]]
Ask = Callable[[Mapping[str, str]], Request]  # returns the request of the job with further options
MOST_QUESTIONS = 4  # of `sbatch --test-only`, each of which holds a lock of the controller
SLOW_S, LATE_S = 1.0, 10.0  # an answer after which none is asked again, and how long one is waited for
WAITS = ("begin", "dependency", "hold")  # options that keep a job from starting now


class _Shape(NamedTuple):
    """A job in a partition, as it fits there."""

    request: Request
    partition: SlurmPartition
    room: Availability
    more: Mapping[str, str]  # the options that make it, by their names
    run: tuple[str, ...]  # the command that renders it as it was asked for
    needs_s: float | None  # what the training still needs with these GPUs
    restart_s: float | None  # what another start costs; None where the training is not cut into pieces

    @property
    def job(self) -> ResolvedJob:
        """The job."""
        return self.request.resolved

    @property
    def time_s(self) -> int:
        """Its time limit, or what the partition gives it."""
        asked = self.job.resources.time or self.partition.time_default_s or self.partition.time_max_s
        return asked or 365 * 86400


def starts(
    ask: Ask,
    names: Sequence[str],
    moment: ClusterMoment,
    environment: Mapping[str, str],
    pace: Pace,
    *,
    fit: bool = False,
) -> Prospects:
    """Return when a job would start, in each of these partitions; with `fit` also cut into pieces.

    Raises FitError: none of them is a partition of this cluster.
    """
    out: dict[str, str] = {}
    notes: list[str] = []
    shapes = [*_shapes(ask, names, moment, out, pace, fit=fit)]
    if not shapes and not out:
        known = ", ".join(each.name for each in moment.partitions)
        fix = f"known: {known}" if known else "Slurm shows you none: ask the cluster's support"
        raise FitError.of(f"this cluster has no partition {' or '.join(dict.fromkeys(names))}", fix=fix)
    limits = read_limits(moment.settings, environment)
    listed: list[Prospect] = []
    if moment.hidden:
        notes.append("Slurm hides jobs of other users here (PrivateData), so no hole and no plan is shown")
    fitted = partial(_fitted, ask, pace=pace)
    allowed = [_allowed(shape, fitted, limits, moment, environment=environment, out=out) for shape in shapes]
    shapes = [shape for shape in allowed if shape]
    for shape in shapes if not moment.hidden else ():
        listed += _holes(shape, fitted, moment, out)
    listed += plans(ask({}).resolved, moment, environment)
    full = {(row.partition, row.nodes, row.time_s) for row in listed if row.kind == "hole"}
    asked = [
        each for each in shapes if (each.partition.name, each.job.resources.nodes, each.time_s) not in full
    ]
    listed += _bounds(asked, environment, out, notes)
    listed += _anywhere(listed)
    notes += _queue_notes(moment, listed)
    kinds = {row.kind: shown_starts.comparison(environment, row.kind) for row in listed}
    notes += [f"{kind}: {so_far}" for kind, so_far in kinds.items() if so_far]
    listed.sort(key=order)
    return Prospects(
        time=iso(moment.now),
        rows=listed,
        out=out,
        notes=notes,
    )


def _shapes(
    ask: Ask, names: Sequence[str], moment: ClusterMoment, out: dict[str, str], pace: Pace, *, fit: bool
) -> Iterator[_Shape]:
    """Yield the job in each partition where it can run; `out` gets why it can't in others."""
    by_name = {each.name: each for each in moment.partitions}
    asked = ask({})
    plain = asked.resolved
    for name in dict.fromkeys(names):
        partition = by_name.get(name)
        if partition is None:
            continue
        is_asked = name in (plain.partition_name, plain.directives.get("partition"))
        more: Mapping[str, str] = {} if is_asked or not plain.partition_name else {"partition": name}
        request, more, needs_s = _fitted(ask, more, pace)
        job = request.resolved
        why = [
            finding.why_not or finding.problem.what for finding in check(job) if finding.severity == "error"
        ]
        if partition.state != "up":
            why.insert(0, f"the partition is {partition.state}")
        elif not partition.nodes:
            why.insert(0, "the partition has no nodes")
        elif more.get("partition"):
            why += closed(job)
        limit = job.resources.time
        if limit and partition.time_max_s is not None and limit > partition.time_max_s:
            why.append(f"its time limit is {Duration(partition.time_max_s)}")
        if why:
            out[name] = why[0]
            continue
        (room,) = rooms(job.resources, moment.nodes, moment.gpus, [partition], moment.settings)
        restart_s = (pace.restart_s or 0.0) if fit else None
        yield _Shape(request, partition, room, more, asked.rerun, needs_s, restart_s)


def _fitted(ask: Ask, more: Mapping[str, str], pace: Pace) -> tuple[Request, Mapping[str, str], float | None]:
    """Return the request with further options, with the time limit that its training needs, and that need."""
    request = ask(more)
    needs_s = pace.needs(request.resolved.resources.gpus_in_all)
    if needs_s is not None:
        limit = Duration(max(1, math.ceil(needs_s * MARGIN / 60)) * 60)
        more = {**more, "time": str(limit)}
        request = ask(more)
    return request, more, needs_s


def _allowed(
    shape: _Shape,
    fitted: Fitted,
    limits: str,
    moment: ClusterMoment,
    *,
    environment: Mapping[str, str],
    out: dict[str, str],
) -> _Shape | None:
    """Return the job, in another QOS where a limit holds it back; None where it must wait for limits."""

    def held(*qos: str) -> str:
        return held_back(limits, shape.job.resources, shape.time_s, [*qos, shape.partition.own_qos])

    asked = _qos(shape.job, moment)
    if not (why := held(*asked)):
        return shape
    out[shape.partition.name] = why
    others = other_qos(asked, moment.settings.get("ClusterName", ""), environment)
    other = next((name for name in others if not held(name)), None)
    return _changed(shape, fitted, qos=other) if other else None


def _qos(job: ResolvedJob, moment: ClusterMoment) -> list[str]:
    """Return the QOS whose limits hold: the job's own, or those of the user's jobs in the queue."""
    if job.options.qos:
        return [str(job.options.qos)]
    return [each.qos for each in moment.jobs if each.user == os.getuid() and each.qos] or ["normal"]


def _holes(shape: _Shape, fitted: Fitted, moment: ClusterMoment, out: dict[str, str]) -> Iterator[Prospect]:
    """Yield the holes that the job fits, as it is asked for, shorter, and with fewer nodes."""
    resources, name = shape.job.resources, shape.partition.name
    if held := _held(shape, moment):
        out[name] = held
        return
    next_taken = taken(moment, resources.options.get("reservation", ""))
    wanted, limit = shape.room.wanted, shape.time_s
    here = hole(moment, shape.room.nodes, next_taken, wanted)
    if here:
        yield _of_hole(shape, moment, here, min(limit, here.time_s))
    else:
        out[name] = _why_none(shape, moment, next_taken)
    fewer = wanted // 2
    if (here and here.time_s >= limit) or "nodelist" in resources or shape.job.programs:
        return
    while fewer:
        part = hole(moment, shape.room.nodes, next_taken, fewer)
        if (
            part
            and (not here or part.time_s > here.time_s)
            and (smaller := _changed(shape, fitted, nodes=str(fewer)))
        ):
            yield _of_hole(smaller, moment, part, min(limit, part.time_s))
            return
        fewer //= 2


def _held(shape: _Shape, moment: ClusterMoment) -> str:
    """Return what keeps the job from starting now, whatever is free."""
    if option := next((option for option in WAITS if option in shape.job.resources), ""):
        return f"--{option} keeps it waiting"
    in_order = moment.settings.get("SchedulerType", "sched/backfill") != "sched/backfill"
    here = (each for each in moment.jobs if each.waits_for_nodes and shape.partition.name in each.partitions)
    return "jobs wait there, and Slurm starts jobs in order here" if in_order and any(here) else ""


def _changed(shape: _Shape, fitted: Fitted, **options: str) -> _Shape | None:
    """Return the job with other options, as fewer nodes; None where it can't have them."""
    kept = {name: value for name, value in shape.more.items() if name in ("partition", "qos")}
    try:
        request, more, needs_s = fitted({**kept, **options})
    except SbatchgenError:
        return None
    fails = any(finding.severity == "error" for finding in check(request.resolved))
    return None if fails else shape._replace(request=request, more=more, needs_s=needs_s)


def _of_hole(shape: _Shape, moment: ClusterMoment, here: Hole, time_s: int) -> Prospect:
    name, until = shape.partition.name, here.until
    if time_s < shape.time_s and shape.restart_s is not None:  # Slurm chooses a limit that the hole has
        shape = shape._replace(more={**shape.more, "time-min": str(Duration(time_s))})
    elif time_s < shape.time_s:
        shape = shape._replace(more={**shape.more, "time": str(Duration(time_s))})
    says = f"{counted(len(here.nodes), 'node')} of {name} {'is' if len(here.nodes) == 1 else 'are'} free"
    if until:
        says += f" until {clock(until.at, moment.now)}, when {until.why}"
    if here.boot_s:
        says += f"; nodes that are off take up to {here.boot_s} s to be switched on"
    if "array" in shape.job.resources:
        says += "; for one task of the array"
    if shape.room.not_seen:
        says += f"; not looked at: {', '.join(shape.room.not_seen)}"
    if preempt := _preemption(shape, moment):
        says += f"; {preempt}"
    begin = moment.now + timedelta(seconds=here.boot_s)
    return _row("hole", shape, begin, time_s, says)


def _row(kind: Kind, shape: _Shape, begin: datetime, time_s: int, says: str) -> Prospect:
    resources, needs = shape.job.resources, shape.needs_s
    number, trains_s = 1, time_s if needs is None else needs
    if needs and needs > time_s:
        says += f"; a piece: {time_s / needs:.0%} of what the training needs"
        trains_s = time_s
        if shape.restart_s is not None and time_s > shape.restart_s:
            number = math.ceil(needs / (time_s - shape.restart_s))
            trains_s = needs + (number - 1) * shape.restart_s
            cost = f"{shape.restart_s:.0f} s" if shape.restart_s else "what no run has measured"
            says += f", which ends after {number} starts at the soonest; a start costs {cost}"
            if number > shape.job.max_restarts + 1:
                shape = shape._replace(more={**shape.more, "max-restarts": str(number)})
    options = tuple(word for name, value in shape.more.items() for word in (f"--{name}", value))
    return Prospect(
        kind=kind,
        partition=shape.partition.name,
        nodes=resources.nodes,
        gpus=resources.gpus_in_all,
        time_s=time_s,
        start=iso(begin),
        end=iso(begin + timedelta(seconds=trains_s)),
        gpu_hours=round(resources.gpus_in_all * max(time_s, trains_s * (number > 1)) / 3600, 2),
        needs_s=needs,
        starts=number,
        options=options,
        argv=(*shape.run[:1], "submit", *typed(shape.run, options)[2:]),
        says=says,
    )


def _why_none(shape: _Shape, moment: ClusterMoment, next_taken: Mapping[str, Claim]) -> str:
    """Return why no node of a partition is free for the job, or not for long enough."""
    room = shape.room
    if not room.starts:
        each = (f"{counted(len(names), 'node')}: {what}" for what, names in room.lacking.items())
        return f"{len(room.nodes)} of {counted(room.wanted, 'node')} with room now ({'; '.join(each)})"
    soon = min((next_taken[name] for name in room.nodes if name in next_taken), key=lambda each: each.at)
    when = f"at {clock(soon.at, moment.now)}" if soon.at > moment.now else "already"
    return f"nodes are free, and {soon.why} {when}"


def _preemption(shape: _Shape, moment: ClusterMoment) -> str:
    """Return whether jobs of other partitions may end the job, and what is left to save."""
    mode, settings = shape.partition.preempt, moment.settings
    if settings.get("PreemptType") != "preempt/partition_prio" or mode in ("", "OFF"):
        return ""
    higher = [each for each in moment.partitions if each.tier > shape.partition.tier]
    if not higher:
        return ""
    grace, signal = shape.partition.grace_s, "send_user_signal" in settings.get("PreemptParameters", "")
    left = f"{grace} s are left to save" if grace else "no time is left to save"
    options = shape.job.directives
    again = "requeue" in options or ("no-requeue" not in options and settings.get("JobRequeue") == "1")
    then = "and Slurm starts it again" if again and mode.startswith("REQUEUE") else "and it ends then"
    left += ", after its signal" * (signal and bool(grace))
    return f"partition {higher[0].name} may preempt it ({mode}): {left}, {then}"


def _bounds(
    shapes: Sequence[_Shape], environment: Mapping[str, str], out: dict[str, str], notes: list[str]
) -> Iterator[Prospect]:
    """Yield what `sbatch --test-only` says of shapes that fit no hole as they are."""
    for number, shape in enumerate(shapes):
        if number == MOST_QUESTIONS:
            rest = ", ".join(each.partition.name for each in shapes[number:])
            notes.append(f"Slurm was asked {MOST_QUESTIONS} times, so no bound is known for {rest}")
            return
        script = render_request(shape.request).encode()
        began = time.monotonic()
        asked = asked_by(shape.job)
        answer = ask_slurm(script, "job.slurm", (), asked, environment, timeout=LATE_S)
        took, name = time.monotonic() - began, shape.partition.name
        if answer.start:
            begin = datetime.fromisoformat(answer.start).astimezone()
            preempts = [" ".join(each.split()) for each in answer.warnings if "reempt" in each]
            says = "; ".join(["rough: ignores holes, and counts waiting jobs as whole nodes", *preempts])
            yield _row("bound", shape, begin, shape.time_s, says)
        elif answer.refusals:
            out[name] = answer.refusals[0].means or answer.refusals[0].says
        if took > SLOW_S and number + 1 < len(shapes):
            notes.append(f"Slurm took {took:.1f} s to answer, so it was asked for no further bound")
            return


def _anywhere(listed: Sequence[Prospect]) -> Iterator[Prospect]:
    """Yield the job in all partitions that have a bound together, where none has a hole."""
    bounds = [row for row in listed if row.kind == "bound" and row.start]
    if len({row.partition for row in bounds}) > 1 and not any(row.kind == "hole" for row in listed):
        first = min(bounds, key=order)
        names = ",".join(dict.fromkeys(row.partition for row in bounds))
        words = [*zip(first.options[::2], first.options[1::2], strict=True)]
        options = [word for pair in words if pair[0] != "--partition" for word in pair]
        options += ["--partition", names]
        says = f"{first.says}; Slurm starts the job in the first of {names} that has room"
        argv = tuple(typed(first.argv, options))
        yield replace(first, partition=names, options=tuple(options), argv=argv, says=says)


def _queue_notes(moment: ClusterMoment, listed: Sequence[Prospect]) -> Iterator[str]:
    """Yield what holes don't know."""
    if any(row.kind == "hole" for row in listed):
        yield "Jobs of higher priority may take a hole first, and Slurm may need a minute to look"
        where = {row.partition for row in listed if row.kind == "hole"}
        waiting = [each for each in moment.jobs if each.waits_for_nodes and where & {*each.partitions}]
        if unplanned := sum(not each.planned for each in waiting):
            yield f"{counted(unplanned, 'waiting job')} without a planned start may take a hole first"
