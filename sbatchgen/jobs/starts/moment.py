"""Reads what Slurm shows at one moment: the jobs, nodes, partitions, reservations and settings of a cluster.

Slurm is asked once for each. The six queries run at the same time, so a slow controller delays only once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.sbatch.array import indices
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.config import config
from sbatchgen.jobs.slurm.fields import (
    gpus_in_tres,
    read_count,
    read_names,
    read_pairs,
    read_seconds,
    read_text,
    read_time,
)
from sbatchgen.jobs.slurm.gpu_nodes import GpuNode, gpu_nodes
from sbatchgen.jobs.slurm.node import SlurmNode, nodes
from sbatchgen.jobs.slurm.partition import SlurmPartition, SlurmReservation, partitions, reservations
from sbatchgen.jobs.slurm.queue import new_separator, table_rows

# Our name of a field -> its name in `squeue --Format`.
_SQUEUE_FIELDS = {
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
    "last_look": "LastSchedEval",
}
_GPUS_ON_NODE = re.compile(r"gres[:/]gpu(?::[^:,=]+)?[:=]([0-9]{1,9})")  # "gres/gpu:a100:4", "gres:gpu:4"
# A line of sdiag, with the seconds since 1970: "Last cycle when: Tue Dec 01 00:44:24 2026 (1796085864)"
_LAST_PLAN = re.compile(r"^\s*Last cycle when: .*\(([1-9][0-9]{8,11})\)", re.MULTILINE)
_SECONDS = re.compile(r"[0-9]{1,9}")  # the number in "300 sec"
# The reasons of jobs that wait only for nodes. Slurm plans the starts of no other jobs.
_REASONS_FOR_NODES = ("Priority", "Resources")
LATE_S = 10.0  # if the answers took longer, Slurm is asked nothing more
# The values of PrivateData with which Slurm hides nodes, or the jobs of other users
_HIDING_VALUES = {"jobs", "nodes", "partitions"}


@frozen(kw_only=True)
class QueuedJob:
    """A job of any user that runs or waits."""

    id: str  # "4711", or "4711_[0-5%2]" for waiting tasks of an array
    user: int  # the id of its user
    name: str
    state: str  # "PENDING" or "RUNNING" for example
    reason: str  # why it waits: "Resources"
    start: datetime | None  # its start; for a waiting job, the start that Slurm plans
    end: datetime | None  # its end by its time limit; for a waiting job, the end that Slurm plans
    priority: int
    partitions: tuple[str, ...]
    nodes: int  # the number of its nodes
    node_names: tuple[str, ...]  # the nodes that it has; empty for a waiting job
    planned_nodes: tuple[str, ...]  # the nodes on which Slurm plans to start it
    gpus: int  # its GPUs on all nodes together; 0 if Slurm does not show them
    tasks: int  # the number of waiting tasks of an array; 1 for other jobs
    qos: str
    limit_s: int | None = None  # its time limit in seconds; None if it has none
    submitted: datetime | None = None
    last_look: datetime | None = None  # when Slurm last looked whether the job can start
    tier: int = 1  # the highest PriorityTier of its partitions

    @property
    def rank(self) -> tuple[int, int, int]:
        """Its place in the queue, by tier, priority and id. The job with the lowest rank starts first."""
        base_id = "".join(filter(str.isdecimal, self.id.partition("_")[0]))  # "4711" of "4711_[0-5%2]"
        return -self.tier, -self.priority, int(base_id or 0)

    @property
    def waits_for_nodes(self) -> bool:
        """Whether it can start as soon as nodes are free."""
        return self.state == "PENDING" and self.reason in _REASONS_FOR_NODES


@frozen(kw_only=True)
class ClusterMoment:
    """What Slurm shows of a cluster at one moment."""

    now: datetime
    jobs: Sequence[QueuedJob]
    nodes: Sequence[SlurmNode]
    gpu_nodes: Sequence[GpuNode]
    partitions: Sequence[SlurmPartition]
    reservations: Sequence[SlurmReservation]
    settings: Mapping[str, str]  # the settings of slurm.conf, as `scontrol show config` prints them
    last_plan: datetime | None = None  # when backfill began its newest plan of the queue; None if not known
    took_s: float = 0.0  # how many seconds Slurm took to answer

    @property
    def is_late(self) -> bool:
        """Whether Slurm took so long to answer that it is asked nothing more."""
        return self.took_s > LATE_S

    @property
    def hides_jobs(self) -> bool:
        """Whether Slurm hides jobs or nodes from this user, so that no hole can be seen."""
        return bool(_HIDING_VALUES & {*self.settings.get("PrivateData", "").split(",")})

    @cached_property
    def delay_s(self) -> int:
        """The most seconds until Slurm looks at a new job, plus the resolution of its plan in seconds."""
        return self.scheduler_parameter("bf_interval", 30) + self.scheduler_parameter("bf_resolution", 60)

    @cached_property
    def plan_began(self) -> datetime:
        """When Slurm began to make its newest plan; if not known, the earliest time that is possible."""
        interval_s = self.scheduler_parameter("bf_interval", 30)
        longest_s = self.scheduler_parameter("bf_max_time", interval_s)
        return self.last_plan or self.now - timedelta(seconds=interval_s + longest_s)

    def scheduler_parameter(self, name: str, default: int) -> int:
        """Return a number in SchedulerParameters, or the default if it is not set."""
        match = re.search(rf"\b{name}=([0-9]{{1,9}})", self.settings.get("SchedulerParameters", ""))
        return int(match[1]) if match else default

    @property
    def resume_s(self) -> int:
        """How many seconds it may take to switch on a node: ResumeTimeout in slurm.conf."""
        match = _SECONDS.match(self.settings.get("ResumeTimeout", ""))
        return int(match[0]) if match else 0

    def partitions_below(self, tier: int) -> set[str]:
        """Return the names of partitions with a lower PriorityTier, whose jobs start later."""
        return {partition.name for partition in self.partitions if partition.tier < tier}

    def nodes_of(self, partition: str) -> list[SlurmNode]:
        """Return the nodes of a partition."""
        return [node for node in self.nodes if partition in node.partitions]


def read_moment(environment: Mapping[str, str], *, with_queue: bool = True) -> ClusterMoment:
    """Return what Slurm shows now. Without `with_queue`, the moment has no jobs and no reservations.

    Raises SlurmError if Slurm does not answer.
    """
    began, asked_at = monotonic(), datetime.now().astimezone()
    with ThreadPoolExecutor(
        6, initializer=client.set_answer_limit, initargs=(client.answer_limit_s(),)
    ) as pool:
        settings = pool.submit(config, environment)
        all_nodes = pool.submit(nodes, environment)
        all_partitions = pool.submit(partitions, environment)
        jobs = pool.submit(_queued_jobs, environment) if with_queue else None
        all_reservations = pool.submit(reservations, environment) if with_queue else None
        last_plan = pool.submit(_last_plan, environment, asked_at) if with_queue else None
    return ClusterMoment(
        now=datetime.now().astimezone(),
        jobs=_with_tiers(jobs.result(), all_partitions.result()) if jobs else (),
        nodes=all_nodes.result(),
        gpu_nodes=gpu_nodes(all_nodes.result(), environment),
        partitions=all_partitions.result(),
        reservations=(all_reservations and all_reservations.result()) or (),
        settings=settings.result(),
        last_plan=last_plan.result() if last_plan else None,
        took_s=monotonic() - began,
    )


def _last_plan(environment: Mapping[str, str], asked_at: datetime) -> datetime | None:
    """Return when backfill began its newest plan, as sdiag says; None if this time is not known.

    A plan that began after `asked_at` does not count, because the answer of squeue may be older.

    LastSchedEval in squeue does not tell when backfill has planned a job. The main scheduler also sets it,
    even for jobs that it skips because an earlier job of the partition has to wait (job_scheduler.c of
    Slurm).
    """
    match = _LAST_PLAN.search(client.answer_if_any(["sdiag"], environment) or "")
    began = datetime.fromtimestamp(int(match[1])).astimezone() if match else None
    return began if began and began < asked_at.replace(microsecond=0) else None


def _with_tiers(jobs: Sequence[QueuedJob], partitions: Sequence[SlurmPartition]) -> list[QueuedJob]:
    """Return the jobs with their `tier`, which is the highest tier of a job's partitions."""
    tiers = {partition.name: partition.tier for partition in partitions}
    return [
        replace(job, tier=max((tiers.get(name, 1) for name in job.partitions), default=1)) for job in jobs
    ]


