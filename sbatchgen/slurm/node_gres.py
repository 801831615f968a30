"""Generic resources of nodes, as `scontrol -d show node` prints them: GPUs, shards and others.

What a job asks for is read by sbatch/gres.py. Source of the shapes: gres.c of Slurm 20.11 to 26.05.
"""

import functools
import re

from sbatchgen.frozen import frozen
from sbatchgen.sbatch.gres import amount
from sbatchgen.slurm.printed import count, limit, text

_ITEM = re.compile(r"(?:\([^()]*\)|[^,(])+")  # a comma in parentheses does not part
_DETAIL = re.compile(r"\(([^()]*)\)$")
_PER_GPU = re.compile(r"(?:-|[0-9]+)/[0-9]+(?:,(?:-|[0-9]+)/[0-9]+)*")


@frozen(slots=True)
class NodeGres:
    """Resources of one name and type on a node: all resources, the used or the drained ones."""

    name: str  # as gpu, shard, mps
    type: str = ""  # as a100; "" if it has none
    count: int = 0
    consumed: bool = True  # whether jobs use them up; with `no_consume` any number of jobs may have them
    # Which GPUs of the node are in use; of shards before 23.11, on which GPUs some are
    indexes: tuple[int, ...] = ()
    # Of what is shared, since 23.11: how many are in use of how many, by GPU; None: a job has the GPU
    per_gpu: tuple[tuple[int | None, int], ...] = ()


@functools.lru_cache(maxsize=4096)  # nodes of a cluster have much the same
def node_gres(printed: str) -> tuple[NodeGres, ...]:
    """What is in a value of Gres, GresUsed or GresDrain."""
    return tuple(_item(item) for item in _ITEM.findall(text(printed)))


def _item(item: str) -> NodeGres:
    detail = _DETAIL.search(item)
    inner = detail[1] if detail else ""
    shared = [pair.split("/") for pair in inner.split(",")] if _PER_GPU.fullmatch(inner) else []  # -/8,3/8
    name, *rest = (item[: detail.start()] if detail else item).split(":")
    number = amount(rest[-1]) if rest else None
    if number is not None:
        rest.pop()
    kind = next((part for part in rest if part not in ("no_consume", "(null)")), "")
    return NodeGres(
        name=name,
        type=kind,
        count=1 if number is None else number,  # `gpu:a100` alone is one, in slurm.conf as in a request
        consumed="no_consume" not in rest,
        indexes=_indexes(inner.removeprefix("IDX:")) if inner.startswith("IDX:") else (),
        per_gpu=tuple((None if used == "-" else count(used), count(whole)) for used, whole in shared),
    )


def _indexes(shown: str) -> tuple[int, ...]:
    """The numbers in "0-2,5"; none in "N/A"."""
    indexes: list[int] = []
    for part in shown.split(","):
        first, _, last = part.partition("-")
        low, high = limit(first), limit(last or first)
        if low is not None and high is not None:
            indexes += range(low, min(high, low + 4095) + 1)
    return tuple(indexes)
