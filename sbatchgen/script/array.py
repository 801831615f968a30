"""The indices of --array, as slurmctld reads them.

Source: slurm_parse_array_tok of slurmctld, the same from 20.11 to 26.05; tests/cluster/test_judges.py asks
slurmctld 22.05.8.
"""

from __future__ import annotations

import re

_NUMBER = r"(?:\s*([+-]?\d+))?"  # strtol: nothing is 0
_ITEM = re.compile(rf"\[?{_NUMBER}\]?(?:-{_NUMBER}\]?(?::{_NUMBER}\]?)?)?(?:%.*)?", re.ASCII | re.DOTALL)
_LARGEST = 10**18  # about what a long holds


def indices(text: str) -> tuple[range, ...] | None:
    """The indices, one range an item; none of an empty text, which is no array. None: slurmctld refuses it.

    MaxArraySize is not judged.
    """
    found = []
    for item in filter(None, text.split(",")):
        match = _ITEM.fullmatch(item)
        if match is None:
            return None
        first, step = _number(match[1]), 1
        last = _number(match[2]) if _has_end(item, match) else first
        if match[3] is not None or ":" in item.partition("%")[0]:
            step = _number(match[3])
        if first < 0 or last < first or step <= 0:
            return None
        found.append(range(first, last + 1, step))
    return tuple(found)


def _has_end(item: str, match: re.Match[str]) -> bool:
    """Whether the item is FIRST-LAST; a - before FIRST is its sign."""
    return "-" in item[match.end(1) if match[1] else 0 :].partition("%")[0]


def _number(text: str | None) -> int:
    if not text:
        return 0
    value = int(text[:20])
    return max(-_LARGEST, min(value, _LARGEST))
