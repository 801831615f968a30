"""What the check of a run's nodes before its training has found: preflight.json, which it writes there."""

from __future__ import annotations

from pathlib import Path

from sbatchgen.quoting import counted
from sbatchgen.runs.events import read_object

RECORD = "preflight.json"  # by training/preflight.py
LONGEST = 600  # characters of what it says


def preflight_says(folder: Path) -> str:
    """Return what was found, as "n3: /tmp: can't be written"; "" where nodes were not checked."""
    record = read_object(folder / RECORD)
    faults, nodes = record.get("faults"), record.get("nodes")
    if not isinstance(faults, dict) or not isinstance(nodes, list):
        return ""
    says = [
        f"{node or 'all nodes'}: {part}: {what}"
        for node, rows in faults.items()
        if isinstance(rows, list)
        for part, what in (each for each in rows if isinstance(each, list) and len(each) == 2)
    ]
    return "; ".join(says)[:LONGEST] or f"{counted(len(nodes), 'node')} ready"
