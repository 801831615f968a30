"""Finds holes in the queue: nodes that are free now, until a waiting job or a reservation takes one of them.

Slurm's backfill scheduler plans, from time to time, on which nodes and when waiting jobs will start. It plans
whole nodes. Jobs without a plan reserve no nodes. For an array, squeue shows the plan of only one task; the
other tasks may start sooner (seen on 22.05).

If a node has become free since the newest plan began, Slurm gives it to the first waiting job that fits
there, even if the plan has other nodes for this job.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm.fields import read_time
from sbatchgen.jobs.slurm.node import SlurmNode
from sbatchgen.jobs.starts.moment import ClusterMoment, QueuedJob

FOREVER = timedelta(days=3650)  # how long a hole lasts if no claim ends it
TURN_S = 60  # how many seconds Slurm may need to look at all jobs of a queue
MIN_HOLE_S = 300  # the seconds of the shortest hole that is useful for a training


@frozen(kw_only=True)
class Claim:
    """A claim of a waiting job or a reservation on a node. The next claim on a free node ends its hole."""

    begins_at: datetime  # when the job or the reservation takes the node
    why: str  # the claim in words: "job 4711 is planned there"
    ends_at: datetime | None = None  # when a reservation ends; None for other claims
    # The rank of the job that is planned there. A job with a lower rank may start before it. Other claims
    # have the rank (), which is lower than each job's rank, so no job may start before them.
    rank: tuple[int, ...] = ()


@frozen(kw_only=True)
class Hole:
    """Nodes that are free now, and for how long all of them stay free."""

    nodes: tuple[str, ...]
    time_s: int  # the longest time limit with which a job starts there now
    claim: Claim | None  # the claim that ends the hole; None if no claim is known
    boot_s: int  # how many seconds it takes to switch on nodes that are off
    # When the reservation that ends the hole is over, so that nodes are free again; None if not known
    free_again: datetime | None = None


def next_claims(moment: ClusterMoment, tier: int = 0, reservation: str = "") -> dict[str, Claim]:
    """Return the next claim on each node, by the name of the node.

    The claims end the holes for a new job in a partition of this `tier`, which may use the `reservation`.
    Claims of jobs that would start after the new job are excluded.
    """
    claims: dict[str, list[Claim]] = {}
    for claim, names in _claims(moment, tier, reservation):
        for name in names:
            claims.setdefault(name, []).append(claim)
    busy_names = {name for job in moment.jobs for name in job.node_names}
    long_ago = datetime.min.replace(tzinfo=moment.now.tzinfo)
    idle_since = [
        (node, read_time(node.last_busy) or long_ago)
        for node in moment.nodes
        if node.state == "IDLE" and node.name not in busy_names
    ]
    if idle_since:
        for job in _jobs_before_next_plan(moment, tier):
            for name in _nodes_before_next_plan(job, idle_since, claims, moment):
                claim = Claim(begins_at=moment.now, why=f"job {job.id}, which waits longer, fits there")
                claims.setdefault(name, []).append(claim)
    return {name: min(node_claims, key=attrgetter("begins_at")) for name, node_claims in claims.items()}


def _jobs_before_next_plan(moment: ClusterMoment, tier: int) -> list[QueuedJob]:
    """Return the waiting jobs that may start before Slurm's next plan, the lowest rank first.

    Slurm does not look at all jobs of a long queue, so jobs at which it has not looked for long are excluded.
    Jobs that are only in partitions below `tier` are also excluded, because the new job starts before them.
    """
    newest_look = max((job.last_look for job in moment.jobs if job.last_look), default=moment.now)
    oldest_look = newest_look - timedelta(seconds=moment.delay_s + TURN_S)
    lower_partitions = moment.partitions_below(tier)
    chosen = []
    for job in moment.jobs:
        starts_later = job.partitions and lower_partitions.issuperset(job.partitions)
        look = job.last_look or job.submitted
        if job.waits_for_nodes and job.tasks == 1 and not starts_later and look and look > oldest_look:
            chosen.append(job)
    return sorted(chosen, key=attrgetter("rank"))


def _nodes_before_next_plan(
    job: QueuedJob,
    idle_since: Sequence[tuple[SlurmNode, datetime]],
    claims: Mapping[str, Sequence[Claim]],
    moment: ClusterMoment,
) -> list[str]:
    """Return the nodes on which a waiting job would start before Slurm's next plan; [] without such nodes.

    A job starts before the next plan if the newest plan could not consider it: the job was submitted after
    the plan began, or one of the nodes became free after the plan began. `idle_since` has each idle node, and
    the time since which it is idle. Nodes with an earlier claim are excluded.
    """
    if job.limit_s is None or job.nodes > len(idle_since):
        return []
    is_new = bool(job.submitted and job.submitted >= moment.plan_began)
    end, rank, partitions = moment.now + timedelta(seconds=job.limit_s), job.rank, {*job.partitions}
    known_free: list[str] = []  # nodes that the newest plan could have given to the job
    newly_free: list[str] = []  # nodes that the newest plan could not have given to the job
    for node, since in idle_since:
        node_claims = claims.get(node.name)
        is_claimed = node_claims and any(claim.begins_at < end and claim.rank < rank for claim in node_claims)
        if not is_claimed and not partitions.isdisjoint(node.partitions):
            (newly_free if is_new or since >= moment.plan_began else known_free).append(node.name)
    names = [*newly_free, *known_free]
    return names[: job.nodes] if newly_free and len(names) >= job.nodes else []


def _claims(moment: ClusterMoment, tier: int, reservation: str) -> Iterator[tuple[Claim, Iterable[str]]]:
    """Yield claims of reservations, planned jobs and arrays, each with the names of its nodes."""
    explained: set[str] = set()  # nodes whose flag PLANNED follows from a job that squeue shows
    lower_partitions = moment.partitions_below(tier)
    for other in moment.reservations:
        if other.start and other.name not in reservation.split(","):
            why = f"reservation {other.name} begins there"
            end = datetime.fromisoformat(other.end) if other.end else None
            yield Claim(begins_at=other.start, why=why, ends_at=end), hosts(other.nodes)
    for job in moment.jobs:
        if job.partitions and lower_partitions.issuperset(job.partitions):  # the new job starts before it
            explained.update(job.planned_nodes)
            continue
        if job.state == "PENDING" and job.start and job.planned_nodes:
            explained.update(job.planned_nodes)
            claim = Claim(begins_at=job.start, why=f"job {job.id} is planned there", rank=job.rank)
            yield claim, job.planned_nodes
        if job.waits_for_nodes and job.tasks > 1:
            names = [node.name for partition in job.partitions for node in moment.nodes_of(partition)]
            explained.update(names)
            why = f"tasks of array {job.id} may start there"
            yield Claim(begins_at=_next_start_of_task(moment, job, names), why=why), names
    for node in moment.nodes:
        if "PLANNED" in node.flags and node.name not in explained:
            why = "a job is planned there that Slurm does not show"
            yield Claim(begins_at=moment.now, why=why), (node.name,)


def _next_start_of_task(moment: ClusterMoment, array: QueuedJob, names: Sequence[str]) -> datetime:
    """Return when a waiting task of an array may start, because enough of these nodes may be free then."""
    first_end: dict[str, datetime] = {}  # the name of a busy node -> when the first of its jobs ends
    for job in moment.jobs:
        end = job.end or moment.now
        for name in job.node_names:
            first_end[name] = min(end, first_end.get(name, end))
    ends = sorted(first_end[name] for name in names if name in first_end)
    idle_count = len(names) - len(ends)
    if not ends:
        return moment.now
    # A task that can't start now waits for at least one node, even if enough nodes seem to be idle.
    needed_count = max(array.nodes - idle_count, 1)
    return ends[min(needed_count, len(ends)) - 1]


def longest_hole(
    moment: ClusterMoment, free_nodes: Sequence[str], claims: Mapping[str, Claim], node_count: int
) -> Hole | None:
    """Return the longest hole of `node_count` nodes among the free nodes; None if it is below MIN_HOLE_S.

    `free_nodes` has names of nodes, and `claims` the next claim on each node.
    """
    off_nodes = {node.name for node in moment.nodes if {"POWERED_DOWN", "POWERING_UP"} & node.flags}
    no_claim = Claim(begins_at=moment.now + FOREVER, why="")  # for nodes without a claim

    def suitability(name: str) -> tuple[datetime, bool]:
        """Return the sort key of a node: how late its next claim is, and whether it is switched on."""
        return claims.get(name, no_claim).begins_at, name not in off_nodes

    chosen = sorted(free_nodes, key=suitability, reverse=True)[:node_count]
    if len(chosen) < node_count:
        return None
    claim = claims.get(chosen[-1])
    boot_s = moment.resume_s if off_nodes & {*chosen} else 0
    hole_s = ((claim or no_claim).begins_at - moment.now).total_seconds() - moment.delay_s - boot_s
    time_s = int(hole_s // 60 * 60)  # Slurm counts time limits in minutes
    if time_s < MIN_HOLE_S:
        return None
    is_only_claim = claim and all(claims.get(name) == claim for name in free_nodes)
    free_again = claim.ends_at if claim and is_only_claim else None
    return Hole(nodes=tuple(chosen), time_s=time_s, claim=claim, boot_s=boot_s, free_again=free_again)
