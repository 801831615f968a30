"""The licences of --licenses, as slurmctld reads them.

Source: _build_license_list of slurmctld, 22.05 to 26.05; benchmarks/values.py asks slurmctld 22.05.8 and
26.05.5.
"""

from __future__ import annotations

import re

from sbatchgen.sbatch.grammar import leading_number, wrapped

_ITEM = re.compile(r"([^:\s]*)(?::(.*))?", re.DOTALL | re.ASCII)
_ITEM_WITH_EQUALS = re.compile(r"([^:=\s]*)(?:[:=](.*))?", re.DOTALL | re.ASCII)


def counts(text: str, *, slurm: str) -> dict[str, int]:
    """How many of each licence; 0 where a licence is named and none of it is wanted.

    Raises:
        ValueError: slurmctld refuses it whatever licences it has; the text says why.
    """
    mark = "[,;]"
    if "|" in text and slurm >= "25.05":
        if re.search("[,;(]", text):
            raise ValueError("',' (all of them) and '|' (any of them) can't be mixed")
        mark = "[|]"
    found: dict[str, int] = {}
    pattern = _ITEM_WITH_EQUALS if slurm >= "23.11" else _ITEM
    for item in filter(None, re.split(mark, text)):
        match = pattern.fullmatch(item)
        if match is None:
            raise ValueError(f"'{item}' has a space in its name")
        count = 1 if match[2] is None else _count(match[2], slurm)
        if not match[1] and (count or slurm < "26.05"):
            raise ValueError(f"'{item}' names no licence")
        found[match[1]] = found.get(match[1], 0) + count
    return found


def _count(text: str, slurm: str) -> int:
    number, rest = leading_number(text)
    if number is None and slurm >= "25.11" and re.fullmatch(r"[A-Za-z_]\w*", text):
        return 1  # the name of a number, where the site has such names
    if rest or (number is None and slurm >= "25.11"):
        raise ValueError(f"'{text}' is not a number of licences")
    count = wrapped(number or 0)
    if count < 0:
        raise ValueError("a negative number of licences")
    return count
