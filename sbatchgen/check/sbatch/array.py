"""Reads the indices in a value of --array, as slurmctld of 20.11 to 26.05 does."""

import re

from sbatchgen.base.units import number

_LARGEST_NUMBER = 10**18  # larger numbers are cut to this one, which is about the largest long of C
# An item is 3, 1-9 or 1-9:2%4. Brackets may be before the first number and after each. A missing number is 0.
_NUMBER = r"\s*([+-]?[0-9]*)\]?"
_ITEM = re.compile(rf"\[?{_NUMBER}(?:-{_NUMBER}(?::{_NUMBER})?)?(?:%.*)?", re.DOTALL)


def indices(text: str) -> tuple[range, ...] | None:
    """Return a range of indices for each item of an --array; None if slurmctld refuses the value.

    The limit MaxArraySize is not checked.
    """
    ranges = [_item_indices(item) for item in text.split(",") if item]
    return None if None in ranges else tuple(item for item in ranges if item is not None)


def _item_indices(item: str) -> range | None:
    """Return the indices of an item such as 1-9:2; None if slurmctld refuses the item."""
    match = _ITEM.fullmatch(item)
    if match is None:
        return None
    first = _number(match[1])
    last = first if match[2] is None else _number(match[2])
    step = 1 if match[3] is None else _number(match[3])
    return range(first, last + 1, step) if 0 <= first <= last and step > 0 else None


def _number(text: str) -> int:
    """Return the number in a text of digits, which may have a sign; 0 for an empty text."""
    value = min(number(text.lstrip("+-")), _LARGEST_NUMBER)
    return -value if text.startswith("-") else value
