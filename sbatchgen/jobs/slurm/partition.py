"""Asks scontrol(1) for the partitions and reservations of a live cluster."""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.slurm.client import answer_if_any, answer_text
from sbatchgen.jobs.slurm.config import from_key, record_of
from sbatchgen.jobs.slurm.fields import (
    read_count,
    read_limit,
    read_names,
    read_pairs,
    read_seconds,
    read_text,
    read_time,
)

# The blanks before a field such as "Nodes=". Other blanks are part of a value, such as the name of a group.
_SEPARATOR = re.compile(r" +(?=[A-Z][A-Za-z]*=)")


def _is_yes(printed: str) -> bool:
    return printed == "YES"


def _allowed_names(printed: str) -> tuple[str, ...]:
    """Return the names in a list of allowed names; no names if "ALL" are allowed."""
    return () if printed == "ALL" else read_names(printed)


@frozen(kw_only=True, slots=True)
class SlurmPartition:
    """A partition as the controller knows it; memory is in MiB, and None means "no limit" or "not set"."""

    name: str = from_key("PartitionName")
    state: str = from_key("State", str.lower)  # "up", "down", "drain" or "inactive"
    default: bool = from_key("Default", _is_yes)  # whether jobs that name no partition run in it
    hidden: bool = from_key("Hidden", _is_yes)  # whether Slurm shows it only with --all
    node_list: str = from_key("Nodes", read_text)  # "n[1-4]"; "" without nodes
    nodes: int = from_key("TotalNodes", read_count)  # the number of nodes, also of hidden ones
    cpus: int = from_key("TotalCPUs", read_count)  # the CPUs of all nodes
    time_max_s: int | None = from_key("MaxTime", read_seconds)
    time_default_s: int | None = from_key("DefaultTime", read_seconds)
    nodes_max: int | None = from_key("MaxNodes", read_limit)
    nodes_min: int | None = from_key("MinNodes", lambda nodes: read_limit(nodes) or None)
    # The only accounts, QOS and groups that may use the partition; empty if all may
    accounts: tuple[str, ...] = from_key("AllowAccounts", _allowed_names)
    qos: tuple[str, ...] = from_key("AllowQos", _allowed_names)
    groups: tuple[str, ...] = from_key("AllowGroups", _allowed_names)
    accounts_denied: tuple[str, ...] = from_key("DenyAccounts", read_names)
    qos_denied: tuple[str, ...] = from_key("DenyQos", read_names)
    own_qos: str = from_key("QoS", read_text)  # the QOS whose limits apply to all jobs in the partition
    # The defaults of jobs in the partition
    cpus_per_gpu: int | None = from_key("DefCpuPerGPU", read_limit)
    mem_per_gpu: int | None = from_key("DefMemPerGPU", read_limit)
    mem_per_cpu: int | None = from_key("DefMemPerCPU", read_limit)
    mem_per_node: int | None = from_key("DefMemPerNode", read_limit)
    mem_per_cpu_max: int | None = from_key("MaxMemPerCPU", read_limit)
    mem_per_node_max: int | None = from_key("MaxMemPerNode", read_limit)
    cpus_per_node_max: int | None = from_key("MaxCPUsPerNode", read_limit)
    # Whether jobs get whole nodes
    exclusive: bool = from_key("Exclusive", lambda text: "EXCLUSIVE" in text or text.startswith("NODE "))
    # Whether jobs always share CPUs. With FORCE:1, they share CPUs only with suspended jobs.
    oversubscribed: bool = from_key("OverSubscribe", lambda text: read_count(text.removeprefix("FORCE:")) > 1)
    topology: str = from_key("Topology", read_text)  # its entry in topology.yaml; "" without one
    reservation_only: bool = from_key("ReqResv", _is_yes)  # whether each job must name a reservation
    root_only: bool = from_key("RootOnly", _is_yes)  # whether only root may submit jobs
    # The hosts from which jobs may be submitted; "" for all hosts
    submit_hosts: str = from_key("AllocNodes", lambda hosts: "" if hosts == "ALL" else read_text(hosts))
    preempt: str = from_key("PreemptMode")  # such as "REQUEUE", "CANCEL" or "OFF"
    # Jobs in a partition of a higher tier start first, and may preempt other jobs.
    tier: int = from_key("PriorityTier", read_count)
    billing: str = from_key("TRESBillingWeights", read_text)  # "CPU=1.0,Mem=0.25G,GRES/gpu=4.0"
    grace_s: int = from_key("GraceTime", read_count)  # the seconds between preempting and killing a job


def partitions(environment: Mapping[str, str]) -> list[SlurmPartition]:
    """Return all partitions that this user may see, also hidden partitions.

    Raises SlurmError if Slurm does not answer.
    """
    return list(partitions_in(answer_text(["scontrol", "-a", "-o", "show", "partition"], environment)))


def partitions_in(printed: str) -> Iterator[SlurmPartition]:
    """Yield the partitions in the output of scontrol, which has a line for each partition."""
    for line in (line for line in printed.split("\n") if line.startswith("PartitionName=")):
        values = read_pairs(_SEPARATOR.split(line.strip()))
        values |= read_pairs(values["JobDefaults"].split(","))
        # Some releases print EXCLUSIVE in the field Exclusive, and others in OverSubscribe.
        values["Exclusive"] += f" {values['OverSubscribe']}"
        yield record_of(SlurmPartition, values)


@frozen(kw_only=True, slots=True)
class SlurmReservation:
    """A reservation as the controller knows it."""

    name: str = from_key("ReservationName")
    nodes: str = from_key("Nodes", read_text)  # "n[1-4]"; "" if it reserves only licences for example
    partition: str = from_key("PartitionName", read_text)  # the partition of its nodes; "" if it names none
    start: datetime | None = from_key("StartTime", read_time)
    # The time of its end, such as "2026-01-31T12:00:00+01:00"; "" if it has no end
    end: str = from_key("EndTime", lambda text: end.isoformat() if (end := read_time(text)) else "")
    flags: tuple[str, ...] = from_key("Flags", read_names)  # such as "FLEX" and "DAILY"
    # Who may use it. A list with "-ann" allows everybody but ann, and an empty list allows everybody.
    users: tuple[str, ...] = from_key("Users", read_names)
    groups: tuple[str, ...] = from_key("Groups", read_names)
    accounts: tuple[str, ...] = from_key("Accounts", read_names)

    def is_open_to(self, user: str, groups: Collection[str], accounts: Collection[str]) -> bool:
        """Return whether a user may use the reservation.

        Each list that names who is allowed must name the user, a group or an account of the user. A list that
        names who is excluded is not checked.
        """
        lists = (self.users, {user}), (self.groups, {*groups}), (self.accounts, {*accounts})
        allowing_lists = (
            (allowed, own_names) for allowed, own_names in lists if allowed and allowed[0][:1] != "-"
        )
        return all(own_names & {*allowed} for allowed, own_names in allowing_lists)


def reservations(environment: Mapping[str, str]) -> list[SlurmReservation] | None:
    """Return all reservations that Slurm shows to this user; None if the controller does not answer."""
    shown = answer_if_any(["scontrol", "-o", "show", "reservation"], environment)
    return None if shown is None else [*reservations_in(shown)]


def reservations_in(printed: str) -> Iterator[SlurmReservation]:
    """Yield the reservations in the output of scontrol, which has a line for each reservation."""
    for line in (line for line in printed.split("\n") if line.startswith("ReservationName=")):
        yield record_of(SlurmReservation, read_pairs(line.partition(" Comment=")[0].split()))
