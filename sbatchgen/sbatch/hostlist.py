"""Lists of hosts, such as x[1-3,07],y: how many there are, as Slurm counts them.

Source: Slurm's hostlist, 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5; a cluster of one
dimension.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from sbatchgen.sbatch.grammar import RefusedError, leading_number

_RANGE_LIMIT = 64 * 1024
_COMPARED = 4096  # of more parts than these, only those that are written alike are counted once
_TOKENS = re.compile("[0-9]+|[^0-9]")


@dataclass(kw_only=True, slots=True)
class _Hosts:
    """A run of hosts with one prefix.

    Attributes:
        prefix: What stands before the number.
        low: The first number.
        high: The last number.
        width: How many digits a number has at least; Slurm changes it while it compares. -1: a name without
            a number.
    """

    prefix: str
    low: int = 0
    high: int = 0
    width: int = -1

    @property
    def count(self) -> int:
        return self.high - self.low + 1


def hosts(text: str, *, slurm: str, distinct: bool = True) -> int:
    """How many hosts the list names, each counted once if they are to be distinct.

    Raises:
        RefusedError: It is not a list of hosts.
    """
    runs, uncompared = _parsed(text, slurm)
    return sum(run.count for run in (_unique(runs) if distinct else runs)) + uncompared


def _parsed(text: str, slurm: str) -> tuple[list[_Hosts], int]:
    """The runs of a list, and how many hosts its other parts name."""
    runs: list[_Hosts] = []
    uncompared = 0
    for item in items(text):
        found = _runs(item, slurm)
        if isinstance(found, int):
            uncompared += found
        else:
            runs += found
    return runs, uncompared


def items(text: str) -> Iterator[str]:
    """The parts of a list; a comma or a blank in brackets does not part."""
    start = at = 0
    last = text.rfind("]")
    for separator in re.finditer(r"[\[, \t]|\Z", text):
        if separator.start() < at:
            continue
        at = separator.start()
        if separator[0] == "[" and at < last:
            at = text.find("]", at)
        elif separator[0] != "[":
            if text[start:at]:
                yield text[start:at]
            start = at + 1


def _runs(item: str, slurm: str) -> list[_Hosts] | int:
    """The runs of a part; only how many hosts it names, where it has too many prefixes to list."""
    prefix, bracket, rest = item.rpartition("[")
    if not bracket:
        return [_host(item)]
    inner, close, tail = rest.partition("]")
    if not close:
        if slurm >= "23.02":
            raise _refused(slurm)
        return [_Hosts(prefix=f"{prefix}]" if prefix else inner)]
    if tail and slurm < "23.11":
        raise _refused(slurm)
    parsed = [_range(part, slurm) for part in inner.split(",")]
    pieces = _pieces(prefix, slurm)
    hosts_each = sum(high - low + 1 for low, high, _ in parsed)
    prefixes = math.prod(len(piece) for piece in pieces)
    if prefixes > _RANGE_LIMIT or (tail and prefixes * hosts_each > _RANGE_LIMIT):
        return prefixes * hosts_each
    wholes = map("".join, itertools.product(*pieces))
    if tail:
        return [
            _Hosts(prefix=f"{whole}{number:0{width}}{tail}")
            for whole in wholes
            for low, high, width in parsed
            for number in range(low, high + 1)
        ]
    return [
        _Hosts(prefix=whole, low=low, high=high, width=width)
        for whole in wholes
        for low, high, width in parsed
    ]


def _host(name: str) -> _Hosts:
    match = re.search("[0-9]+$", name)
    if match is None or len(match[0]) > 9:
        return _Hosts(prefix=name)
    return _Hosts(prefix=name[: match.start()], low=int(match[0]), high=int(match[0]), width=len(match[0]))


def _pieces(text: str, slurm: str) -> list[list[str]]:
    """What a prefix is made of: for each of its brackets the texts they stand for."""
    pieces: list[list[str]] = []
    end = len(text)
    while True:
        start = text.rfind("[", 0, end)
        close = text.find("]", start, end)
        if start < 0 or close < 0:
            return [[text[:end]], *reversed(pieces)]
        parsed = [_range(part, slurm) for part in text[start + 1 : close].split(",")]
        if sum(high - low + 1 for low, high, _ in parsed) > _RANGE_LIMIT:
            raise _refused(slurm)
        tail = text[close + 1 : end]
        pieces.append(
            [f"{number:0{width}}{tail}" for low, high, width in parsed for number in range(low, high + 1)]
        )
        end = start


def _range(text: str, slurm: str) -> tuple[int, int, int]:
    """First and last number, and how many digits they have at least."""
    low_text, dash, high_text = text.partition("-")
    low, low_rest = leading_number(low_text)
    high, high_rest = leading_number(high_text)
    if not (dash and high_text):
        high, high_rest = low, low_rest
    if "x" in text or low is None or high is None or high_rest or low > high or high_text[:1] == "-":
        raise _refused(slurm, f"Invalid range: `{text}'")
    if high - low + 1 > _RANGE_LIMIT:
        raise _refused(slurm, f"Too many hosts in range `{text}'")
    return low, high, len(low_text)


def _refused(slurm: str, *complaints: str) -> RefusedError:
    texts = [f"_parse_single_range: {text}" for text in complaints]
    if slurm < "24.05":
        return RefusedError(*texts, "memory allocation failure", status=1)
    return RefusedError(*texts, "Invalid node list specified", status=1, last_level="fatal")


def _unique(runs: list[_Hosts]) -> list[_Hosts]:
    """The runs without what they have in common, in order."""
    if len(runs) > _COMPARED:
        runs = list({(run.prefix, run.low, run.high, run.width): run for run in runs}.values())
        runs.sort(key=lambda run: (run.prefix, run.width >= 0, run.low))
    else:
        runs = _sorted(_pushed(runs))
    joined: list[_Hosts] = []
    for run in runs:
        if not (joined and _join(joined[-1], run)):
            joined.append(run)
    return joined


def _pushed(runs: list[_Hosts]) -> list[_Hosts]:
    """The runs, each made one with the last where it goes on with it."""
    pushed: list[_Hosts] = []
    for run in runs:
        last = pushed[-1] if pushed else None
        if last and last.high == run.low - 1 and _is_alike(last, run) and _share_width(last, run):
            last.high = run.high
        else:
            pushed.append(run)
    return pushed


def _sorted(runs: list[_Hosts]) -> list[_Hosts]:
    """The runs as C's qsort leaves them, a merge sort: to compare runs may change them."""
    if len(runs) < 2:
        return runs
    middle = len(runs) // 2
    left, right = _sorted(runs[:middle]), _sorted(runs[middle:])
    merged: list[_Hosts] = []
    one = other = 0
    while one < len(left) and other < len(right):
        if _compare(left[one], right[other]) <= 0:
            merged.append(left[one])
            one += 1
        else:
            merged.append(right[other])
            other += 1
    return merged + left[one:] + right[other:]


