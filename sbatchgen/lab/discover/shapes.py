"""The kinds of nodes of a partition, with the resources that jobs may use."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.slurm.gpu_nodes import node_with_gpus
from sbatchgen.jobs.slurm.node import SlurmNode

MAX_SHAPES = 6  # kinds of nodes of a partition; with more, nodes that differ in details count as alike
MEMORY_RATIO = (
    1.05  # the largest ratio of memory within a kind, because slurmd -C prints another number on each node
)

_UNREGISTERED = {"CLOUD", "NOT_RESPONDING", "POWERED_DOWN"}


@frozen(kw_only=True)
class Shape:
    """The resources of a kind of nodes, with memory and disk in MiB."""

    cpus: int
    threads: int
    memory: int  # of the node with the least memory
    largest: int  # memory of the node with the most
    gpus: int
    types: tuple[tuple[str, int], ...]  # types of GPUs, each with the number of GPUs on a node
    untyped: int  # how many GPUs have no type
    shards: int | None  # shards of each GPU; None without shards, or if GPUs differ
    gres: tuple[tuple[str, int], ...]  # other generic resources, with their counts
    disk: int
    features: tuple[str, ...]  # features that --constraint may name
    certain: bool  # whether the types of GPUs are known: the node has registered, with its gres.conf


Kinds = Counter[Shape]  # the number of nodes of each kind


def kinds_of_nodes(nodes: Iterable[SlurmNode], settings: Mapping[str, str]) -> dict[str, Kinds]:
    """Return the kinds of nodes of each partition."""
    select = settings.get("SelectTypeParameters", "").upper()
    memory, cpus = "MEMORY" in select, "CPU" in select
    groups = Counter((node.partitions, _shape(node, memory=memory, cpus=cpus)) for node in nodes)
    kinds: dict[str, Kinds] = defaultdict(Counter)
    for (names, shape), number in groups.items():  # thousands of nodes, a few groups
        for name in names:
            kinds[name][shape] += number
    return kinds


def shapes(kinds: Kinds) -> list[tuple[Shape, int]]:
    """Return the kinds with their numbers of nodes, with most GPUs first; merge similar kinds."""
    kinds = _merged(kinds, _COMPARED_FIELDS, MEMORY_RATIO)
    if len(kinds) > MAX_SHAPES:
        kinds = _merged(kinds, _COMPARED_FIELDS[:-1], MEMORY_RATIO)
    if len(kinds) > MAX_SHAPES:
        kinds = _merged(kinds, _COMPARED_FIELDS[:-2], math.inf)
    return sorted(kinds.items(), key=lambda kind: (-kind[0].gpus, -kind[1], -kind[0].cpus, -kind[0].memory))


_COMPARED_FIELDS = ("cpus", "threads", "gpus", "types", "untyped", "shards", "gres", "disk", "features")


def _merged(kinds: Kinds, same: Sequence[str], ratio: float) -> Kinds:
    """Merge kinds with the same values of the fields `same` and memory that differs by at most `ratio`.

    A merged kind has the smallest memory, the largest disk and all features of its nodes.
    """
    key = attrgetter(*same)
    groups: dict[object, list[list[Shape]]] = defaultdict(list)
    for shape in sorted(kinds, key=attrgetter("memory")):
        group = groups[key(shape)]
        if group and shape.largest <= group[-1][0].memory * ratio:
            group[-1].append(shape)
        else:
            group.append([shape])
    made: Kinds = Counter()
    for alike in (alike for group in groups.values() for alike in group):
        kind = replace(
            alike[0],
            largest=max(shape.largest for shape in alike),
            disk=max(shape.disk for shape in alike),
            certain=all(shape.certain for shape in alike),
            features=tuple(dict.fromkeys(name for shape in alike for name in shape.features)),
        )
        made[kind] += sum(kinds[shape] for shape in alike)
    return made


def _shape(node: SlurmNode, *, memory: bool, cpus: bool) -> Shape:
    """Return the shape of a node.

    `memory`: Slurm gives jobs parts of the memory. `cpus`: Slurm gives jobs threads, not whole cores.
    """
    types: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for gres in node.gres:
        if gres.name == "gpu":
            types[gres.type] += gres.count
        else:
            others[gres.name] += gres.count
    shards = {gpu.shards for gpu in node_with_gpus(node, {}).gpus}
    threads = node.threads_per_core
    whole = node.cpus == node.sockets * node.cores_per_socket * threads  # else Slurm counts cores as CPUs
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
        certain=node.flags.isdisjoint(_UNREGISTERED),
    )
