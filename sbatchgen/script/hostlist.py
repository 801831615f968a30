"""Lists of hosts, such as x[1-3,07],y: how many there are, as Slurm counts them.

Source: Slurm 22.05 and the behaviour of sbatch 22.05.8; a cluster of one dimension.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from sbatchgen.script.grammar import RefusedError, leading_number

_RANGE_LIMIT = 64 * 1024
_Range = tuple[str, int, int, int]  # prefix, first, last, width; a width of -1: a name without a number


def hosts(text: str) -> int:
    """How many hosts the list names, each counted once.

    Raises:
        RefusedError: It is no list of hosts.
    """
    ranges, uncompared = _parsed(text)
    return sum(high - low + 1 for _, low, high, _ in _merged(ranges)) + uncompared


def first(text: str, count: int) -> str:
    """The first hosts of a list, as Slurm writes them; the list itself where it is too long to compare."""
    ranges, uncompared = _parsed(text)
    if uncompared:
        return text
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for prefix, low, high, width in _merged(ranges):
        if count <= 0:
            break
        taken = min(high, low + count - 1)
        count -= taken - low + 1
        groups.setdefault(prefix, []).append((low, taken, width))
    return ",".join(_written(prefix, parts) for prefix, parts in groups.items())


def _written(prefix: str, parts: list[tuple[int, int, int]]) -> str:
    texts: list[str] = []
    for low, high, width in _rejoined(parts):
        start, end = f"{low:0{max(width, 1)}}", f"{high:0{max(width, 1)}}"
        texts.append("" if width < 0 else start if low == high else f"{start}-{end}")
    bracketed = len(texts) > 1 or "-" in texts[0]
    return f"{prefix}[{','.join(texts)}]" if bracketed else prefix + texts[0]


def _rejoined(parts: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The parts, with 01-09 and 10-12 made one again."""
    joined: list[tuple[int, int, int]] = []
    for low, high, width in parts:
        if joined and width == 0 and joined[-1][1] + 1 == low and len(str(low)) == joined[-1][2]:
            joined[-1] = (joined[-1][0], high, joined[-1][2])
        else:
            joined.append((low, high, width))
    return joined


def _parsed(text: str) -> tuple[set[_Range], int]:
    """The ranges of a list, and how many hosts its other parts name."""
    ranges: set[_Range] = set()
    uncompared = 0
    for item in _items(text):
        found = _ranges(item)
        if isinstance(found, int):
            uncompared += found
        else:
            ranges |= set(found)
    return ranges, uncompared


def _items(text: str) -> Iterator[str]:
    """The parts of a list; a comma in brackets does not part."""
    start = at = 0
    last = text.rfind("]")
    while at <= len(text):
        if text[at : at + 1] == "[" and at < last:
            at = text.find("]", at)
        elif text[at : at + 1] in {",", ""}:
            if text[start:at]:
                yield text[start:at]
            start = at + 1
        at += 1


def _ranges(item: str) -> list[_Range] | int:
    """The ranges of a part; only how many hosts it names, where it has too many prefixes to list."""
    prefix, bracket, rest = item.rpartition("[")
    if not bracket:
        match = re.search("[0-9]+$", item)
        if match is None or len(match[0]) > 9:
            return [(item, 0, 0, -1)]
        return [(item[: match.start()], int(match[0]), int(match[0]), _width(match[0]))]
    inner, close, tail = rest.partition("]")
    if not close:
        return [(f"{prefix}]" if prefix else inner, 0, 0, -1)]
    if tail:
        raise RefusedError("memory allocation failure", status=1)
    parsed = [_range(part) for part in inner.split(",")]
    pieces = _pieces(prefix)
    prefixes = math.prod(len(piece) for piece in pieces)
    if prefixes > _RANGE_LIMIT:
        return prefixes * sum(high - low + 1 for low, high, _ in parsed)
    wholes = map("".join, itertools.product(*pieces))
    return [(whole, low, high, width) for whole in wholes for low, high, width in parsed]


def _pieces(text: str) -> list[list[str]]:
    """What a prefix is made of: for each of its brackets the texts they stand for."""
    pieces: list[list[str]] = []
    while True:
        head, bracket, rest = text.rpartition("[")
        inner, close, tail = rest.partition("]")
        if not bracket or not close:
            return [[text], *reversed(pieces)]
        parsed = [_range(part) for part in inner.split(",")]
        if sum(high - low + 1 for low, high, _ in parsed) > _RANGE_LIMIT:
            raise RefusedError("memory allocation failure", status=1)
        pieces.append(
            [
                f"{number:0{max(width, 1)}}{tail}"
                for low, high, width in parsed
                for number in range(low, high + 1)
            ]
        )
        text = head


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
    """How far the number is padded with zeros."""
    return len(number) if number.startswith("0") and len(number) > 1 else 0


def _refused(text: str) -> RefusedError:
    return RefusedError(f"_parse_single_range: {text}", "memory allocation failure", status=1)


def _merged(ranges: set[_Range]) -> list[_Range]:
    """The ranges without overlap, in order; a number that needs no padding has none."""
    split: set[_Range] = set()
    for prefix, low, high, width in ranges:
        padded = 10 ** (width - 1) if width > 0 else 0  # below it, zeros are needed
        if low < padded:
            split.add((prefix, low, min(high, padded - 1), width))
        if high >= padded:
            split.add((prefix, max(low, padded), high, min(width, 0)))
    merged: list[_Range] = []
    for prefix, low, high, width in sorted(split, key=lambda item: (item[0], item[3], item[1])):
        before = merged[-1] if merged else ("", 0, -2, 0)
        if (before[0], before[3]) == (prefix, width) and low <= before[2] + 1:
            merged[-1] = (prefix, before[1], max(high, before[2]), width)
        else:
            merged.append((prefix, low, high, width))
    return sorted(merged, key=lambda item: item[:2])


def expanded(text: str, most: int = 65536) -> list[str]:
    """The names of the hosts in a list; of one that is broken, or names more than `most`, none."""
    names: list[str] = []
    for item in _items(text):
        parts = re.split(r"\[([^\]]*)\]", item)
        made = [parts[0]]
        for at in range(1, len(parts), 2):
            numbers = _numbers(parts[at], most)
            if not numbers or len(made) * len(numbers) + len(names) > most:
                return []
            made = [f"{name}{number}{parts[at + 1]}" for name in made for number in numbers]
        names += [name for name in made if name]
    return names


def _numbers(text: str, most: int) -> list[str]:
    """The numbers in a pair of brackets, with their zeros."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if match is None or int(match[2] or match[1]) - int(match[1]) > most:
            return []
        numbers += [str(n).zfill(len(match[1])) for n in range(int(match[1]), int(match[2] or match[1]) + 1)]
    return numbers
