"""The kinds of nodes of a partition: what nodes have, as far as jobs may have it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sbatchgen.slurm.gpu_nodes import of_node
from sbatchgen.slurm.node import SlurmNode
from sbatchgen.slurm.partition import SlurmPartition

MOST_SHAPES = 6  # of a partition; beyond, nodes that differ in memory alone are taken together
MEMORY_DIFFERS = "Nodes of a kind differ in memory: mem_per_node is that of the largest."


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a node has; memory in MiB.

    Attributes:
        types: Types of its GPUs, with their numbers.
        untyped: How many of them have no type.
        shards: Shards of each GPU; None if it has none, or not the same on each.
    """

    cpus: int
    threads: int
    memory: int
    gpus: int
    types: tuple[tuple[str, int], ...]
    untyped: int
    shards: int | None


def shapes(
    nodes: Iterable[SlurmNode], partition: SlurmPartition, settings: Mapping[str, str]
) -> tuple[list[tuple[Shape, int]], str]:
    """The kinds of nodes and how many there are of each, those with the most GPUs first; and a remark."""
    how = settings.get("SelectTypeParameters", "").upper()
    found = Counter(_shape(node, partition, memory="MEMORY" in how, cpus="CPU" in how) for node in nodes)
    remark = ""
    if len(found) > MOST_SHAPES:
        found, before = _without_memory(found), len(found)
        remark = MEMORY_DIFFERS if len(found) < before else ""
    return sorted(
        found.items(), key=lambda one: (-one[0].gpus, -one[1], -one[0].cpus, -one[0].memory)
    ), remark


def _shape(node: SlurmNode, partition: SlurmPartition, *, memory: bool, cpus: bool) -> Shape:
    """`memory`: jobs share it out; `cpus`: jobs get threads, not whole cores."""
    gpus = [one for one in node.gres if one.name == "gpu"]
    types: Counter[str] = Counter()
    for one in gpus:
        types[one.type] += one.count
    shards = {gpu.shards for gpu in of_node(node, {}).gpus}
    threads = node.threads_per_core
    whole = node.cpus == node.sockets * node.cores_per_socket * threads  # else a CPU is a core
    most_cpus = partition.cpus_per_node_max or node.cpus_usable
    most_memory = partition.mem_per_node_max or node.memory
    return Shape(
        cpus=min(node.cpus_usable, most_cpus),
        threads=threads if whole and not cpus else 1,
        memory=min(node.memory - (node.memory_reserved if memory else 0), most_memory),
        gpus=sum(types.values()),
        types=tuple(sorted((kind, count) for kind, count in types.items() if kind and count)),
        untyped=types[""],
        shards=shards.pop() or None if len(shards) == 1 else None,
    )


def _without_memory(found: Counter[Shape]) -> Counter[Shape]:
    """Nodes that differ in memory alone as one kind, with the most that one of them has."""
    alike: dict[Shape, list[Shape]] = defaultdict(list)
    for shape in found:
        alike[replace(shape, memory=0)].append(shape)
    return Counter(
        {
            replace(kind, memory=max(one.memory for one in those)): sum(found[one] for one in those)
            for kind, those in alike.items()
        }
    )
