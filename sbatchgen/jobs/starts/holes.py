"""Holes in the queue: nodes that are free now, until Slurm needs one of them for something else.

Slurm's backfill scheduler plans whole nodes for waiting jobs. For an array, squeue shows the plan of only one
task; the other tasks may start sooner (seen on 22.05). Jobs without a plan reserve no nodes. Slurm makes
a new plan from time to time. If a node has become free since the newest plan began, a waiting job that fits
there gets this node, wherever the job is planned.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm.fields import read_time
from sbatchgen.jobs.slurm.node import SlurmNode
from sbatchgen.jobs.starts.moment import ClusterMoment, QueuedJob

FOREVER = timedelta(days=3650)  # how long a hole lasts that nothing ends
TURN_S = 60  # how many seconds Slurm may need to look at all jobs of a queue
MIN_HOLE_S = 300  # the shortest hole that is useful for a training


@frozen(kw_only=True)
class Claim:
    """A claim of a job or a reservation on a node, from a time on. The next claim on a node ends its hole."""

    at: datetime  # when the node will be taken
    why: str  # what takes it, in words: "job 4711 is planned there"
    over: datetime | None = None  # when a reservation ends; None for other claims
    # The rank of the job that is planned there; a job with a lower rank may start before it. () for other
    # claims, before which no job may start
    rank: tuple[int, ...] = ()


@frozen(kw_only=True)
class Hole:
    """Nodes that are free now, and for how long all of them stay free."""

    nodes: tuple[str, ...]
    time_s: int  # the longest time limit with which a job starts there now
    until: Claim | None  # the claim that ends the hole; None if no claim is known
    boot_s: int  # how many seconds it takes to switch on nodes that are off
    free_again: datetime | None = None  # when the reservation that ends the hole is over; None if not known


def next_claims(moment: ClusterMoment, tier: int = 0, reservation: str = "") -> dict[str, Claim]:
    """Return the next claim on each node, by its name; claims that don't concern the new job are excluded.

    The new job is in a partition of this `tier`, and may use the `reservation`.
    """
    claims: dict[str, list[Claim]] = {}
    for claim, names in _claims(moment, tier, reservation):
        for name in names:
            claims.setdefault(name, []).append(claim)
    used = {name for job in moment.jobs for name in job.node_names}
    long_ago = datetime.min.replace(tzinfo=moment.now.tzinfo)
    idle = [  # each idle node, and since when it is idle
        (node, read_time(node.last_busy) or long_ago)
        for node in moment.nodes
        if node.state == "IDLE" and node.name not in used
    ]
    for job in _jobs_before_next_plan(moment, tier) if idle else ():
        for name in _nodes_before_next_plan(job, idle, claims, moment):
            claim = Claim(at=moment.now, why=f"job {job.id}, which waits longer, fits there")
            claims.setdefault(name, []).append(claim)
    return {name: min(node_claims, key=attrgetter("at")) for name, node_claims in claims.items()}


def _jobs_before_next_plan(moment: ClusterMoment, tier: int) -> list[QueuedJob]:
    """Return jobs that may start before Slurm plans again, those of the lowest rank first.

    Slurm does not look at all jobs of a long queue, so jobs whose last look is old are excluded. Jobs that
    are only in partitions below `tier` are also excluded, because the new job starts before them.
    """
    newest_look = max((job.last_look for job in moment.jobs if job.last_look), default=moment.now)
    long_ago = newest_look - timedelta(seconds=moment.delay_s + TURN_S)
    lower = moment.partitions_below(tier)
    waiting = (job for job in moment.jobs if job.waits_for_nodes and job.tasks == 1)
    rivals = (job for job in waiting if not (job.partitions and lower.issuperset(job.partitions)))
    in_reach = (job for job in rivals if (at := job.last_look or job.submitted) and at > long_ago)
    return sorted(in_reach, key=attrgetter("rank"))


def _nodes_before_next_plan(
    job: QueuedJob,
    idle: Sequence[tuple[SlurmNode, datetime]],
    claims: Mapping[str, Sequence[Claim]],
    moment: ClusterMoment,
) -> list[str]:
    """Return the nodes that a job would get before the next plan; [] if the newest plan decides its start.

    A job gets such nodes if the newest plan was made before the job came, or before one of the nodes became
    free. `idle` has the idle nodes, and since when each is idle. Nodes with an earlier claim are excluded.
    """
    if job.limit_s is None or job.nodes > len(idle):
        return []
    is_new = bool(job.submitted and job.submitted >= moment.plan_began)
    ends, rank, partitions = moment.now + timedelta(seconds=job.limit_s), job.rank, {*job.partitions}
    known_free: list[str] = []  # nodes that the newest plan could have given to the job
    newly_free: list[str] = []  # nodes that it could not have given to the job
    for node, idle_since in idle:
        node_claims = claims.get(node.name)
        is_taken = node_claims and any(claim.at < ends and claim.rank < rank for claim in node_claims)
        if not is_taken and not partitions.isdisjoint(node.partitions):
            (newly_free if is_new or idle_since >= moment.plan_began else known_free).append(node.name)
    names = [*newly_free, *known_free]
    return names[: job.nodes] if newly_free and len(names) >= job.nodes else []


def _claims(moment: ClusterMoment, tier: int, reservation: str) -> Iterator[tuple[Claim, Iterable[str]]]:
    """Yield claims of reservations, planned jobs and arrays, each with the names of its nodes."""
    explained: set[str] = set()  # nodes whose flag PLANNED follows from a job that squeue shows
    lower = moment.partitions_below(tier)
    for other in moment.reservations:
        if other.start and other.name not in reservation.split(","):
            why = f"reservation {other.name} begins there"
            over = datetime.fromisoformat(other.end) if other.end else None
            yield Claim(at=other.start, why=why, over=over), hosts(other.nodes)
    for job in moment.jobs:
        if job.partitions and lower.issuperset(job.partitions):  # the new job starts before it
            explained.update(job.planned_nodes)
            continue
        if job.state == "PENDING" and job.start and job.planned_nodes:
            explained.update(job.planned_nodes)
            claim = Claim(at=job.start, why=f"job {job.id} is planned there", rank=job.rank)
            yield claim, job.planned_nodes
        if job.waits_for_nodes and job.tasks > 1:
            names = [node.name for partition in job.partitions for node in moment.nodes_of(partition)]
            explained.update(names)
            why = f"tasks of array {job.id} may start there"
            yield Claim(at=_next_start(moment, job, names), why=why), names
    for node in moment.nodes:
        if "PLANNED" in node.flags and node.name not in explained:
            yield Claim(at=moment.now, why="a job is planned there that Slurm does not show"), (node.name,)


def _next_start(moment: ClusterMoment, array: QueuedJob, names: Sequence[str]) -> datetime:
    """Return when enough of these nodes may be free for a task of an array that can't start now."""
    first_end: dict[str, datetime] = {}  # when the first of the jobs on each busy node ends
    for job in moment.jobs:
        end = job.end or moment.now
        for name in job.node_names:
            first_end[name] = min(end, first_end.get(name, end))
    ends = sorted(first_end[name] for name in names if name in first_end)
    idle_count = len(names) - len(ends)
    # A task that can't start now waits for at least one node, even if enough nodes seem to be idle.
    return ends[min(max(array.nodes - idle_count, 1), len(ends)) - 1] if ends else moment.now


