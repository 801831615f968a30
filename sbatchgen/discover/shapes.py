"""The kinds of nodes of a partition, with what jobs may use of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sbatchgen.slurm.gpu_nodes import of_node
from sbatchgen.slurm.node import SlurmNode
from sbatchgen.slurm.partition import SlurmPartition

MOST_SHAPES = 6  # of a partition; if there are more, nodes that differ in memory alone are one kind
MEMORY_DIFFERS = "Nodes of a kind differ in memory: mem_per_node is that of the largest."


@dataclass(frozen=True, kw_only=True)
class Shape:
    """CPUs, memory in MiB and GPUs of a node.

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
    """Return the kinds of nodes with their numbers, those with the most GPUs first; and a remark."""
    select = settings.get("SelectTypeParameters", "").upper()
    kinds = Counter(
        _shape(node, partition, memory="MEMORY" in select, cpus="CPU" in select) for node in nodes
    )
    remark = ""
    if len(kinds) > MOST_SHAPES:
        alike: dict[Shape, list[Shape]] = defaultdict(list)
        for shape in kinds:
            alike[replace(shape, memory=0)].append(shape)
        remark = MEMORY_DIFFERS if len(alike) < len(kinds) else ""
        groups = {max(group, key=lambda shape: shape.memory): group for group in alike.values()}
        kinds = Counter({largest: sum(kinds[shape] for shape in group) for largest, group in groups.items()})
    order = sorted(kinds.items(), key=lambda kind: (-kind[0].gpus, -kind[1], -kind[0].cpus, -kind[0].memory))
    return order, remark


def _shape(node: SlurmNode, partition: SlurmPartition, *, memory: bool, cpus: bool) -> Shape:
    """`memory`: jobs share it out; `cpus`: jobs get threads, not whole cores."""
    types: Counter[str] = Counter()
    for gres in node.gres:
        if gres.name == "gpu":
            types[gres.type] += gres.count
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
