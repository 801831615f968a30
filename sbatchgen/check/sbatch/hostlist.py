"""Lists of hosts, such as x[1-3,07],y, on a cluster of one dimension.

Source: Slurm's hostlist, 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

import math
import re
from collections.abc import Iterator
from itertools import product

from sbatchgen.base.units import number

HOSTS_MAX = 64 * 1024  # hosts of a list; a longer list counts as unknown
_ITEM = re.compile(r"(?:[^\[, \t]|\[[^\]]*\]?)+")  # a comma or a blank in brackets does not end an item
_Numbers = list[tuple[range, int]]  # the contents of brackets: numbers, and the least number of digits
_RANGE = re.compile(r"\s*\+?([0-9]+)(?:-\s*\+?([0-9]+))?-?")


def expand(text: str) -> list[str]:
    """Return the hosts of a list, [] if there are more than HOSTS_MAX; raise ValueError for other texts."""
    parts = [_split_item(item) for item in _ITEM.findall(text)]
    count = 0
    for _, brackets in parts:
        count += math.prod(sum(len(numbers) for numbers, _ in ranges) for ranges in brackets)
    return [name for part in parts for name in _host_names(*part)] if count <= HOSTS_MAX else []


def hosts(text: str) -> list[str]:
    """Return the hosts of a list; [] if the text is a file, a function of slurmctld or malformed."""
    try:
        return [] if {"/", "{"} & {*text} else expand(text)
    except ValueError:
        return []


def _split_item(item: str) -> tuple[list[str], list[_Numbers]]:
    """Return the texts around the brackets of an item, and the numbers in each bracket."""
    pieces = re.split(r"\[([^\]]*)\]", item.replace("[[", "[").replace("]]", "]"))
    texts = pieces[::2]
    if any("[" in text or "]" in text for text in texts):
        raise ValueError("a bracket is not closed, or not opened")
    return texts, [[_range(text) for text in inner.split(",")] for inner in pieces[1::2]]


def _host_names(texts: list[str], brackets: list[_Numbers]) -> Iterator[str]:
    """Yield the hosts of an item: each combination of the numbers in its brackets."""
    first, *others = texts
    numbers = ([f"{number:0{width}}" for run, width in ranges for number in run] for ranges in brackets)
    for chosen in product(*numbers):
        yield first + "".join(number + text for number, text in zip(chosen, others, strict=True))


def _range(text: str) -> tuple[range, int]:
    """Return the numbers in a part of a bracket, such as 01-16, and the least number of digits."""
    match = _RANGE.fullmatch(text)
    low = number(match[1]) if match else 0
    high = number(match[2]) if match and match[2] else low
    if match is None or low > high:
        raise ValueError(f"'{text}' is not a range of hosts")
    if high - low >= HOSTS_MAX:
        raise ValueError(f"'{text}' is more than {HOSTS_MAX} hosts")
    return range(low, high + 1), len(match[1])
