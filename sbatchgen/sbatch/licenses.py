"""The licences of --licenses, as slurmctld reads them.

Source: _build_license_list of slurmctld, 22.05 to 26.05.
"""

from __future__ import annotations

import re

from sbatchgen.units import number

_ITEM = re.compile(r"\s*([^:=\s]*)(?:[:=](.*))?", re.DOTALL | re.ASCII)


def counts(text: str) -> dict[str, int]:
    """Return how many of each licence are wanted; 0 for one that is only named.

    Raises:
        ValueError: slurmctld refuses the list whatever licences it has; the text says why.
    """
    wanted: dict[str, int] = {}
    for item in filter(None, re.split("[,;|]", text)):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(f"'{item}' has a space in its name")
        if match[2] is not None and not re.fullmatch(r"\s*\+?[0-9]*|[A-Za-z_]\w*", match[2], re.ASCII):
            raise ValueError(f"'{match[2]}' is not a number of licences")
        digits = re.sub("[^0-9]", "", match[2] or "")
        wanted[match[1]] = wanted.get(match[1], 0) + (1 if match[2] is None else number(digits))
    return wanted
