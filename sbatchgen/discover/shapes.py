"""The kinds of nodes of a partition, with what jobs may use of them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from sbatchgen.slurm.gpu_nodes import of_node
from sbatchgen.slurm.node import SlurmNode

MOST_SHAPES = 6  # of a partition; if there are more, nodes that differ in details are one kind
ALIKE = 1.05  # how much memory differs within a kind: slurmd -C prints another number on each node


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a node has, memory and disk in MiB.

    Attributes:
        memory, largest: Of the smallest and of the largest such node.
        types: Types of its GPUs, with their numbers.
        untyped: How many of them have no type.
        shards: Shards of each GPU; None if it has none, or not the same on each.
        gres: Generic resources besides GPUs, with their numbers.
        disk: TmpDisk.
        features: What --constraint may name.
    """

    cpus: int
    threads: int
    memory: int
    largest: int
    gpus: int
    types: tuple[tuple[str, int], ...]
    untyped: int
    shards: int | None
    gres: tuple[tuple[str, int], ...]
    disk: int
    features: tuple[str, ...]


Kinds = dict[Shape, int]


def shapes(nodes: Iterable[SlurmNode], settings: Mapping[str, str]) -> list[tuple[Shape, int]]:
    """Return the kinds of nodes with their numbers, those with the most GPUs first."""
    select = settings.get("SelectTypeParameters", "").upper()
    kinds: Kinds = Counter(_shape(node, memory="MEMORY" in select, cpus="CPU" in select) for node in nodes)
    kinds = _merged(kinds, lambda shape: replace(shape, memory=0, largest=0), ALIKE)
    if len(kinds) > MOST_SHAPES:
        kinds = _merged(kinds, lambda shape: replace(shape, memory=0, largest=0, features=()), ALIKE)
    if len(kinds) > MOST_SHAPES:
        kinds = _merged(
            kinds, lambda shape: replace(shape, memory=0, largest=0, features=(), disk=0), math.inf
        )
    return sorted(kinds.items(), key=lambda kind: (-kind[0].gpus, -kind[1], -kind[0].cpus, -kind[0].memory))


def _merged(kinds: Kinds, key: Callable[[Shape], Shape], most: float) -> Kinds:
    """Return kinds with those made one whose keys are equal, and whose memory differs by no more than `most`.

    Such a kind has the smallest memory, the largest disk and all features: what one of its nodes may have.
    """
    groups: dict[Shape, list[Shape]] = defaultdict(list)
    for shape in sorted(kinds, key=lambda shape: shape.memory):
        groups[key(shape)].append(shape)
    made: Kinds = {}
    for group in groups.values():
        while group:
            alike = [shape for shape in group if shape.largest <= group[0].memory * most]
            alike = alike or group[:1]
            group[:] = [shape for shape in group if shape not in alike]
            one = replace(
                alike[0],
                largest=max(shape.largest for shape in alike),
                disk=max(shape.disk for shape in alike),
                features=tuple(dict.fromkeys(name for shape in alike for name in shape.features)),
            )
            made[one] = made.get(one, 0) + sum(kinds[shape] for shape in alike)
    return made


def _shape(node: SlurmNode, *, memory: bool, cpus: bool) -> Shape:
    """`memory`: jobs share it out; `cpus`: jobs get threads, not whole cores."""
    types: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for gres in node.gres:
        if gres.name == "gpu":
            types[gres.type] += gres.count
        else:
            others[gres.name] += gres.count
    shards = {gpu.shards for gpu in of_node(node, {}).gpus}
    threads = node.threads_per_core
    whole = node.cpus == node.sockets * node.cores_per_socket * threads  # else a CPU is a core
    free = node.memory - (node.memory_reserved if memory else 0)
    return Shape(
        cpus=node.cpus_usable,
        threads=threads if whole and not cpus else 1,
        memory=free,
        largest=free,
        gpus=sum(types.values()),
        types=tuple(sorted((kind, count) for kind, count in types.items() if kind and count)),
        untyped=types[""],
        shards=shards.pop() or None if len(shards) == 1 else None,
        gres=tuple(sorted((name, count) for name, count in others.items() if name and count)),
        disk=node.disk,
        features=node.features,
    )
