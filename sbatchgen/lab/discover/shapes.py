"""Sorts the nodes of a partition into kinds, with the resources that jobs may use."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.slurm.gpu_nodes import node_with_gpus
from sbatchgen.jobs.slurm.node import SlurmNode

MAX_SHAPES = 6  # kinds of nodes of a partition; if there are more, similar kinds are merged
# The largest ratio of memory within a kind. slurmd -C prints a slightly different number on each node.
MEMORY_RATIO = 1.05
# Fields that the nodes of a kind have in common. If a partition has too many kinds, `features` and `disk` may
# differ within a kind.
_COMPARED_FIELDS = (
    "cpus",
    "threads_per_core",
    "gpus",
    "gpu_types",
    "untyped_gpus",
    "shards",
    "gres",
    "disk",
    "features",
)
# States of nodes that have not reported their hardware to Slurm.
_UNREGISTERED = {"CLOUD", "NOT_RESPONDING", "POWERED_DOWN"}


@frozen(kw_only=True)
class Shape:
    """The resources of a kind of nodes, with memory and disk in MiB."""

    cpus: int
    threads_per_core: int  # threads that jobs may use
    memory: int  # of the node with the least memory
    memory_of_largest: int  # of the node with the most memory
    gpus: int
    gpu_types: tuple[tuple[str, int], ...]  # types of GPUs, each with the number of GPUs on a node
    untyped_gpus: int  # the number of GPUs without a type
    shards: int | None  # shards of each GPU; None without shards, or if the GPUs have different numbers
    gres: tuple[tuple[str, int], ...]  # other generic resources, with their counts
    disk: int
    features: tuple[str, ...]  # features that --constraint may name
    # whether the types of GPUs are known, because the node has registered with its gres.conf
    has_certain_types: bool


Kinds = Counter[Shape]  # the number of nodes of each kind


def kinds_of_nodes(nodes: Iterable[SlurmNode], settings: Mapping[str, str]) -> dict[str, Kinds]:
    """Return the kinds of nodes of each partition, by the partition's name; `settings`: slurm.conf."""
    select = settings.get("SelectTypeParameters", "").upper()
    shares_memory, shares_cores = "MEMORY" in select, "CPU" in select
    node_counts = Counter(
        (node.partitions, _shape_of(node, shares_memory=shares_memory, shares_cores=shares_cores))
        for node in nodes
    )
    kinds: dict[str, Kinds] = defaultdict(Counter)
    # Thousands of nodes make only a few groups with the same partitions and the same shape.
    for (partition_names, shape), number in node_counts.items():
        for name in partition_names:
            kinds[name][shape] += number
    return kinds


def shapes(kinds: Kinds) -> list[tuple[Shape, int]]:
    """Return the kinds with their numbers of nodes, those with most GPUs first.

    Kinds whose memory is almost equal are merged. If there are still too many kinds, more kinds are merged.
    """
    kinds = _merged(kinds, _COMPARED_FIELDS, MEMORY_RATIO)
    if len(kinds) > MAX_SHAPES:
        kinds = _merged(kinds, _COMPARED_FIELDS[:-1], MEMORY_RATIO)
    if len(kinds) > MAX_SHAPES:
        kinds = _merged(kinds, _COMPARED_FIELDS[:-2], math.inf)
    return sorted(kinds.items(), key=lambda kind: (-kind[0].gpus, -kind[1], -kind[0].cpus, -kind[0].memory))


def _merged(kinds: Kinds, compared: Sequence[str], ratio: float) -> Kinds:
    """Merge kinds with the same values of the `compared` fields and memory that differs by at most `ratio`.

    A merged kind has the smallest memory, the largest disk and all features of its nodes.
    """
    key = attrgetter(*compared)
    groups: dict[object, list[list[Shape]]] = defaultdict(list)
    for shape in sorted(kinds, key=attrgetter("memory")):
        group = groups[key(shape)]
        if group and shape.memory_of_largest <= group[-1][0].memory * ratio:
            group[-1].append(shape)
        else:
            group.append([shape])
    merged: Kinds = Counter()
    for members in itertools.chain.from_iterable(groups.values()):
        kind = replace(
            members[0],
            memory_of_largest=max(shape.memory_of_largest for shape in members),
            disk=max(shape.disk for shape in members),
            has_certain_types=all(shape.has_certain_types for shape in members),
            features=tuple(dict.fromkeys(name for shape in members for name in shape.features)),
        )
        merged[kind] += sum(kinds[shape] for shape in members)
    return merged


def _shape_of(node: SlurmNode, *, shares_memory: bool, shares_cores: bool) -> Shape:
    """Return the shape of a node.

    `shares_memory`: jobs get parts of a node's memory. `shares_cores`: jobs get threads, not whole cores.
    """
    gpu_types: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for gres in node.gres:
        if gres.name == "gpu":
            gpu_types[gres.type] += gres.count
        else:
            others[gres.name] += gres.count
    # `{}`: no shard is in use, because a shape does not depend on running jobs.
    shards = {gpu.shards for gpu in node_with_gpus(node, {}).gpus}
    threads = node.threads_per_core
    # On some nodes, each CPU of Slurm is a core. Jobs then get no single threads.
    threads_are_cpus = node.cpus == node.sockets * node.cores_per_socket * threads
    usable_memory = node.memory - (node.memory_reserved if shares_memory else 0)
    return Shape(
        cpus=node.cpus_usable,
        threads_per_core=threads if threads_are_cpus and not shares_cores else 1,
        memory=usable_memory,
        memory_of_largest=usable_memory,
        gpus=sum(gpu_types.values()),
        gpu_types=tuple(sorted((kind, count) for kind, count in gpu_types.items() if kind and count)),
        untyped_gpus=gpu_types[""],
        shards=(shards.pop() or None) if len(shards) == 1 else None,
        gres=tuple(sorted((name, count) for name, count in others.items() if name and count)),
        disk=node.disk,
        features=node.features,
        has_certain_types=node.flags.isdisjoint(_UNREGISTERED),
    )
