"""What Slurm shows at one moment: jobs, nodes, partitions, reservations and settings, each asked for once.

The five questions are asked at once: a controller that is slow delays the answer once, not five times.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from time import monotonic

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.sbatch.array import indices
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.config import config
from sbatchgen.jobs.slurm.fields import count, gpus_of, names, pairs, seconds, text, time
from sbatchgen.jobs.slurm.gpu_nodes import GpuNode, gpu_nodes
from sbatchgen.jobs.slurm.node import SlurmNode, nodes
from sbatchgen.jobs.slurm.partition import SlurmPartition, SlurmReservation, partitions, reservations
from sbatchgen.jobs.slurm.queue import rows, separator

_FIELDS = {
    "id": "JobArrayID",
    "user": "UserID",
    "name": "Name",
    "state": "State",
    "reason": "Reason",
    "start": "StartTime",
    "end": "EndTime",
    "priority": "PriorityLong",
    "partition": "Partition",
    "nodes": "NumNodes",
    "node_list": "NodeList",
    "planned": "SchedNodes",
    "tres": "tres-alloc",
    "per_node": "tres-per-node",
    "qos": "QOS",
    "limit": "TimeLimit",
    "submitted": "SubmitTime",
    "looked": "LastSchedEval",
}
_GPUS_OF_NODE = re.compile(r"gres[:/]gpu(?::[^:,=]+)?[:=]([0-9]{1,9})")
_NUMBER = re.compile(r"[0-9]{1,9}")
# What waits for nodes alone; Slurm plans no other job
_FOR_NODES = ("Priority", "Resources")
LATE_S = 10.0
_HIDING = {"jobs", "nodes", "partitions"}


@frozen(kw_only=True)
class QueuedJob:
    """A job of any user that runs or waits."""

    id: str
    user: int
    name: str
    state: str
    reason: str
    start: datetime | None  # of a job that waits: as Slurm plans it
    end: datetime | None
    priority: int
    partitions: tuple[str, ...]
    nodes: int
    on: tuple[str, ...]  # the nodes that it has
    planned: tuple[str, ...]  # the nodes that Slurm plans for it
    gpus: int  # of all its nodes; 0 where Slurm does not say
    tasks: int  # of an array that wait in this row; else 1
    qos: str
    limit_s: int | None = None  # its time limit; None if it has none
    submitted: datetime | None = None
    looked: datetime | None = None  # when Slurm last looked at it, to start or to plan it

    @property
    def rank(self) -> tuple[int, int]:
        """What tells whether a job comes before another: by priority, then by when it was submitted."""
        number = "".join(filter(str.isdecimal, self.id.partition("_")[0]))
        return -self.priority, int(number or 0)

    @property
    def waits_for_nodes(self) -> bool:
        """Whether it would start if there were nodes for it."""
        return self.state == "PENDING" and self.reason in _FOR_NODES


@frozen(kw_only=True)
class ClusterMoment:
    """All that is known of a cluster at one moment."""

    now: datetime
    jobs: Sequence[QueuedJob]
    nodes: Sequence[SlurmNode]
    gpus: Sequence[GpuNode]
    partitions: Sequence[SlurmPartition]
    reservations: Sequence[SlurmReservation]
    settings: Mapping[str, str]
    took_s: float = 0.0  # until Slurm had answered

    @property
    def is_late(self) -> bool:
        """Whether Slurm took so long to answer that it is asked for nothing more."""
        return self.took_s > LATE_S

    @property
    def hidden(self) -> bool:
        """Whether Slurm hides jobs or nodes of others, so that no hole can be seen."""
        return bool(_HIDING & {*self.settings.get("PrivateData", "").split(",")})

    @cached_property
    def delay_s(self) -> int:
        """How long Slurm may take to look at a new job, and how coarse its plan is."""
        return self.scheduler("bf_interval", 30) + self.scheduler("bf_resolution", 60)

    def scheduler(self, name: str, default: int) -> int:
        """Return a number in SchedulerParameters."""
        match = re.search(rf"\b{name}=([0-9]{{1,9}})", self.settings.get("SchedulerParameters", ""))
        return int(match[1]) if match else default

    @property
    def resume_s(self) -> int:
        """How long a node may take to be switched on: ResumeTimeout."""
        match = _NUMBER.match(self.settings.get("ResumeTimeout", ""))
        return int(match[0]) if match else 0

    def below(self, tier: int) -> set[str]:
        """Return the partitions whose jobs come later than those of a partition of this tier."""
        return {each.name for each in self.partitions if each.tier < tier}

    def of_partition(self, name: str) -> list[SlurmNode]:
        """Return the nodes of a partition."""
        return [node for node in self.nodes if name in node.partitions]


def read_moment(environment: Mapping[str, str], *, queue: bool = True) -> ClusterMoment:
    """Ask Slurm, also for jobs and reservations if the `queue` matters; raise SlurmError without one."""
    began = monotonic()
    with ThreadPoolExecutor(
        5, initializer=client.set_answer_limit, initargs=(client.answer_limit_s(),)
    ) as pool:
        settings, known = pool.submit(config, environment), pool.submit(nodes, environment)
        parts = pool.submit(partitions, environment)
        jobs = pool.submit(_jobs, environment) if queue else None
        reserved = pool.submit(reservations, environment) if queue else None
    return ClusterMoment(
        now=datetime.now().astimezone(),
        jobs=jobs.result() if jobs else (),
        nodes=known.result(),
        gpus=gpu_nodes(known.result(), environment),
        partitions=parts.result(),
        reservations=(reserved and reserved.result()) or (),
        settings=settings.result(),
        took_s=monotonic() - began,
    )


def _jobs(environment: Mapping[str, str]) -> list[QueuedJob]:
    between = separator()
    fields = ",".join(f"{field}:{between}" for field in _FIELDS.values())
    return [
        *_jobs_in(
            client.answer(["squeue", "--all", "--noheader", f"--Format={fields}"], environment), between
        )
    ]


def _jobs_in(printed: str, between: str) -> Iterator[QueuedJob]:
    for row in rows(printed, between, [*_FIELDS]):
        number = count(row["nodes"].partition("-")[0])
        gpus = gpus_of(pairs(row["tres"].split(",")))
        each = _GPUS_OF_NODE.search(row["per_node"])
        waiting = row["id"].partition("_")[2].strip("[]").partition("%")[0]
        yield QueuedJob(
            id=row["id"],
            user=count(row["user"]),
            name=row["name"],
            state=row["state"],
            reason=row["reason"],
            start=time(row["start"]),
            end=time(row["end"]),
            priority=count(row["priority"]),
            partitions=names(row["partition"]),
            nodes=number,
            on=tuple(hosts(text(row["node_list"]))),
            planned=tuple(hosts(text(row["planned"]))),
            gpus=gpus or (int(each[1]) * number if each else 0),
            tasks=sum(map(len, indices(waiting) or ())) or 1,
            qos=text(row["qos"]),
            limit_s=seconds(row["limit"]),
            submitted=time(row["submitted"]),
            looked=time(row["looked"]),
        )