def _compare(one: _Hosts, other: _Hosts) -> int:
    if one.prefix != other.prefix:
        return -1 if _natural(one.prefix, other.prefix) else 1
    if not _is_alike(one, other):
        return -1 if one.width < 0 else 1
    return one.low - other.low if _share_width(one, other) else one.width - other.width


def _natural(one: str, other: str) -> bool:
    """Whether a prefix stands before another: numbers in it are compared as such."""
    for a, b in itertools.zip_longest(_TOKENS.findall(one), _TOKENS.findall(other), fillvalue=""):
        if a == b:
            continue
        if a[:1].isdigit() and b[:1].isdigit() and "0" not in (a[0], b[0]):
            return (len(a), a) < (len(b), b)
        return bool(a < b)
    return False


def _is_alike(one: _Hosts, other: _Hosts) -> bool:
    return one.prefix == other.prefix and (one.width < 0) == (other.width < 0)


def _share_width(one: _Hosts, other: _Hosts) -> bool:
    """Whether one width does for both; it is then that of both."""
    if one.width == other.width:
        return True
    fits_one = _zeros(one.low, one.width) == _zeros(one.low, other.width)
    fits_other = _zeros(other.low, other.width) == _zeros(other.low, one.width)
    if not fits_one and not fits_other:
        return False
    if fits_one:
        one.width = other.width
    else:
        other.width = one.width
    return True


def _zeros(number: int, width: int) -> int:
    """How many zeros stand before the number."""
    return max(0, width - len(str(number)))


def _join(one: _Hosts, other: _Hosts) -> bool:
    """Make the first run that of both, if they touch."""
    if not _is_alike(one, other) or not _share_width(one, other):
        return False
    if one.width < 0:
        return True
    if one.high < other.low - 1:
        return False
    one.high = max(one.high, other.high)
    return True


def expanded(text: str, *, slurm: str, most: int = _RANGE_LIMIT) -> list[str]:
    """The names of the hosts in a list; none if there are more than `most`.

    Raises:
        RefusedError: It is not a list of hosts.
    """
    found, uncompared = _parsed(text, slurm)
    if uncompared or sum(run.count for run in found) > most:
        return []
    return [
        run.prefix if run.width < 0 else f"{run.prefix}{number:0{run.width}}"
        for run in found
        for number in range(run.low, run.high + 1)
    ]


def passed_on(text: str, *, slurm: str) -> list[str]:
    """The hosts of --nodelist as slurmctld finds them: sbatch has written the list anew before.

    Raises:
        RefusedError: sbatch or slurmctld refuses the list.
    """
    return expanded(",".join(expanded(text, slurm=slurm)), slurm=slurm)
