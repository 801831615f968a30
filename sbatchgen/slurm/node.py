"""The nodes of a live cluster: `scontrol show node`.

Nodes that Slurm hides are left out: those in the cloud that are switched off, and those for later (FUTURE).
Source of the lines: node_info.c of Slurm 20.11 to 26.05.
"""

import functools
import re
from collections.abc import Iterator, Mapping

from sbatchgen.frozen import frozen
from sbatchgen.slurm.client import answer
from sbatchgen.slurm.config import printed, record_of
from sbatchgen.slurm.node_gres import NodeGres, node_gres
from sbatchgen.slurm.printed import count, names, pairs

_START = re.compile(r"NodeName=\S+ +(?:Arch|CpuBind|CoresPerSocket)=")
# Free text that follows all that is read here, the reason first; it may hold anything.
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra|InstanceId|InstanceType|ReservationName|Topology)=")
_WHO_AND_WHEN = re.compile(r" \[\S*@[0-9T:-]+\]")


@functools.lru_cache(maxsize=1024)
def _flags(printed: str) -> frozenset[str]:
    """Return the flags in "DOWN*+DRAIN"; the star is for a node that does not answer."""
    flags = {flag.rstrip("*") for flag in printed.split("+")[1:]}
    return frozenset(flags | {"NOT_RESPONDING"} if "*" in printed else flags)


@frozen(kw_only=True, slots=True)
class SlurmNode:
    """A node as the controller knows it; memory is in MiB."""

    name: str = printed("NodeName")
    partitions: tuple[str, ...] = printed("Partitions", names)
    # As "IDLE", "MIXED", "ALLOCATED" or "DOWN", without its flags
    state: str = printed("State", lambda state: state.partition("+")[0].rstrip("*~#!%$@^-"))
    # As "DRAIN", "NOT_RESPONDING", "CLOUD", "POWERED_DOWN", "RESERVED"
    flags: frozenset[str] = printed("State", _flags)
    # Why it is down or drained, in the words of an admin or a program; it may hold anything
    reason: str = printed("Reason")
    cpus: int = printed("CPUTot", count)
    cpus_usable: int = printed("CPUEfctv", count)  # CPUs that jobs may have
    cpus_used: int = printed("CPUAlloc", count)  # CPUs that jobs have
    sockets: int = printed("Sockets", count)
    cores_per_socket: int = printed("CoresPerSocket", count)
    threads_per_core: int = printed("ThreadsPerCore", count)
    memory: int = printed("RealMemory", count)
    memory_reserved: int = printed("MemSpecLimit", count)  # kept from jobs
    memory_used: int = printed("AllocMem", count)
    gres: tuple[NodeGres, ...] = printed("Gres", node_gres)  # generic resources, as configured
    gres_used: tuple[NodeGres, ...] = printed("GresUsed", node_gres)
    disk: int = printed("TmpDisk", count)  # in MiB
    features: tuple[str, ...] = printed("AvailableFeatures", names)  # what --constraint may name


def nodes(environment: Mapping[str, str], *, future: bool = False) -> list[SlurmNode]:
    """Return all nodes that Slurm shows, with `future` also nodes for later; SlurmError without an answer."""
    later = ["-F"] if future else []
    return list(nodes_in(answer(["scontrol", "-a", "-o", "-d", *later, "show", "node"], environment)))


def nodes_in(printed: str) -> Iterator[SlurmNode]:
    """Yield the nodes in what scontrol printed, one a line; other lines are skipped."""
    for line in filter(_START.match, printed.split("\n")):
        known, _, rest = line.partition(" OS=")  # the release of a kernel has blanks
        known += rest[max(rest.find(" RealMemory="), 0) :] if rest else ""
        free = _FREE_TEXT.search(known)
        values = pairs((known[: free.start()] if free else known).split())
        if free and free[0] == " Reason=":  # on one line, without who gave it and when; other text may follow
            reason = _FREE_TEXT.split(known[free.end() :], maxsplit=1)[0]
            values["Reason"] = " ".join(_WHO_AND_WHEN.sub("", reason, count=1).split())
        if not count(values["CPUEfctv"]):  # since 22.05
            values["CPUEfctv"] = values["CPUTot"]
        yield record_of(SlurmNode, values)
