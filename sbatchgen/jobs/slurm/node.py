"""The nodes of a live cluster, `scontrol show node`, and their generic resources: GPUs, shards and others.

Slurm hides nodes of the cloud that are switched off, and nodes for later (FUTURE). Source of the lines:
node_info.c and gres.c of Slurm 20.11 to 26.05. sbatch/gres.py reads the resources that a job asks for.
"""

import functools
import re
from collections.abc import Iterator, Mapping

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.gres import amount
from sbatchgen.jobs.slurm.client import answer
from sbatchgen.jobs.slurm.config import from_key, record_of
from sbatchgen.jobs.slurm.fields import read_count, read_limit, read_names, read_pairs, read_text

_ITEM = re.compile(r"(?:\([^()]*\)|[^,(])+")  # "gpu:a100:4(IDX:0,2)"; a comma in parentheses ends no item
_DETAIL = re.compile(r"\(([^()]*)\)$")  # "(IDX:0,2)"
# The shards of each GPU in use, and all: "-/8,3/8", where a job has the whole first GPU.
_PER_GPU = re.compile(r"(?:-|[0-9]+)/[0-9]+(?:,(?:-|[0-9]+)/[0-9]+)*")
# The start of a node's line: "NodeName=n1 Arch=x86_64".
_START = re.compile(r"NodeName=\S+ +(?:Arch|CpuBind|CoresPerSocket)=")
# Fields with free text, which may look like other fields. They follow all fields that are read here.
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra|InstanceId|InstanceType|ReservationName|Topology)=")
# After a reason: " [root@2026-11-02T09:30:00]".
_WHO_AND_WHEN = re.compile(r" \[\S*@[0-9T:-]+\]")


@frozen(slots=True)
class NodeGres:
    """Generic resources of one name and type on a node: the configured, the used or the drained amount."""

    name: str  # "gpu", "shard" or "mps", for example
    type: str = ""  # "a100" for example; "" without a type
    count: int = 0
    consumed: bool = True  # whether jobs use them up; with `no_consume` any number of jobs may have them
    # The indexes of the GPUs in use; for shards before 23.11, of the GPUs with shards in use
    indexes: tuple[int, ...] = ()
    # For shards since 23.11, by GPU: how many are in use, and how many there are; None if a job has the GPU
    per_gpu: tuple[tuple[int | None, int], ...] = ()


@functools.lru_cache(maxsize=4096)  # many nodes of a cluster have the same resources
def node_gres(printed: str) -> tuple[NodeGres, ...]:
    """Return the resources in a value of Gres, GresUsed or GresDrain."""
    return tuple(_item(item) for item in _ITEM.findall(read_text(printed)))


def _item(item: str) -> NodeGres:
    """Return the resources in an item such as "gpu:a100:4(IDX:0-2)"."""
    detail = _DETAIL.search(item)
    inner = detail[1] if detail else ""
    shards = [pair.split("/") for pair in inner.split(",")] if _PER_GPU.fullmatch(inner) else []
    name, *rest = (item[: detail.start()] if detail else item).split(":")
    number = amount(rest[-1]) if rest else None
    if number is not None:
        rest.pop()
    kind = next((part for part in rest if part not in ("no_consume", "(null)")), "")
    return NodeGres(
        name=name,
        type=kind,
        count=1 if number is None else number,  # `gpu:a100` is one GPU, in slurm.conf and in a request
        consumed="no_consume" not in rest,
        indexes=_indexes(inner.removeprefix("IDX:")) if inner.startswith("IDX:") else (),
        per_gpu=tuple((None if used == "-" else read_count(used), read_count(total)) for used, total in shards),
    )


def _indexes(shown: str) -> tuple[int, ...]:
    """Return the numbers in "0-2,5"; none in "N/A"."""
    indexes: list[int] = []
    for part in shown.split(","):
        first, _, last = part.partition("-")
        low, high = read_limit(first), read_limit(last or first)
        if low is not None and high is not None:
            indexes += range(low, min(high, low + 4095) + 1)  # at most 4096, if the output is damaged
    return tuple(indexes)


@functools.lru_cache(maxsize=1024)
def _flags(printed: str) -> frozenset[str]:
    """Return the flags in a state such as "DOWN*+DRAIN"; the star marks a node that does not answer."""
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
    # Why it is down or drained, in the words of an admin or a program; any text
    reason: str = from_key("Reason")
    cpus: int = from_key("CPUTot", read_count)
    cpus_usable: int = from_key("CPUEfctv", read_count)  # CPUs that jobs may have
    cpus_used: int = from_key("CPUAlloc", read_count)  # CPUs that jobs have
    sockets: int = from_key("Sockets", read_count)
    cores_per_socket: int = from_key("CoresPerSocket", read_count)
    threads_per_core: int = from_key("ThreadsPerCore", read_count)
    memory: int = from_key("RealMemory", read_count)
    memory_reserved: int = from_key("MemSpecLimit", read_count)  # memory that jobs can't have
    memory_used: int = from_key("AllocMem", read_count)
    gres: tuple[NodeGres, ...] = from_key("Gres", node_gres)  # generic resources, as configured
    gres_used: tuple[NodeGres, ...] = from_key("GresUsed", node_gres)
    disk: int = from_key("TmpDisk", read_count)  # in MiB
    features: tuple[str, ...] = from_key("AvailableFeatures", read_names)  # names for --constraint
    last_busy: str = from_key("LastBusyTime")  # when its last job ended, if it has no job


def nodes(environment: Mapping[str, str], *, future: bool = False) -> list[SlurmNode]:
    """Return all nodes that Slurm shows, with `future` also FUTURE nodes. Raises SlurmError."""
    future_option = ["-F"] if future else []
    return list(nodes_in(answer(["scontrol", "-a", "-o", "-d", *future_option, "show", "node"], environment)))


def nodes_in(printed: str) -> Iterator[SlurmNode]:
    """Yield the nodes in the output of scontrol, which has a line for each; skip other lines."""
    for line in filter(_START.match, printed.split("\n")):
        # The value of OS, the release of a kernel, has blanks, so skip the fields from OS to RealMemory.
        fields, _, rest = line.partition(" OS=")
        fields += rest[max(rest.find(" RealMemory="), 0) :] if rest else ""
        free_text = _FREE_TEXT.search(fields)
        values = read_pairs((fields[: free_text.start()] if free_text else fields).split())
        if free_text and free_text[0] == " Reason=":  # other free texts may follow the reason
            reason = _FREE_TEXT.split(fields[free_text.end() :], maxsplit=1)[0]
            values["Reason"] = " ".join(_WHO_AND_WHEN.sub("", reason, count=1).split())
        if not read_count(values["CPUEfctv"]):  # Slurm prints this field since 22.05
            values["CPUEfctv"] = values["CPUTot"]
        yield record_of(SlurmNode, values)
