"""The logs of a job: where they are, and how they grow."""

from __future__ import annotations

import contextlib
import getpass
import glob
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sbatchgen import files
from sbatchgen.runs.record import Record

PIECE = 1 << 20  # bytes that are read at a time
END = 2 << 20  # bytes of a log that are looked at after a failure
COUNTED = 1 << 30  # of a larger log the lines are not counted
_PATTERN = re.compile(r"%(\d{0,2})([%AJNabjnstux])")


def find(record: Record, task: str = "") -> list[Path]:
    """The logs that a job has written so far, the oldest first; of an array those of all tasks, or of one.

    The task of a sweep is the number of its point.
    """
    if task.isdecimal():
        task = str(int(task) - record.first)
    if not record.log or task.startswith("-"):
        return []
    names = _PATTERN.sub(lambda match: _filled(record, task, match), glob.escape(record.log))
    with contextlib.suppress(OSError):
        return sorted((Path(name) for name in glob.glob(names)), key=lambda file: file.stat().st_mtime)  # noqa: PTH207
    return []


def _filled(record: Record, task: str, match: re.Match[str]) -> str:
    """A pattern of the log's name for `glob`: what only the running job knows matches anything."""
    width, letter = int(match[1] or 0), match[2]
    if letter == "%":
        return "%"
    if letter in "aj" and record.array and not task:
        return "*"  # of an array each task has an id of its own
    known = {"A": record.job, "j": record.job, "a": task, "x": record.name, "u": _user()}
    if letter not in known or (letter == "j" and task):
        return "*"
    value = known[letter]
    return glob.escape(value.zfill(width) if letter in "Aaj" else value)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for this number
        return "*"


def end(path: Path) -> Iterator[tuple[int, str]]:
    """The lines at the end of a log that hold something, each with its number from 1.

    The number is 0 if the log is too large to count its lines.

    Raises:
        OSError: It can't be read.
    """
    with files.regular(path) as file:
        at = max(0, os.fstat(file.fileno()).st_size - END)
        number = 0
        if at <= COUNTED:
            number = 1
            for start in range(0, at, PIECE):
                number += file.read(min(PIECE, at - start)).count(b"\n")
        file.seek(at)
        for line in io.BytesIO(file.read(END)):
            if not line.isspace():
                yield number, line.decode("utf-8", "replace").rstrip("\n")
            number += bool(number)


class Tail:
    """A file that grows, read from a place on; it need not be there yet."""

    def __init__(self, path: Path, *, last: int | None = None) -> None:
        """Start at the first byte, or with the `last` lines."""
        self.path = path
        self._at = 0
        self._inode: int | None = None
        if last is not None:
            with contextlib.suppress(OSError), files.regular(path) as file:
                self._inode = os.fstat(file.fileno()).st_ino
                self._at = _start_of_last(file, last)

    def more(self) -> Iterator[bytes]:
        """What was written since; from the start again if the file was replaced or cut."""
        try:
            with files.regular(self.path) as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self._inode or now.st_size < self._at:
                    self._inode, self._at = now.st_ino, 0
                file.seek(self._at)
                while piece := file.read(PIECE):
                    self._at += len(piece)
                    yield piece
        except OSError:
            return


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """The place in a file where its last lines start."""
    end = at = file.seek(0, os.SEEK_END)
    missing = lines
    while at > 0 and missing:
        size = min(PIECE, at)
        at -= size
        file.seek(at)
        piece = file.read(size)
        breaks = [place for place, byte in enumerate(piece) if byte == 10]  # newlines
        if at + size == end and breaks[-1:] == [size - 1]:
            breaks.pop()  # the last line's own end
        if len(breaks) >= missing:
            return at + breaks[-missing] + 1
        missing -= len(breaks)
    return at if lines else end
