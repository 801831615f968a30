"""Applies safe fixes to a script: the edits of findings, which keep all other bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence

from sbatchgen.base.finding import Edit, Finding

_PASSES = 10  # more than any chain of fixes needs. The limit ends fixes that undo each other.


def apply_fixes(data: bytes, findings: Callable[[bytes], Sequence[Finding]]) -> bytes:
    """Return the script with all safe fixes.

    `findings` returns the findings in a script. It is called after each pass, as a fix may allow another fix.
    """
    for _ in range(_PASSES):
        edited = apply_edits(data, findings(data))
        if edited == data:
            break
        data = edited
    return data


def apply_edits(data: bytes, findings: Iterable[Finding]) -> bytes:
    """Return the script with the edits of findings. If two findings overlap, the first one wins."""
    lines = data.split(b"\n")
    edits_of_line: dict[int, list[Edit]] = {}
    for finding in findings:
        pairs = [(edit, other) for edit in finding.edits for other in edits_of_line.get(edit.line, [])]
        is_in_script = all(1 <= edit.line <= len(lines) for edit in finding.edits)
        if is_in_script and not any(_overlap(edit, other) for edit, other in pairs):
            for edit in finding.edits:
                edits_of_line.setdefault(edit.line, []).append(edit)
    for number, edits in edits_of_line.items():
        line = lines[number - 1].decode("utf-8", "surrogateescape")
        for edit in sorted(edits, key=lambda edit: edit.column, reverse=True):
            rest = line[edit.end - 1 :] if edit.end else ""
            line = f"{line[: edit.column - 1]}{edit.text}{rest}"
        lines[number - 1] = line.encode("utf-8", "surrogateescape")
    return b"\n".join(lines)


def _overlap(edit: Edit, other: Edit) -> bool:
    """Return whether two edits of a line overlap. Two insertions at the same column also overlap."""
    ends = [change.end or 1 << 30 for change in (edit, other)]
    return edit.column <= ends[1] and other.column <= ends[0]


def difference(name: str, before: bytes, after: bytes) -> bytes:
    """Return the change of a file as a unified diff for patch(1) and git; b"" without a change."""
    import difflib

    label = os.fsencode(name.lstrip("/"))
    old, new = (re.findall(rb"[^\n]*\n|[^\n]+", data) for data in (before, after))  # \r does not end a line
    diff = difflib.diff_bytes(difflib.unified_diff, old, new, b"a/" + label, b"b/" + label)
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in diff
    )