def _queued_jobs(environment: Mapping[str, str]) -> list[QueuedJob]:
    """Return all jobs that squeue shows."""
    separator = new_separator()
    format_ = ",".join(f"{field}:{separator}" for field in _SQUEUE_FIELDS.values())
    printed = client.answer_text(["squeue", "--all", "--noheader", f"--Format={format_}"], environment)
    return [*_jobs_in(printed, separator)]


def _jobs_in(printed: str, separator: str) -> Iterator[QueuedJob]:
    """Yield the jobs in the output of squeue."""
    for row in table_rows(printed, separator, [*_SQUEUE_FIELDS]):
        node_count = read_count(row["nodes"].partition("-")[0])  # the least number in a range such as "2-4"
        gpus = gpus_in_tres(read_pairs(row["tres"].split(",")))
        gpus_per_node = _GPUS_ON_NODE.search(row["per_node"])
        waiting_tasks = row["id"].partition("_")[2].strip("[]").partition("%")[0]  # "0-5" in "4711_[0-5%2]"
        yield QueuedJob(
            id=row["id"],
            user=read_count(row["user"]),
            name=row["name"],
            state=row["state"],
            reason=row["reason"],
            start=read_time(row["start"]),
            end=read_time(row["end"]),
            priority=read_count(row["priority"]),
            partitions=read_names(row["partition"]),
            nodes=node_count,
            node_names=tuple(hosts(read_text(row["node_list"]))),
            planned_nodes=tuple(hosts(read_text(row["planned"]))),
            gpus=gpus or (int(gpus_per_node[1]) * node_count if gpus_per_node else 0),
            tasks=sum(map(len, indices(waiting_tasks) or ())) or 1,
            qos=read_text(row["qos"]),
            limit_s=read_seconds(row["limit"]),
            submitted=read_time(row["submitted"]),
            last_look=read_time(row["last_look"]),
        )
