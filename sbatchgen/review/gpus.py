"""GPUs of a cluster, and the room for a job there, as people and programs read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sbatchgen.plan.sweep import numbers_as_text
from sbatchgen.quoting import counted, first_names
from sbatchgen.slurm.gpu_nodes import Gpu, GpuCount, GpuNode, unavailable
from sbatchgen.slurm.room import Availability
from sbatchgen.table import one_line, table

SCHEMA = 1
MOST_NAMES = 8  # of nodes in a line
NOTE = "Other jobs that wait may start first, and limits of accounts and QOS may hold it back."


def as_table(counts: Sequence[GpuCount], nodes: Sequence[GpuNode]) -> str:
    """GPUs by type and partitions, and the nodes that take no jobs."""
    if not counts:
        return "no node has GPUs\n"
    shards = any(one.shards for one in counts)
    of_shards = ("SHARED", "FREE SHARDS") if shards else ()
    heading = ("TYPE", "GPUS", "IN USE", "FREE", "UNAVAILABLE", *of_shards, "PARTITIONS")
    rows = [heading, *(_row(one, shards=shards) for one in counts)]
    closed = "".join(f"{line}\n" for line in _closed(nodes))
    return table(rows) + (f"\nUnavailable\n{closed}" if closed else "")


def _row(one: GpuCount, *, shards: bool) -> tuple[str, ...]:
    cells = [one.type or "-", one.total, one.in_use, one.free, one.unavailable]
    if shards:
        on_one = f", {one.shards_on_one} on a GPU" if one.shards_free else ""
        cells += [one.shared, f"{one.shards_free} of {one.shards}{on_one}" if one.shards else "-"]
    return tuple(one_line(str(cell)) for cell in (*cells, ",".join(one.partitions) or "-"))


def _closed(nodes: Sequence[GpuNode]) -> Iterator[str]:
    """Why nodes take no jobs, those with the same reason together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in nodes:
        if words := unavailable(one.node):
            groups.setdefault((words, one.node.reason), []).append(one.node.name)
    for (words, reason), names in groups.items():
        yield one_line(f"  {first_names(names, MOST_NAMES)}: {words}" + f": {reason}" * bool(reason))


def by_node(nodes: Sequence[GpuNode]) -> str:
    """Each node: which of its GPUs are in use, shared and free."""
    if not nodes:
        return "no node has GPUs\n"
    heading = ("NODE", "STATE", "GPUS", "IN USE", "FREE", "FREE SHARDS BY GPU")
    shards = any(gpu.shards for one in nodes for gpu in one.gpus)
    rows = [heading, *map(_node, nodes)]
    return table(rows if shards else [row[:-1] for row in rows])


def _node(one: GpuNode) -> tuple[str, ...]:
    closed = unavailable(one.node)
    types = dict.fromkeys(gpu.type for gpu in one.gpus)
    gpus = ",".join(f"{kind}:{sum(gpu.type == kind for gpu in one.gpus)}".removeprefix(":") for kind in types)
    free = [] if closed else [gpu.index for gpu in one.gpus if gpu.free]
    spare = [] if closed else [gpu for gpu in one.gpus if gpu.shards and not gpu.taken]
    cells = (
        one.node.name,
        closed or one.node.state.lower(),
        gpus,
        _which([gpu.index for gpu in one.gpus if gpu.taken], numbered=one.numbered),
        _which(free, numbered=one.numbered),
        ", ".join(f"{gpu.index}: {_shards(gpu)}" for gpu in spare) or "-",
    )
    return tuple(map(one_line, cells))


def _which(indexes: list[int], *, numbered: bool) -> str:
    """The numbers of GPUs; how many, where Slurm says no more."""
    return numbers_as_text(indexes) or "-" if numbered else str(len(indexes))


def _shards(gpu: Gpu) -> str:
    return "not known" if gpu.shards_used is None else str(gpu.shards_free)


def room_as_text(rooms: Sequence[Availability]) -> str:
    """Whether the job would start now, and where; or what is lacking, in a line for each partition."""
    lines = [line for one in rooms for line in _room(one)]
    return "".join(f"{one_line(line)}\n" for line in (*lines, NOTE))


def room_as_json(rooms: Sequence[Availability]) -> str:
    """`partitions`: the room in each, with `starts`."""
    partitions = [asdict(one) | {"starts": one.starts} for one in rooms]
    return f"{json.dumps({'schema': SCHEMA, 'partitions': partitions}, indent=2)}\n"


def _room(one: Availability) -> Iterator[str]:
    where = f"partition {one.partition}"
    nodes = counted(one.wanted, "node")
    if one.starts:
        names = first_names(one.nodes, MOST_NAMES)
        yield f"starts now in {where}: {nodes} of {len(one.nodes)} with room: {names}"
    else:
        lacking = "; ".join(
            f"{what}: {first_names(names, MOST_NAMES)}" for what, names in one.lacking.items()
        )
        has = f"{len(one.nodes)} of {nodes}" if one.nodes else "no node"
        yield f"waits in {where}: {has} with room" + f" ({lacking})" * bool(lacking)
    if one.not_seen:
        yield f"not looked at: {', '.join(one.not_seen)}"


def as_json(counts: Sequence[GpuCount], nodes: Sequence[GpuNode]) -> str:
    """`types` and `nodes`; a GPU's `shards_used` is null where it is only known that some are in use."""
    fields = {
        "schema": SCHEMA,
        "types": [asdict(one) for one in counts],
        "nodes": [
            {
                "name": one.node.name,
                "state": one.node.state,
                "flags": sorted(one.node.flags),
                "unavailable": unavailable(one.node),
                "reason": one.node.reason,
                "partitions": one.node.partitions,
                "gpus": [asdict(gpu) | {"free": gpu.free} for gpu in one.gpus],
            }
            for one in nodes
        ],
    }
    return f"{json.dumps(fields, indent=2)}\n"
