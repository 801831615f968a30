"""Lists of resources, such as gpu:a100:2,shard:4: what each item asks for.

Source: Slurm 22.05 and, for the lists of later releases, their slurm_get_next_tres.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

NEWEST = "26.05"  # how a list is read where nobody names a release
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_UNIT = re.compile("([kmgtp])(i?b)?", re.ASCII | re.IGNORECASE)
_COUNT = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")


class BadItemError(Exception):
    """An item of a list of resources is invalid."""


@dataclass(kw_only=True, eq=False, repr=False)
class Item:
    """What an item of a list asks for.

    Attributes:
        name: Of the resource, such as gpu; "" in an item that is only a number.
        type: Of the resource, such as a100; None if any does.
        count: How many.
    """

    name: str
    type: str | None
    count: int


def requested(text: str, *, slurm: str = NEWEST) -> tuple[tuple[str, str, int], ...]:
    """Name, type ("" for any) and count of each item of --gres, up to the first that is wrong."""
    found: dict[tuple[str, str], int] = {}  # of what is given twice, the last counts
    if text and text.lower() != "none":
        with suppress(BadItemError):
            for item in items(with_prefix(text, slurm=slurm), slurm=slurm):
                found[item.name, item.type or ""] = item.count
    return tuple((name, kind, count) for (name, kind), count in found.items())


def requested_gpus(text: str | None, *, slurm: str = NEWEST) -> tuple[tuple[str, int], ...] | None:
    """Type and count of each item of a --gpus option; None where it is not given."""
    if text is None:
        return None
    found = requested(",".join(f"gpu:{item}" for item in text.split(",") if item), slurm=slurm)
    return tuple((kind, count) for _, kind, count in found)


def with_prefix(text: str, *, slurm: str) -> str:
    """A --gres as sbatch keeps it: each item with the kind of resource before it."""
    prefix = "gres:" if slurm < "23.11" else "gres/"
    text = prefix + text.replace(",", "," + prefix)
    return text.replace(prefix * 2, prefix)


def items(text: str, *, slurm: str) -> Iterator[Item]:
    """The items of a list of generic resources that ask for something.

    Each starts with gres: or, since 23.11, gres/. What stands elsewhere is passed over.

    Raises:
        BadItemError: An item is wrong; the ones before it were given.
    """
    at = 0
    start, mark = ("gres:", "") if slurm < "23.02" else ("gres", ":" if slurm < "23.11" else "/")
    while (found := text.find(start, at)) >= 0:
        at = found + len(start)
        at += bool(mark) and text.startswith(mark, at)
        comma = text.find(",", at)
        item = text[at : comma if comma >= 0 else len(text)]
        at += len(item) + 1
        if not item:
            continue
        read = _old_item(item) if slurm < "23.02" else _item(item)
        if read.count:
            yield read


def check(text: str, *, slurm: str) -> None:
    """Refuse a list in which slurmctld does not read the items that sbatch lets pass.

    Names of resources are not looked up; one that no plugin can have is refused by sbatch itself.

    Raises:
        ValueError: An item is invalid; the text says which.
    """
    for item in filter(None, text.split(",")):
        _, mark, last = item.rpartition(":")
        if slurm < "23.11":
            counted = "0" <= last[:1] <= "9"
            if not mark or not last or (counted and (number(last) is None or item.count(":") < 2)):
                raise ValueError(f"'{item}' has no count")
        elif number(item.removeprefix("gres/")) or (item[5:6] in (":", "=") and number(item[6:]) != 0):
            raise ValueError(f"'{item.removeprefix('gres/')}' does not name a resource")


def _old_item(item: str) -> Item:
    """An item as Slurm up to 22.05 reads it."""
    name, *rest = item.split(":", 2)
    kind, count = None, 1 if not rest else number(rest[-1], signed=True)
    if "" in rest or (len(rest) == 2 and count is None):
        raise BadItemError
    if len(rest) == 2 or (rest and count is None):
        kind = rest[0]
    return Item(name=name, type=kind, count=1 if count is None else count)


def _item(item: str) -> Item:
    """An item as Slurm since 23.02 reads it."""
    mark = "=" if "=" in item else ":"
    name, found, last = item.rpartition(mark)
    if not found:
        count = number(item)
        return Item(name=item if count is None else "", type=None, count=1 if count is None else count)
    count = number(last)
    if not last or (count is None and mark == "="):
        raise BadItemError
    name, colon, kind = name.partition(":")
    if colon and count is None:
        raise BadItemError
    if count is None:
        return Item(name=name, type=last, count=1)
    return Item(name=name, type=kind if colon else None, count=count)


def number(text: str, *, signed: bool = False) -> int | None:
    """A count with its unit, as C's strtoull reads it; None for an invalid one."""
    match = _COUNT.match(text)
    if not signed and not "0" <= text[:1] <= "9":
        return None
    digits = match[2].lstrip("0")[:30] if match else ""
    value, suffix = (int(f"{match[1]}{digits or 0}"), text[match.end() :]) if match else (0, text)
    if abs(value) >= 2**64 - 1 or value == -1:
        return None
    unit = _UNIT.fullmatch(suffix)
    if suffix and not unit:
        return None
    base = 1000 if unit and unit[2] in ("b", "B") else 1024
    factor: int = base ** (_POWERS[unit[1].lower()] if unit else 0)
    return value * factor % 2**64
