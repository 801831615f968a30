"""Safe fixes: edits of a script that keep all other bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from sbatchgen.finding import Edit, Finding

_PASSES = 10  # more than any chain of fixes needs; two that undo each other end here


def mended(data: bytes, findings: Callable[[bytes], Sequence[Finding]]) -> bytes:
    """The script with every safe fix. One may make room for another: it is read again until none is left.

    Args:
        data: The script.
        findings: What is found in a script.
    """
    for _ in range(_PASSES):
        new = edited(data, findings(data))
        if new == data:
            break
        data = new
    return data


def edited(data: bytes, findings: Iterable[Finding]) -> bytes:
    """The script with the edits of these findings; of findings whose edits meet, the first counts."""
    lines = data.split(b"\n")
    taken: dict[int, list[Edit]] = {}
    for finding in findings:
        if all(_is_free(edit, taken.get(edit.line, []), len(lines)) for edit in finding.edits):
            for edit in finding.edits:
                taken.setdefault(edit.line, []).append(edit)
    for number in sorted(taken, reverse=True):
        for edit in sorted(taken[number], key=lambda one: one.column, reverse=True):
            lines[number - 1 : number] = _changed(lines[number - 1], edit)
    return b"\n".join(lines)


def _changed(line: bytes, edit: Edit) -> list[bytes]:
    """The lines that an edit makes of a line."""
    new = edit.text.encode("utf-8", "surrogateescape")
    if not edit.column:
        return new.split(b"\n") if new else []
    old = line.decode("utf-8", "surrogateescape")
    end = edit.end - 1 if edit.end else len(old)
    return [b"".join((_bytes(old[: edit.column - 1]), new, _bytes(old[end:])))]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_free(edit: Edit, others: Iterable[Edit], lines: int) -> bool:
    return 1 <= edit.line <= lines and not any(_meet(edit, other) for other in others)


def _meet(one: Edit, other: Edit) -> bool:
    """Whether two edits of a line touch the same characters; two insertions at one place do."""
    if not one.column or not other.column:
        return True
    ends = [edit.end or 1 << 30 for edit in (one, other)]
    return one.column <= ends[1] and other.column <= ends[0]


def difference(name: str, before: bytes, after: bytes) -> bytes:
    """The change as a unified diff for patch(1) and git; empty if nothing changed."""
    import difflib

    if before == after:
        return b""
    label = os.fsencode(name.lstrip("/"))
    made = difflib.diff_bytes(
        difflib.unified_diff, [*_lines(before)], [*_lines(after)], b"a/" + label, b"b/" + label
    )
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in made
    )


def _lines(data: bytes) -> Iterator[bytes]:
    """The lines with their line feeds; a carriage return does not end a line."""
    parts = data.split(b"\n")
    yield from (part + b"\n" for part in parts[:-1])
    if parts[-1]:
        yield parts[-1]
