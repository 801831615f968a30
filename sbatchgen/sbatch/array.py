"""The indices of --array, as slurmctld reads them.

Source: slurm_parse_array_tok of slurmctld, the same from 20.11 to 26.05; tests/cluster/test_judges.py asks
slurmctld 22.05.8.
"""

from __future__ import annotations

from sbatchgen.sbatch.grammar import leading_number

_LARGEST = 10**18  # about what a long holds


def indices(text: str) -> tuple[range, ...] | None:
    """The indices, one range an item; no range for an empty text. None: slurmctld refuses it.

    MaxArraySize is not judged.
    """
    found = [_indices(item) for item in text.split(",") if item]
    return None if None in found else tuple(one for one in found if one is not None)


def _indices(item: str) -> range | None:
    """The indices of an item, as 3, 1-9 or 1-9:2%4; a bracket may stand at each number."""
    first, rest = _number(item.removeprefix("["))
    last, step = first, 1
    if rest.startswith("-"):
        last, rest = _number(rest[1:])
        if rest.startswith(":"):
            step, rest = _number(rest[1:])
    wrong = first < 0 or last < first or step <= 0 or (rest and not rest.startswith("%"))
    return None if wrong else range(first, last + 1, step)


def _number(text: str) -> tuple[int, str]:
    """The number that a text starts with, 0 if there is none, and what follows it and its bracket."""
    value, rest = leading_number(text)
    return max(-_LARGEST, min(value or 0, _LARGEST)), rest.removeprefix("]")
