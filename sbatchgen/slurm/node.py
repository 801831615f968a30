"""The nodes of a live cluster: `scontrol show node`.

Nodes that Slurm hides are left out: those in the cloud that are switched off, and those for later (FUTURE).
Source of the lines: node_info.c of Slurm 20.11 to 26.05.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sbatchgen.slurm.command import answer
from sbatchgen.slurm.gres import NodeGres, node_gres
from sbatchgen.slurm.printed import count, names, pairs

_START = re.compile(r"NodeName=\S+ +(?:Arch|CpuBind|CoresPerSocket)=")
# Free text that stands behind all that is read here, the reason first; it may hold anything.
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra|InstanceId|InstanceType|ReservationName|Topology)=")
_WHO_AND_WHEN = re.compile(r" \[\S*@[0-9T:-]+\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmNode:
    """A node as the controller knows it; memory is in MiB.

    Attributes:
        name: Its name.
        partitions: Those that it is in.
        state: As "IDLE", "MIXED", "ALLOCATED" or "DOWN", without its flags.
        flags: As "DRAIN", "NOT_RESPONDING", "CLOUD", "POWERED_DOWN", "RESERVED".
        reason: Why it is down or drained, in the words of an admin or a program; it may hold anything.
        cpus, cpus_usable, cpus_used: All, those that jobs may have, and those that jobs have.
        sockets, cores_per_socket, threads_per_core: As configured.
        memory, memory_reserved, memory_used: All (RealMemory), what is kept from jobs (MemSpecLimit), and
            what jobs have.
        gres, gres_used: Generic resources, as configured, and in use.
        features: What --constraint may name.
    """

    name: str
    partitions: tuple[str, ...]
    state: str
    flags: frozenset[str]
    reason: str
    cpus: int
    cpus_usable: int
    cpus_used: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory: int
    memory_reserved: int
    memory_used: int
    gres: tuple[NodeGres, ...]
    gres_used: tuple[NodeGres, ...]
    features: tuple[str, ...]


def nodes(environment: Mapping[str, str]) -> list[SlurmNode]:
    """All nodes that the controller shows to this user.

    Raises:
        SlurmError: scontrol can't be started, does not end in time, or fails.
    """
    return list(nodes_in(answer(["scontrol", "-a", "-o", "-d", "show", "node"], environment)))


def nodes_in(printed: str) -> Iterator[SlurmNode]:
    """The nodes in what scontrol printed, one a line; what stands between is passed over."""
    return (_node(line) for line in printed.split("\n") if _START.match(line))


def _node(line: str) -> SlurmNode:
    known, _, rest = line.partition(" OS=")  # the release of a kernel has blanks
    known += rest[max(rest.find(" RealMemory="), 0) :] if rest else ""
    free = _FREE_TEXT.search(known)
    values = pairs((known[: free.start()] if free else known).split())
    state, flags = _state(values["State"])
    cpus = count(values["CPUTot"])
    return SlurmNode(
        name=values["NodeName"],
        partitions=names(values["Partitions"]),
        state=state,
        flags=flags,
        reason=_reason(known[free.end() :]) if free and free[0] == " Reason=" else "",
        cpus=cpus,
        cpus_usable=count(values["CPUEfctv"]) or cpus,  # since 22.05
        cpus_used=count(values["CPUAlloc"]),
        sockets=count(values["Sockets"]),
        cores_per_socket=count(values["CoresPerSocket"]),
        threads_per_core=count(values["ThreadsPerCore"]),
        memory=count(values["RealMemory"]),
        memory_reserved=count(values["MemSpecLimit"]),
        memory_used=count(values["AllocMem"]),
        gres=node_gres(values["Gres"]),
        gres_used=node_gres(values["GresUsed"]),
        features=names(values["AvailableFeatures"]),
    )


@functools.lru_cache(maxsize=1024)
def _state(printed: str) -> tuple[str, frozenset[str]]:
    """The state and its flags in "DOWN*+DRAIN"; the star is for a node that does not answer."""
    base, *flags = printed.split("+")
    state = base.rstrip("*~#!%$@^-")
    return state, frozenset(flag.rstrip("*") for flag in flags) | (
        {"NOT_RESPONDING"} if "*" in printed else set()
    )


def _reason(free_text: str) -> str:
    """The reason, on one line, without who gave it and when; other free text may follow it."""
    (reason, *_) = _FREE_TEXT.split(free_text, maxsplit=1)
    return " ".join(_WHO_AND_WHEN.sub("", reason, count=1).split())
