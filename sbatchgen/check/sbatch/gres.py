"""Reads lists of generic resources, such as gpu:a100:2,shard:4: the name, type and count of each item.

Source: Slurm's gres.c, 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from sbatchgen.base.units import GRES, NEWEST, number

_UNITS = "KMGTP"  # powers of 1024
_AMOUNT = re.compile(f"([0-9]+)([{_UNITS}]?)", re.IGNORECASE)  # such as 2 and 4K
_NAME = re.compile("(?:gres[:/])?([^:=]*)")  # the name of an item: gpu in gpu:a100:2 and gres/gpu:1
_BLANK_IN_TYPE = re.compile(r"(?<=\w) (?=[\w ]*:[0-9]+$)")  # such as the blanks in "gpu:GTX 1080 Ti:1"
GPU_RESOURCES = ("gpu", "shard", "mps")  # the names of whole GPUs and of parts of GPUs
_SLICE = r"(?:^|_)[1-7]g\.[0-9]+gb"
Amount = tuple[str, str, int]  # the name, the type ("" for any type) and the count of an item


def split_gpu_items(text: str) -> tuple[str, str]:
    """Return two values of --gres: the items that are GPUs or parts of GPUs, and the other items."""
    items = [item for item in text.split(",") if item]
    gpus = [item for item in items if (match := _NAME.match(item)) and match[1] in GPU_RESOURCES]
    return ",".join(gpus), ",".join(item for item in items if item not in gpus)


def is_slice(type_name: str) -> bool:
    """Return whether a type is a slice of a GPU (MIG), such as 1g.10gb or nvidia_a100_3g.20gb."""
    return bool(re.search(_SLICE, type_name))


@lru_cache(maxsize=1024)
def gres_amounts(text: str, *, slurm: str = NEWEST) -> tuple[Amount, ...]:
    """Return the name, type and count of each item of a --gres, up to the first item that Slurm refuses."""
    counts: dict[tuple[str, str], int] = {}  # the last count wins if an item is repeated
    with suppress(ValueError):
        for name, type_name, count in gres_items(text, slurm=slurm):
            counts[name, type_name] = count
    return tuple((name, type_name, count) for (name, type_name), count in counts.items())


def gpu_amounts(text: str | None, *, slurm: str = NEWEST) -> tuple[tuple[str, int], ...] | None:
    """Return the type ("" for any type) and the count of each item of a --gpus; None without the option."""
    if text is None:
        return None
    return tuple((type_name, count) for _, type_name, count in gres_amounts(as_gres(text), slurm=slurm))


def as_gres(text: str) -> str:
    """Return the value of a --gpus as a value of --gres, such as gpu:a100:2 for a100:2."""
    return ",".join(f"gpu:{item}" for item in text.split(",") if item)


def gres_items(text: str, *, slurm: str) -> Iterator[Amount]:
    """Yield the name, type and count of each item of a --gres; raise ValueError if Slurm refuses an item."""
    for item in filter(None, () if text.lower() == "none" else text.split(",")):
        resource = item
        if prefix := re.match("gres([:/])", item):
            if prefix[1] != (":" if slurm < "23.11" else "/"):
                raise ValueError(f"'{item}' does not name a resource: leave out {prefix[0]}")
            resource = item[prefix.end() :]
        if slurm < "23.02":
            resource = re.sub(r":\s*\+?(?=[0-9])", ":", resource)
        if re.search("(?:^|:)0+$|^$" if slurm < "23.02" else "(?:^|[:=])0+$|^$", resource):
            continue  # the count is 0, or the item is empty
        match = re.fullmatch(GRES, _BLANK_IN_TYPE.sub("_", resource))
        if match is None or ("=" in resource and slurm < "23.02"):
            raise ValueError(f"'{item}' is not a resource with a count")
        count = parse_amount(match["count"] + match["unit"]) if match["count"] else 1
        if count:
            type_name = resource[match.start("type") : match.end("type")] if match["type"] else ""
            yield match["name"], type_name, count


def parse_amount(text: str) -> int | None:
    """Return the number in a count with or without a unit, such as 2 or 4K; None for other texts."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    return number(match[1]) << (10 * (1 + _UNITS.index(match[2].upper())) if match[2] else 0)


def has_count(gpus: str) -> bool:
    """Return whether a value of --gpus has a number of GPUs, as 2, a100:2 and a100=2 have, but not a100."""
    return re.search("(?:^|[:=,])[0-9]{1,6}(?:,|$)", gpus) is not None
