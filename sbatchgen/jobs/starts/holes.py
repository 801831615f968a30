"""Holes in the queue: nodes that are free now, until Slurm needs one of them for something else.

Slurm's plan (backfill) has whole nodes. For an array, squeue shows the plan of only one task; the others may
start sooner (seen on 22.05). Jobs without a plan reserve no nodes. Slurm plans from time to time: a node that
has become free since the plan began goes to a job that waits longer and fits there, whatever its plan is.
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
TURN_S = 60  # how many seconds Slurm may need to look at all jobs of a queue
LEAST_S = 300  # the shortest hole that is useful for a training


@frozen(kw_only=True)
class Claim:
    """The end of a hole: when a node will be taken."""

    at: datetime  # when it will be taken
    why: str  # by which job or reservation, in words
    over: datetime | None = None  # when a reservation ends; None for other claims
    rank: tuple[int, ...] = ()  # the rank of the job that is planned there; lower ranks may start first


@frozen(kw_only=True)
class Hole:
    """Nodes that are free now, and for how long all of them stay free."""

    nodes: tuple[str, ...]
    time_s: int  # the longest time limit with which a job starts there now
    until: Claim | None  # the claim that ends the hole; None if no claim is known
    boot_s: int  # how many seconds it takes to switch on nodes that are off
    again: datetime | None = None  # when the nodes are free again after a reservation; None if not known


def next_claims(moment: ClusterMoment, tier: int = 0, reservation: str = "") -> dict[str, Claim]:
    """Return the next claim on each node, by its name; claims that don't concern the new job are excluded.

    The new job is in a partition of this `tier`, and may use the `reservation`.
    """
    claims: dict[str, list[Claim]] = {}
    for claim, names in _claims(moment, tier, reservation):
        for name in names:
            claims.setdefault(name, []).append(claim)
    used = {name for job in moment.jobs for name in job.node_names}
    idle = [
        (node, time(node.last_busy) or datetime.min.replace(tzinfo=moment.now.tzinfo))
        for node in moment.nodes
        if node.state == "IDLE" and node.name not in used
    ]
    for job in _jobs_before_next_plan(moment, tier) if idle else ():
        for name in _nodes_for(job, idle, claims, moment):
            claim = Claim(at=moment.now, why=f"job {job.id}, which waits longer, fits there")
            claims.setdefault(name, []).append(claim)
    return {name: min(its, key=attrgetter("at")) for name, its in claims.items()}


def _jobs_before_next_plan(moment: ClusterMoment, tier: int) -> list[QueuedJob]:
    """Return jobs that may start before Slurm plans again, those of the lowest rank first.

    Slurm does not look at all jobs of a long queue. Jobs that it has not looked at for long are excluded.
    """
    newest = max((job.looked for job in moment.jobs if job.looked), default=moment.now)
    long_ago = newest - timedelta(seconds=moment.delay_s + TURN_S)
    lower = moment.partitions_below(tier)
    waiting = (job for job in moment.jobs if job.waits_for_nodes and job.tasks == 1)
    rivals = (job for job in waiting if not (job.partitions and lower.issuperset(job.partitions)))
    looked = (job for job in rivals if (at := job.looked or job.submitted) and at > long_ago)
    return sorted(looked, key=attrgetter("rank"))


def _nodes_for(
    job: QueuedJob,
    idle: Sequence[tuple[SlurmNode, datetime]],
    claims: Mapping[str, Sequence[Claim]],
    moment: ClusterMoment,
) -> list[str]:
    """Return the nodes that a job would get now, if the newest plan lacks the job or one of these nodes.

    `idle` has idle nodes and when they became free. Nodes with an earlier claim are excluded.
    """
    if job.limit_s is None or job.nodes > len(idle):
        return []
    is_new = bool(job.submitted and job.submitted >= moment.plan_began)
    ends, rank, partitions = moment.now + timedelta(seconds=job.limit_s), job.rank, {*job.partitions}
    old: list[str] = []
    fresh: list[str] = []
    for node, freed in idle:
        its = claims.get(node.name)
        is_taken = its and any(claim.at < ends and claim.rank < rank for claim in its)
        if not is_taken and not partitions.isdisjoint(node.partitions):
            (fresh if is_new or freed >= moment.plan_began else old).append(node.name)
    names = [*fresh, *old]
    return names[: job.nodes] if fresh and len(names) >= job.nodes else []


def _claims(moment: ClusterMoment, tier: int, reservation: str) -> Iterator[tuple[Claim, Iterable[str]]]:
    """Yield claims of reservations, planned jobs and arrays, each with the names of its nodes."""
    shown: set[str] = set()
    lower = moment.partitions_below(tier)
    for other in moment.reservations:
        if other.start and other.name not in reservation.split(","):
            why = f"reservation {other.name} begins there"
            over = datetime.fromisoformat(other.end) if other.end else None
            yield Claim(at=other.start, why=why, over=over), hosts(other.nodes)
    for job in moment.jobs:
        if job.partitions and lower.issuperset(job.partitions):
            shown.update(job.planned)
            continue
        if job.state == "PENDING" and job.start and job.planned:
            shown.update(job.planned)
            yield Claim(at=job.start, why=f"job {job.id} is planned there", rank=job.rank), job.planned
        if job.waits_for_nodes and job.tasks > 1:
            where = [node.name for name in job.partitions for node in moment.nodes_of(name)]
            shown.update(where)
            why = f"tasks of array {job.id} may start there"
            yield Claim(at=_next_start(moment, job, where), why=why), where
    for node in moment.nodes:
        if "PLANNED" in node.flags and node.name not in shown:
            yield Claim(at=moment.now, why="a job is planned there that Slurm does not show"), (node.name,)


def _next_start(moment: ClusterMoment, job: QueuedJob, where: Sequence[str]) -> datetime:
    """Return when enough of these nodes may be free for a task of an array that can't start now."""
    busy: dict[str, datetime] = {}
    for other in moment.jobs:
        end = other.end or moment.now
        for name in other.node_names:
            busy[name] = min(end, busy.get(name, end))
    ends = sorted(busy[name] for name in where if name in busy)
    idle = len(where) - len(ends)
    return ends[min(max(job.nodes - idle, 1), len(ends)) - 1] if ends else moment.now


def hole(moment: ClusterMoment, free: Sequence[str], claims: Mapping[str, Claim], wanted: int) -> Hole | None:
    """Return the longest hole of `wanted` nodes among the `free` nodes; None without one of LEAST_S seconds.

    `claims` has the next claim on each node.
    """
    off = {node.name for node in moment.nodes if {"POWERED_DOWN", "POWERING_UP"} & node.flags}
    end = Claim(at=moment.now + FOREVER, why="")
    ordered = sorted(free, key=lambda name: (claims.get(name, end).at, name not in off), reverse=True)
    chosen = ordered[:wanted]
    if len(chosen) < wanted:
        return None
    until = claims.get(chosen[-1])
    boot = moment.resume_s if off & {*chosen} else 0
    seconds = ((until or end).at - moment.now).total_seconds() - moment.delay_s - boot
    time_s = int(seconds // 60 * 60)
    if time_s < LEAST_S:
        return None
    again = until.over if until and all(claims.get(name) == until for name in free) else None
    return Hole(nodes=tuple(chosen), time_s=time_s, until=until, boot_s=boot, again=again)
