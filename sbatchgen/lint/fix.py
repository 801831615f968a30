"""Safe fixes: edits of a script that keep all other bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sbatchgen.errors import DocumentError
from sbatchgen.finding import Edit, Finding


def mended(data: bytes, findings: Iterable[Finding]) -> bytes:
    """The script with the edits of these findings; of findings whose edits meet, the first counts."""
    lines = data.split(b"\n")
    taken: list[Edit] = []
    for finding in findings:
        if finding.edits and not any(_meet(one, other) for one in finding.edits for other in taken):
            taken += finding.edits
    for edit in sorted(taken, key=lambda one: (one.line, one.column), reverse=True):
        new = edit.text.encode("utf-8", "surrogateescape")
        if not edit.column:
            lines[edit.line - 1 : edit.line] = new.split(b"\n") if new else []
            continue
        line = lines[edit.line - 1].decode("utf-8", "surrogateescape")
        end = edit.end - 1 if edit.end else len(line)
        changed = line[: edit.column - 1] + edit.text + line[end:]
        lines[edit.line - 1] = changed.encode("utf-8", "surrogateescape")
    return b"\n".join(lines)


def _meet(one: Edit, other: Edit) -> bool:
    """Whether two edits touch the same characters; two insertions at one place do."""
    if one.line != other.line:
        return False
    if not one.column or not other.column:
        return True
    ends = [edit.end or 1 << 30 for edit in (one, other)]
    return one.column <= ends[1] and other.column <= ends[0]


def difference(name: str, before: bytes, after: bytes) -> str:
    """The change as a unified diff; nothing if there is none."""
    import difflib

    if before == after:
        return ""
    old, new = (
        data.decode("utf-8", "backslashreplace").splitlines(keepends=True) for data in (before, after)
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    )


def write(path: Path, data: bytes) -> None:
    """Replace a file, its mode kept: all of it, or nothing.

    Raises:
        DocumentError: It can't be written.
    """
    target = path.resolve()  # a link stays one
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DocumentError.of(f"can't write {path}: {error.strerror}") from error
