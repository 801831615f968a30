"""Lists of hosts, such as x[1-3,07],y: how many there are, as Slurm counts them.

Source: Slurm 22.05 and the behaviour of sbatch 22.05.8; a cluster of one dimension.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.grammar import RefusedError, leading_number

_RANGE_LIMIT = 64 * 1024


def hosts(text: str) -> int:
    """How many hosts the list names, each counted once.

    Raises:
        RefusedError: It is no list of hosts.
    """
    ranges: set[tuple[str, int, int, int]] = set()
    for item in _items(text):
        ranges |= set(_ranges(item))
    return _union(ranges)


def _items(text: str) -> Iterator[str]:
    """The parts of a list; a comma in brackets does not part."""
    start = at = 0
    while at <= len(text):
        if text[at : at + 1] == "[" and (close := text.find("]", at)) >= 0:
            at = close
        elif text[at : at + 1] in (",", ""):
            if text[start:at]:
                yield text[start:at]
            start = at + 1
        at += 1


def _ranges(item: str) -> Iterator[tuple[str, int, int, int]]:
    """Prefix, first, last and width of the ranges of a part; -1 as width is a name without a number."""
    prefix, bracket, rest = item.rpartition("[")
    if not bracket:
        match = re.search("[0-9]+$", item)
        if match is None or len(match[0]) > 9:
            yield item, 0, 0, -1
        else:
            yield item[: match.start()], int(match[0]), int(match[0]), _width(match[0])
        return
    inner, close, tail = rest.rpartition("]") if "]" in rest else (rest, "", "")
    if not close:
        yield (f"{prefix}]" if prefix else inner), 0, 0, -1
        return
    inner, _, tail = rest.partition("]")
    if tail:
        raise RefusedError("memory allocation failure", status=1)
    parsed = [_range(part) for part in inner.split(",")]
    for whole in _prefixes(prefix):
        for low, high, width in parsed:
            yield whole, low, high, width


def _prefixes(text: str) -> Iterator[str]:
    head, bracket, rest = text.rpartition("[")
    inner, close, tail = rest.partition("]")
    if not bracket or not close:
        yield text
        return
    parsed = [_range(part) for part in inner.split(",")]
    if sum(high - low + 1 for low, high, _ in parsed) > _RANGE_LIMIT:
        raise RefusedError("memory allocation failure", status=1)
    for start in _prefixes(head):
        for low, high, width in parsed:
            for number in range(low, high + 1):
                yield f"{start}{number:0{max(width, 1)}}{tail}"


def _range(text: str) -> tuple[int, int, int]:
    low_text, dash, high_text = text.partition("-")
    low, low_rest = leading_number(low_text)
    high, high_rest = leading_number(high_text)
    if not (dash and high_text):
        high, high_rest = low, low_rest
    if "x" in text or low is None or high is None or high_rest or low > high or high_text[:1] == "-":
        raise _refused(f"Invalid range: `{text}'")
    if high - low + 1 > _RANGE_LIMIT:
        raise _refused(f"Too many hosts in range `{text}'")
    return low, high, _width(low_text)


def _width(number: str) -> int:
    """How far the number is padded with zeros; numbers of equal value and padding are the same host."""
    return len(number) if number.startswith("0") and len(number) > 1 else 0


def _refused(text: str) -> RefusedError:
    return RefusedError(f"_parse_single_range: {text}", "memory allocation failure", status=1)


def _union(ranges: set[tuple[str, int, int, int]]) -> int:
    """How many hosts there are in all; overlapping ranges count once."""
    total = 0
    before: tuple[str, int] | None = None
    end = -1
    for prefix, low, high, width in sorted(ranges, key=lambda item: (item[0], item[3], item[1])):
        if (prefix, width) != before:
            before, end = (prefix, width), -1
        total += max(0, high - max(low, end + 1) + 1)
        end = max(end, high)
    return total
