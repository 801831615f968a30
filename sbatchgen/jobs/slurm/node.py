"""Reads the nodes of a live cluster from `scontrol show node`, with their generic resources such as GPUs.

Slurm does not show cloud nodes that are switched off, and nodes that are planned for later (FUTURE). The
regular expressions follow node_info.c and gres.c of Slurm 20.11 to 26.05. `check.sbatch.gres` reads the
generic resources that a job requests.
"""

import functools
import re
from collections.abc import Iterator, Mapping

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.gres import parse_amount
from sbatchgen.jobs.slurm.client import answer_text
from sbatchgen.jobs.slurm.config import from_key, record_of
from sbatchgen.jobs.slurm.fields import read_count, read_limit, read_names, read_pairs, read_text

# An item of a list such as "gpu:a100:4(IDX:0,2),shard:8". A comma in parentheses does not end the item.
_ITEM = re.compile(r"(?:\([^()]*\)|[^,(])+")
_DETAIL = re.compile(r"\(([^()]*)\)$")  # "(IDX:0,2)"
# For each GPU the number of shards in use and of all its shards. In "-/8,3/8", a job has the whole first GPU.
_PER_GPU = re.compile(r"(?:-|[0-9]+)/[0-9]+(?:,(?:-|[0-9]+)/[0-9]+)*")
# The start of a node's line: "NodeName=n1 Arch=x86_64".
_START = re.compile(r"NodeName=\S+ +(?:Arch|CpuBind|CoresPerSocket)=")
# Fields with free text, which may look like other fields. They follow all fields that are read here.
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra|InstanceId|InstanceType|ReservationName|Topology)=")
# Who has set the reason, and when: " [root@2026-11-02T09:30:00]"
_AUTHOR_OF_REASON = re.compile(r" \[\S*@[0-9T:-]+\]")


@frozen(slots=True)
class NodeGres:
    """Generic resources of one name and type on a node: the configured, the used or the drained amount."""

    name: str  # such as "gpu", "shard" or "mps"
    type: str = ""  # such as "a100"; "" without a type
    count: int = 0
    is_consumed: bool = True  # whether jobs use them up; with `no_consume` any number of jobs may have them
    # The indexes of the GPUs in use. For shards before 23.11, the indexes of the GPUs with shards in use
    indexes: tuple[int, ...] = ()
    # For shards since 23.11, a pair for each GPU: the shards in use, or None if a job has the whole GPU; and
    # all shards of the GPU
    per_gpu: tuple[tuple[int | None, int], ...] = ()


@functools.lru_cache(maxsize=4096)  # many nodes of a cluster have the same resources
def node_gres(printed: str) -> tuple[NodeGres, ...]:
    """Return the resources in a value of Gres, GresUsed or GresDrain."""
    return tuple(_gres_of_item(item) for item in _ITEM.findall(read_text(printed)))


def _gres_of_item(item: str) -> NodeGres:
    """Return the resources in an item such as "gpu:a100:4(IDX:0-2)"."""
    match = _DETAIL.search(item)
    detail = match[1] if match else ""
    shards = [pair.split("/") for pair in detail.split(",")] if _PER_GPU.fullmatch(detail) else []
    name, *parts = (item[: match.start()] if match else item).split(":")
    number = parse_amount(parts[-1]) if parts else None
    if number is not None:
        parts.pop()
    gres_type = next((part for part in parts if part not in ("no_consume", "(null)")), "")
    return NodeGres(
        name=name,
        type=gres_type,
        count=1 if number is None else number,  # `gpu:a100` is one GPU, in slurm.conf and in a request
        is_consumed="no_consume" not in parts,
        indexes=_indexes(detail.removeprefix("IDX:")) if detail.startswith("IDX:") else (),
        per_gpu=tuple(
            (None if used == "-" else read_count(used), read_count(total)) for used, total in shards
        ),
    )


