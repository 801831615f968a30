"""Lists of hosts, such as x[1-3,07],y.

Source: Slurm's hostlist, 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5; a cluster of one
dimension.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product

from sbatchgen.sbatch.grammar import RefusedError, leading_number
from sbatchgen.sbatch.gres import NEWEST

_MOST = 64 * 1024  # hosts of a list
_Numbers = list[tuple[range, int]]  # what stands in brackets: numbers, and how many digits each has at least


def expanded(text: str, *, slurm: str) -> list[str]:
    """The names of the hosts in a list; none if there are more than 65,536.

    Raises:
        RefusedError: It is not a list of hosts.
    """
    parts = [_part(item, slurm) for item in items(text)]
    count = sum(math.prod(sum(len(run) for run, _ in each) for each in brackets) for _, brackets in parts)
    return [name for part in parts for name in _names(*part)] if count <= _MOST else []


def hosts(text: str) -> list[str]:
    """The names, as the current release reads them; none where it is not a list."""
    return hosts_of(text, slurm=NEWEST) or []


def passed_on(text: str, *, slurm: str) -> list[str]:
    """The hosts of --nodelist as slurmctld finds them: sbatch has written the list anew before.

    Raises:
        RefusedError: sbatch or slurmctld refuses the list.
    """
    return expanded(",".join(expanded(text, slurm=slurm)), slurm=slurm)


def hosts_of(text: str, *, slurm: str, passed: bool = False) -> list[str] | None:
    """The hosts of an option, `passed` on to slurmctld if wanted; none of a file, None if it is no list."""
    try:
        return [] if "/" in text else (passed_on if passed else expanded)(text, slurm=slurm)
    except RefusedError:
        return None


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


def _part(item: str, slurm: str) -> tuple[list[str], list[_Numbers]]:
    """The texts around the brackets of a part, and what stands in the brackets, both from the end."""
    head, bracket, rest = item.rpartition("[")
    inner, close, tail = rest.partition("]")
    if not bracket:
        return [item], []
    if not close and slurm < "23.02":
        return [f"{head}]" if head else inner], []
    if not close or (tail and slurm < "23.11"):
        raise RefusedError("Invalid node list specified" if slurm >= "24.05" else "memory allocation failure")
    texts: list[str] = []
    brackets: list[_Numbers] = []
    before = head
    while bracket and close:
        before = head
        texts.append(tail)
        brackets.append([_range(text) for text in inner.split(",")])
        head, bracket, rest = before.rpartition("[")
        inner, close, tail = rest.partition("]")
    return [*texts, before], brackets


def _names(texts: list[str], brackets: list[_Numbers]) -> Iterator[str]:
    first, *others = reversed(texts)
    numbers = ([f"{number:0{width}}" for run, width in each for number in run] for each in reversed(brackets))
    for chosen in product(*numbers):
        yield first + "".join(number + text for number, text in zip(chosen, others, strict=True))


def _range(text: str) -> tuple[range, int]:
    low_text, dash, high_text = text.partition("-")
    low, low_rest = leading_number(low_text)
    high, high_rest = leading_number(high_text)
    if not (dash and high_text):
        high, high_rest = low, low_rest
    if "x" in text or low is None or high is None or high_rest or low > high or high_text[:1] == "-":
        raise RefusedError(f"Invalid range: `{text}'")
    if high - low + 1 > _MOST:
        raise RefusedError(f"Too many hosts in range `{text}'")
    return range(low, high + 1), len(low_text)
