"""Holes in the queue: nodes that are free now, and when Slurm wants each of them for something else.

Slurm's plan (backfill) has whole nodes. Of an array, squeue shows the plan of one task, and hides those of
others, which may start sooner (seen on 22.05). Jobs without a plan hold no nodes for themselves. Slurm plans
in turns: a node that became free since goes to a job that waits longer and fits there, whatever its plan is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm.fields import time
from sbatchgen.jobs.slurm.node import SlurmNode
from sbatchgen.jobs.starts.moment import ClusterMoment, QueuedJob

FOREVER = timedelta(days=3650)
TURN_S = 60  # how long Slurm may look at the jobs of a queue, from the first to the last
LEAST_S = 300  # a shorter hole is of no use to a training


@frozen(kw_only=True)
class Claim:
    """When a node is next taken, and by what."""

    at: datetime
    why: str
    over: datetime | None = None  # when it ends: of a reservation
    rank: tuple[int, ...] = ()  # of the job that is planned there; jobs before it may come first


@frozen(kw_only=True)
class Hole:
    """Nodes that are free now, and for how long all of them are."""

    nodes: tuple[str, ...]
    time_s: int  # the longest limit with which a job starts there now
    until: Claim | None  # None if nothing is known to take them
    boot_s: int  # how long it takes to switch on what is off
    again: datetime | None = None  # before which no other job starts on the nodes with room, if that is known


def taken(moment: ClusterMoment, tier: int = 0, reservation: str = "") -> dict[str, Claim]:
    """Return when nodes are next taken, from a job in a partition of this tier, or in a reservation."""
    claims: dict[str, list[Claim]] = {}
    for claim, names in _claims(moment, tier, reservation):
        for name in names:
            claims.setdefault(name, []).append(claim)
    used = {name for job in moment.jobs for name in job.on}
    idle = [
        (node, time(node.last_busy) or datetime.min.replace(tzinfo=moment.now.tzinfo))
        for node in moment.nodes
        if node.state == "IDLE" and node.name not in used
    ]
    for job in _not_looked_at(moment, tier) if idle else ():
        for name in _nodes_for(job, idle, claims, moment.now):
            claim = Claim(at=moment.now, why=f"job {job.id}, which waits longer, fits there")
            claims.setdefault(name, []).append(claim)
    return {name: min(each, key=attrgetter("at")) for name, each in claims.items()}


def _not_looked_at(moment: ClusterMoment, tier: int) -> list[QueuedJob]:
    """Return jobs that may start before Slurm plans again, the first one first.

    Slurm does not look at each job of a long queue: those that it has not looked at for long are left out.
    """
    newest = max((job.looked for job in moment.jobs if job.looked), default=moment.now)
    long_ago = newest - timedelta(seconds=moment.delay_s + TURN_S)
    lower = moment.below(tier)
    waiting = (job for job in moment.jobs if job.waits_for_nodes and job.tasks == 1)
    may = (job for job in waiting if not (job.partitions and lower.issuperset(job.partitions)))
    looked = (job for job in may if (at := job.looked or job.submitted) and at > long_ago)
    return sorted(looked, key=attrgetter("rank"))


def _nodes_for(
    job: QueuedJob,
    idle: Sequence[tuple[SlurmNode, datetime]],
    claims: Mapping[str, Sequence[Claim]],
    now: datetime,
) -> list[str]:
    """Return the nodes that a job would get now, if one became free since Slurm looked at the job."""
    is_new = job.looked is None or any(freed >= job.looked for _, freed in idle)
    if job.limit_s is None or job.nodes > len(idle) or not is_new:
        return []
    ends, rank, partitions = now + timedelta(seconds=job.limit_s), job.rank, {*job.partitions}
    old: list[str] = []
    fresh: list[str] = []
    for node, freed in idle:
        its = claims.get(node.name)
        is_taken = its and any(each.at < ends and each.rank < rank for each in its)
        if not is_taken and not partitions.isdisjoint(node.partitions):
            (fresh if job.looked is None or freed >= job.looked else old).append(node.name)
    both = [*fresh, *old]
    return both[: job.nodes] if fresh and len(both) >= job.nodes else []


def _claims(moment: ClusterMoment, tier: int, reservation: str) -> Iterator[tuple[Claim, Iterable[str]]]:
    shown: set[str] = set()
    lower = moment.below(tier)
    for each in moment.reservations:
        if each.start and each.name not in reservation.split(","):
            why = f"reservation {each.name} begins there"
            over = datetime.fromisoformat(each.end) if each.end else None
            yield Claim(at=each.start, why=why, over=over), hosts(each.nodes)
    for job in moment.jobs:
        if job.partitions and lower.issuperset(job.partitions):
            shown.update(job.planned)
            continue
        if job.state == "PENDING" and job.start and job.planned:
            shown.update(job.planned)
            yield Claim(at=job.start, why=f"job {job.id} is planned there", rank=job.rank), job.planned
        if job.waits_for_nodes and job.tasks > 1:
            where = [node.name for name in job.partitions for node in moment.of_partition(name)]
            shown.update(where)
            why = f"tasks of array {job.id} may start there"
            yield Claim(at=_next_start(moment, job, where), why=why), where
    for node in moment.nodes:
        if "PLANNED" in node.flags and node.name not in shown:
            yield Claim(at=moment.now, why="a job is planned there that Slurm does not show"), (node.name,)


def _next_start(moment: ClusterMoment, job: QueuedJob, where: Sequence[str]) -> datetime:
    """Return the soonest end of a job after which a task that can't start now may start."""
    busy: dict[str, datetime] = {}
    for end, name in ((other.end or moment.now, name) for other in moment.jobs for name in other.on):
        busy[name] = min(end, busy.get(name, end))
    ends = sorted(busy[name] for name in where if name in busy)
    idle = len(where) - len(ends)
    return ends[min(max(job.nodes - idle, 1), len(ends)) - 1] if ends else moment.now


def hole(
    moment: ClusterMoment, free: Sequence[str], next_taken: Mapping[str, Claim], wanted: int
) -> Hole | None:
    """Return the longest hole of so many nodes among those with room now; None where there are too few."""
    off = {node.name for node in moment.nodes if {"POWERED_DOWN", "POWERING_UP"} & node.flags}
    end = Claim(at=moment.now + FOREVER, why="")
    ordered = sorted(free, key=lambda name: (next_taken.get(name, end).at, name not in off), reverse=True)
    chosen = ordered[:wanted]
    if len(chosen) < wanted:
        return None
    until = next_taken.get(chosen[-1])
    boot = moment.resume_s if off & {*chosen} else 0
    whole = ((until or end).at - moment.now).total_seconds() - moment.delay_s - boot
    time_s = int(whole // 60 * 60)
    if time_s < LEAST_S:
        return None
    again = until.over if until and all(next_taken.get(name) == until for name in free) else None
    return Hole(nodes=tuple(chosen), time_s=time_s, until=until, boot_s=boot, again=again)
