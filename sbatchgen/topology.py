"""The CPUs close to each GPU of a node: masks for srun, and lists computed from the shape of a machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

_LEVEL = re.compile(r"(?P<type>[A-Za-z]\w*):(?P<arity>[0-9]{1,6})(?:\((?P<attributes>[^()]*)\))?")


def mask(cpus: str) -> str:
    """Return a list of CPUs as a mask: 0xfe for 1-7."""
    return hex(sum(1 << cpu for cpu in _numbers(cpus)))


def _numbers(cpus: str) -> set[int]:
    spans = (span.partition("-") for span in cpus.split(","))
    return {cpu for first, dash, last in spans for cpu in range(int(first), int(last if dash else first) + 1)}


class _Level(NamedTuple):
    """A level of a machine: the type of its objects, how many there are in all, and their indexes."""

    type: str
    objects: int
    indexes: str


def cpus_of_gpus(
    synthetic: str, near: str, gpus: Sequence[int], *, reserved: Iterable[int] = (), threads: int = 1
) -> list[str]:
    """Return the CPUs of each GPU. GPUs that are close to the same part of the machine share its cores.

    Args:
        synthetic: The machine as hwloc describes it (lstopo --of synthetic): "package:1 numa:4 l3:2 core:8
            pu:2(indexes=64*2:1*64)".
        near: The type of the parts that GPUs are close to, as numa or l3.
        gpus: The number of that part for each GPU.
        reserved: CPUs that jobs don't get; their whole cores are left out.
        threads: How many hardware threads of a core are used.

    Raises:
        ValueError: The description, or a number of a part, is wrong.
    """
    levels = {level.type: level for level in _levels(synthetic)}
    lacking = [name for name in (near, "core", "pu") if name not in levels]
    if lacking:
        raise ValueError(f"'{synthetic}' has no {lacking[0]}")
    parts, cores, pus = (levels[name].objects for name in (near, "core", "pu"))
    if beyond := [part for part in gpus if not 0 <= part < parts]:
        raise ValueError(f"there is no {near} {beyond[0]}: the machine has {parts}")
    if parts > cores:
        raise ValueError(f"a core has several {near}")
    numbers, each = _indexes(levels["pu"]), pus // cores
    left_out = {*reserved}
    lists = []
    for gpu, part in enumerate(gpus):
        inside = (numbers[core * each : (core + 1) * each] for core in range(cores))
        own = [core for place, core in enumerate(inside) if place * parts // cores == part]
        usable = [core[:threads] for core in own if not left_out.intersection(core)]
        share, before = len(usable) // gpus.count(part), gpus[:gpu].count(part)
        mine = usable[before * share : (before + 1) * share]
        lists.append(_as_list(cpu for core in mine for cpu in core))
    return lists


def _levels(synthetic: str) -> list[_Level]:
    """Return the levels of a machine, from the whole to the hardware threads."""
    levels: list[_Level] = []
    count = 1
    for word in synthetic.split():
        match = _LEVEL.fullmatch(word)
        if match is None or not int(match["arity"]):
            raise ValueError(f"'{word}' is not a level of a machine, as numa:4")
        count *= int(match["arity"])
        if count > 1 << 16:
            raise ValueError(f"'{synthetic}' has too many parts")
        attributes = dict(item.partition("=")[::2] for item in re.split(r"[ ;]", match["attributes"] or ""))
        name = match["type"].lower()
        levels.append(_Level({"numanode": "numa"}.get(name, name), count, attributes.get("indexes", "")))
    return levels


def _indexes(level: _Level) -> list[int]:
    """Return the numbers that objects of a level have, as hwloc's topology-synthetic.c makes them."""
    if not level.indexes:
        return [*range(level.objects)]
    if re.fullmatch(r"[0-9]+(,[0-9]+)*", level.indexes):
        numbers = [int(number) for number in level.indexes.split(",")]
    elif re.fullmatch(r"[0-9]+\*[0-9]+(:[0-9]+\*[0-9]+)*", level.indexes):
        loops = [tuple(map(int, loop.split("*"))) for loop in level.indexes.split(":")]
        sizes = [prod(times for _, times in loops[:place]) for place in range(len(loops))]
        numbers = [
            sum(index // size % times * step for (step, times), size in zip(loops, sizes, strict=True))
            for index in range(level.objects)
        ]
    else:
        raise ValueError(f"indexes={level.indexes}: only numbers, and loops as 64*2:1*64, are known")
    if len({*numbers}) != level.objects:
        raise ValueError(f"indexes={level.indexes} are not {level.objects} different numbers")
    return numbers


def _as_list(cpus: Iterable[int]) -> str:
    """Return numbers as a list of CPUs: 1-7,65-71."""
    numbers = sorted(cpus)
    starts = numbers[:1] + [after for before, after in pairwise(numbers) if after != before + 1]
    ends = [before for before, after in pairwise(numbers) if after != before + 1] + numbers[-1:]
    spans = zip(starts, ends, strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
