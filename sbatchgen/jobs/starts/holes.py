"""Holes in the queue: nodes that are free now, and when Slurm wants each of them for something else.

Slurm's plan (backfill) has whole nodes. Of an array, squeue shows the plan of one task, and hides those of
others, which may start sooner (seen on 22.05). Jobs without a plan hold no nodes for themselves.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.starts.moment import ClusterMoment, QueuedJob

FOREVER = timedelta(days=3650)
LEAST_S = 300  # a shorter hole is of no use to a training


@frozen(kw_only=True)
class Claim:
    """When a node is next taken, and by what."""

    at: datetime
    why: str


@frozen(kw_only=True)
class Hole:
    """Nodes that are free now, and for how long all of them are."""

    nodes: tuple[str, ...]
    time_s: int  # the longest limit with which a job starts there now
    until: Claim | None  # None if nothing is known to take them
    boot_s: int  # how long it takes to switch on what is off


def taken(moment: ClusterMoment, reservation: str = "") -> dict[str, Claim]:
    """Return when nodes are next taken; a job in a reservation is not kept from the nodes of that."""
    first: dict[str, Claim] = {}
    for at, names, why in _takers(moment, reservation):
        for name in names:
            if name not in first or at < first[name].at:
                first[name] = Claim(at=at, why=why)
    return first


def _takers(moment: ClusterMoment, reservation: str) -> Iterator[tuple[datetime, Iterable[str], str]]:
    shown: set[str] = set()
    for each in moment.reservations:
        if each.start and each.name not in reservation.split(","):
            yield each.start, hosts(each.nodes), f"reservation {each.name} begins there"
    for job in moment.jobs:
        if job.state == "PENDING" and job.start and job.planned:
            shown.update(job.planned)
            yield job.start, job.planned, f"job {job.id} is planned there"
        if job.waits_for_nodes and job.tasks > 1:
            where = [node.name for name in job.partitions for node in moment.of_partition(name)]
            shown.update(where)
            yield _next_start(moment, job, where), where, f"tasks of array {job.id} may start there"
    for node in moment.nodes:
        if "PLANNED" in node.flags and node.name not in shown:
            yield moment.now, (node.name,), "a job is planned there that Slurm does not show"


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
    return Hole(nodes=tuple(chosen), time_s=time_s, until=until, boot_s=boot) if time_s >= LEAST_S else None
