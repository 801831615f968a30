"""The partitions of a live cluster: `scontrol show partition`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sbatchgen.slurm.command import answer
from sbatchgen.slurm.printed import count, limit, names, pairs, seconds, text

_BETWEEN = re.compile(r" +(?=[A-Z][A-Za-z]*=)")  # groups may have blanks in their names


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmPartition:
    """A partition as the controller knows it; memory is in MiB, and None is "no limit" or "not set".

    Attributes:
        name: Its name.
        state: "up", "down", "drain" or "inactive".
        default, hidden: Whether it takes jobs that name none, and whether Slurm shows it without --all.
        node_list: Its nodes: "n[1-4]"; "" if it has none.
        nodes, cpus: How many, all nodes together, also those that are hidden.
        time_max_s, time_default_s: Limits of time.
        nodes_max, nodes_min: Limits of a job.
        accounts, qos, groups: Who alone may use it; empty: all.
        accounts_denied, qos_denied: Who may not.
        own_qos: A quality of service whose limits are those of the partition, too; "" if it has none.
        cpus_per_gpu, mem_per_gpu, mem_per_cpu, mem_per_node: What a job gets that asks for none.
        mem_per_cpu_max, mem_per_node_max, cpus_per_node_max: Limits.
        exclusive: Jobs get whole nodes.
        reservation_only, root_only: Only jobs with a reservation, or of root.
        preempt: PreemptMode, as "REQUEUE", "CANCEL" or "OFF".
        grace_s: How long a job lasts once it is preempted.
    """

    name: str
    state: str
    default: bool
    hidden: bool
    node_list: str
    nodes: int
    cpus: int
    time_max_s: int | None
    time_default_s: int | None
    nodes_max: int | None
    nodes_min: int | None
    accounts: tuple[str, ...]
    qos: tuple[str, ...]
    groups: tuple[str, ...]
    accounts_denied: tuple[str, ...]
    qos_denied: tuple[str, ...]
    own_qos: str
    cpus_per_gpu: int | None
    mem_per_gpu: int | None
    mem_per_cpu: int | None
    mem_per_node: int | None
    mem_per_cpu_max: int | None
    mem_per_node_max: int | None
    cpus_per_node_max: int | None
    exclusive: bool
    reservation_only: bool
    root_only: bool
    preempt: str
    grace_s: int


def partitions(environment: Mapping[str, str]) -> list[SlurmPartition]:
    """All partitions that the controller shows to this user, hidden ones too.

    Raises:
        SlurmError: scontrol can't be started, does not end in time, or fails.
    """
    return list(partitions_in(answer(["scontrol", "-a", "-o", "show", "partition"], environment)))


def partitions_in(printed: str) -> Iterator[SlurmPartition]:
    """The partitions in what scontrol printed, one a line."""
    return (_partition(line) for line in printed.split("\n") if line.startswith("PartitionName="))


def _partition(line: str) -> SlurmPartition:
    values = pairs(_BETWEEN.split(line.strip()))
    given = pairs(values["JobDefaults"].split(","))
    return SlurmPartition(
        name=values["PartitionName"],
        state=values["State"].lower(),
        default=values["Default"] == "YES",
        hidden=values["Hidden"] == "YES",
        node_list=text(values["Nodes"]),
        nodes=count(values["TotalNodes"]),
        cpus=count(values["TotalCPUs"]),
        time_max_s=seconds(values["MaxTime"]),
        time_default_s=seconds(values["DefaultTime"]),
        nodes_max=limit(values["MaxNodes"]),
        nodes_min=limit(values["MinNodes"]) or None,
        accounts=_allowed(values["AllowAccounts"]),
        qos=_allowed(values["AllowQos"]),
        groups=_allowed(values["AllowGroups"]),
        accounts_denied=names(values["DenyAccounts"]),
        qos_denied=names(values["DenyQos"]),
        own_qos=text(values["QoS"]),
        cpus_per_gpu=limit(given["DefCpuPerGPU"]),
        mem_per_gpu=limit(given["DefMemPerGPU"]),
        mem_per_cpu=limit(values["DefMemPerCPU"]),
        mem_per_node=limit(values["DefMemPerNode"]),
        mem_per_cpu_max=limit(values["MaxMemPerCPU"]),
        mem_per_node_max=limit(values["MaxMemPerNode"]),
        cpus_per_node_max=limit(values["MaxCPUsPerNode"]),
        exclusive="EXCLUSIVE" in values["OverSubscribe"] or values["Exclusive"] == "NODE",
        reservation_only=values["ReqResv"] == "YES",
        root_only=values["RootOnly"] == "YES",
        preempt=values["PreemptMode"],
        grace_s=count(values["GraceTime"]),
    )


def _allowed(printed: str) -> tuple[str, ...]:
    return () if printed == "ALL" else names(printed)
