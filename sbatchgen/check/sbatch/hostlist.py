"""Expands lists of hosts, such as x[1-3,07],y, for clusters that number their hosts in one dimension.

Source: Slurm's hostlist, 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

import math
import re
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from sbatchgen.base.units import number

HOSTS_MAX = 64 * 1024  # hosts of the longest list that is expanded
_ITEM = re.compile(r"(?:[^\[, \t]|\[[^\]]*\]?)+")  # x[1-3,07] and y of x[1-3,07],y
_RANGE = re.compile(r"\s*\+?([0-9]+)(?:-\s*\+?([0-9]+))?-?")  # 1-3 and 07 of x[1-3,07]


class _HostNumbers(NamedTuple):
    """The numbers in one part of brackets, such as 01-16."""

    numbers: range
    digits: int  # the least number of digits: 2 in 01-16


def expand(text: str) -> list[str]:
    """Return the hosts of a list; [] for more than HOSTS_MAX hosts. Raise ValueError for a malformed list."""
    items = [_split_item(item) for item in _ITEM.findall(text)]
    count = 0
    for _, brackets in items:
        count += math.prod(sum(len(part.numbers) for part in parts) for parts in brackets)
    return [name for item in items for name in _host_names(*item)] if count <= HOSTS_MAX else []


def hosts(text: str) -> list[str]:
    """Return the hosts of a list; [] above HOSTS_MAX hosts. Raise ValueError for a malformed list."""
    try:
        return [] if {"/", "{"} & {*text} else expand(text)
    except ValueError:
        return []


def _split_item(item: str) -> tuple[list[str], list[list[_HostNumbers]]]:
    """Return the texts around the brackets of an item, and the parts in each pair of brackets."""
    pieces = re.split(r"\[([^\]]*)\]", item.replace("[[", "[").replace("]]", "]"))
    texts = pieces[::2]
    if any("[" in text or "]" in text for text in texts):
        raise ValueError("a bracket is not closed, or not opened")
    return texts, [[_host_numbers(text) for text in inner.split(",")] for inner in pieces[1::2]]


def _host_names(texts: list[str], brackets: list[list[_HostNumbers]]) -> Iterator[str]:
    """Yield the hosts of an item: its texts with each combination of the numbers in its brackets."""
    first, *later_texts = texts
    choices = (
        [f"{number:0{part.digits}}" for part in parts for number in part.numbers] for parts in brackets
    )
    for combination in product(*choices):
        yield first + "".join(number + text for number, text in zip(combination, later_texts, strict=True))


def _host_numbers(text: str) -> _HostNumbers:
    """Return the numbers in a part of brackets; raise ValueError for a malformed part."""
    match = _RANGE.fullmatch(text)
    low = number(match[1]) if match else 0
    high = number(match[2]) if match and match[2] else low
    if match is None or low > high:
        raise ValueError(f"'{text}' is not a range of hosts")
    if high - low >= HOSTS_MAX:
        raise ValueError(f"'{text}' is more than {HOSTS_MAX} hosts")
    return _HostNumbers(range(low, high + 1), len(match[1]))
