"""What `gpus` and `gpus --for` print as JSON, as types."""

from collections.abc import Sequence
from typing import TypedDict

from sbatchgen.jobs.slurm.gpu_nodes import Gpu, GpuCount, GpuNode, why_unavailable
from sbatchgen.jobs.starts.room import Availability


class _Node(TypedDict):
    name: str
    state: str
    flags: Sequence[str]
    unavailable: str
    reason: str
    partitions: Sequence[str]
    gpus: Sequence[Gpu]


class GpusOutput(TypedDict):
    """What `gpus` prints."""

    types: Sequence[GpuCount]
    nodes: Sequence[_Node]


class RoomOutput(TypedDict):
    """What `gpus --for` prints."""

    partitions: Sequence[Availability]


def gpus_output(counts: Sequence[GpuCount], nodes: Sequence[GpuNode]) -> GpusOutput:
    """Return the output of `gpus`: the GPUs by type, and the nodes with their GPUs."""
    shown: list[_Node] = [
        {
            "name": entry.node.name,
            "state": entry.node.state,
            "flags": sorted(entry.node.flags),
            "unavailable": why_unavailable(entry.node),
            "reason": entry.node.reason,
            "partitions": entry.node.partitions,
            "gpus": entry.gpus,
        }
        for entry in nodes
    ]
    return {"types": counts, "nodes": shown}