def longest_hole(
    moment: ClusterMoment, free: Sequence[str], claims: Mapping[str, Claim], node_count: int
) -> Hole | None:
    """Return the longest hole of so many nodes among the `free` nodes; None if it is below MIN_HOLE_S.

    `claims` has the next claim on each node.
    """
    off = {node.name for node in moment.nodes if {"POWERED_DOWN", "POWERING_UP"} & node.flags}
    no_claim = Claim(at=moment.now + FOREVER, why="")  # of nodes without a claim
    # The nodes with the latest claims first; of two with the same claim, the one that is switched on.
    ordered = sorted(free, key=lambda name: (claims.get(name, no_claim).at, name not in off), reverse=True)
    chosen = ordered[:node_count]
    if len(chosen) < node_count:
        return None
    until = claims.get(chosen[-1])
    boot_s = moment.resume_s if off & {*chosen} else 0
    seconds = ((until or no_claim).at - moment.now).total_seconds() - moment.delay_s - boot_s
    time_s = int(seconds // 60 * 60)  # Slurm counts time limits in minutes
    if time_s < MIN_HOLE_S:
        return None
    is_only_claim = until and all(claims.get(name) == until for name in free)
    free_again = until.over if until and is_only_claim else None
    return Hole(nodes=tuple(chosen), time_s=time_s, until=until, boot_s=boot_s, free_again=free_again)