def _indexes(shown: str) -> tuple[int, ...]:
    """Return the numbers in a list such as "0-2,5"; no numbers for "N/A"."""
    indexes: list[int] = []
    for part in shown.split(","):
        first, _, last = part.partition("-")
        low, high = read_limit(first), read_limit(last or first)
        if low is not None and high is not None:
            indexes += range(low, min(high, low + 4095) + 1)  # damaged output may have a huge range
    return tuple(indexes)


@functools.lru_cache(maxsize=1024)
def _flags(printed: str) -> frozenset[str]:
    """Return the flags in a state such as "DOWN+DRAIN".

    A star, as in "DOWN*", marks a node that does not respond. The result has the flag NOT_RESPONDING for it.
    """
    flags = {flag.rstrip("*") for flag in printed.split("+")[1:]}
    return frozenset(flags | {"NOT_RESPONDING"} if "*" in printed else flags)


@frozen(kw_only=True, slots=True)
class SlurmNode:
    """A node as the controller knows it; memory is in MiB."""

    name: str = from_key("NodeName")
    partitions: tuple[str, ...] = from_key("Partitions", read_names)
    # "IDLE", "MIXED", "ALLOCATED" or "DOWN", for example; without flags
    state: str = from_key("State", lambda state: state.partition("+")[0].rstrip("*~#!%$@^-"))
    # Flags of the state, such as "DRAIN", "NOT_RESPONDING", "CLOUD", "POWERED_DOWN" and "RESERVED"
    flags: frozenset[str] = from_key("State", _flags)
    # Why the node is down or drained: any text that an administrator or a program has set
    reason: str = from_key("Reason")
    cpus: int = from_key("CPUTot", read_count)
    cpus_usable: int = from_key("CPUEfctv", read_count)  # CPUs that jobs may get
    cpus_used: int = from_key("CPUAlloc", read_count)  # CPUs that jobs have
    sockets: int = from_key("Sockets", read_count)
    cores_per_socket: int = from_key("CoresPerSocket", read_count)
    threads_per_core: int = from_key("ThreadsPerCore", read_count)
    memory: int = from_key("RealMemory", read_count)
    memory_reserved: int = from_key("MemSpecLimit", read_count)  # memory that jobs can't get
    memory_used: int = from_key("AllocMem", read_count)
    gres: tuple[NodeGres, ...] = from_key("Gres", node_gres)  # generic resources, as configured
    gres_used: tuple[NodeGres, ...] = from_key("GresUsed", node_gres)
    disk: int = from_key("TmpDisk", read_count)  # in MiB
    features: tuple[str, ...] = from_key("AvailableFeatures", read_names)  # names for --constraint
    last_busy: str = from_key("LastBusyTime")  # on a node without jobs, the time when its last job ended


def nodes(environment: Mapping[str, str], *, future: bool = False) -> list[SlurmNode]:
    """Return all nodes that Slurm shows; with `future`, also the nodes that are planned for later.

    Raises SlurmError if Slurm does not answer.
    """
    future_option = ["-F"] if future else []
    return list(
        nodes_in(answer_text(["scontrol", "-a", "-o", "-d", *future_option, "show", "node"], environment))
    )


def nodes_in(printed: str) -> Iterator[SlurmNode]:
    """Yield the nodes in the output of scontrol, which has a line for each node; other lines are skipped."""
    for line in filter(_START.match, printed.split("\n")):
        # The value of OS is the release of a kernel, which has blanks. It ends before the field RealMemory.
        before_os, _, from_os = line.partition(" OS=")
        after_os = from_os[max(from_os.find(" RealMemory="), 0) :] if from_os else ""
        fields = before_os + after_os
        free_text = _FREE_TEXT.search(fields)
        values = read_pairs((fields[: free_text.start()] if free_text else fields).split())
        if free_text and free_text[0] == " Reason=":
            reason = _FREE_TEXT.split(fields[free_text.end() :], maxsplit=1)[0]  # up to the next free text
            values["Reason"] = " ".join(_AUTHOR_OF_REASON.sub("", reason, count=1).split())
        if not read_count(values["CPUEfctv"]):  # Slurm prints this field since 22.05
            values["CPUEfctv"] = values["CPUTot"]
        yield record_of(SlurmNode, values)
