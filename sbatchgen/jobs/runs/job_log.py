"""The logs of a job: finds the files, reads their last lines, and follows new lines."""

import contextlib
import functools
import glob
import io
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from sbatchgen.base import files
from sbatchgen.base.machine.trust import user_name
from sbatchgen.jobs.runs import program_states
from sbatchgen.jobs.runs.record import Record, records

PIECE = 1 << 20  # bytes that are read at a time
FURTHEST = 32 << 20  # bytes at the end of a log in which the last lines are searched
END = 2 << 20  # bytes at the end of a log that a diagnosis reads
COUNTED = 1 << 30  # bytes of the largest log whose lines are counted
# The line that a script of sbatchgen prints at each start of its job. All starts share one log.
START = re.compile(r"Job [0-9]+ on \S+, restart ([0-9]{1,9}) of at most [0-9]{1,9}")
_PATTERN = re.compile(r"%(\d{0,2})([%AJNabjnstux])")


def find_logs(record: Record, task: str = "", *, errors: bool = False) -> list[Path]:
    """Return the logs of a job so far, the oldest first: of all tasks of an array, or only of `task`.

    With `errors`, separate logs of stderr are among them. For a sweep, `task` is the number of the point.
    """
    if task.isdecimal():
        task = str(int(task) - record.first)
    patterns = dict.fromkeys(filter(None, (record.log, record.errors * errors)))
    return [] if task.startswith("-") else _existing(record, task, patterns)


def _existing(record: Record, task: str, patterns: Iterable[str]) -> list[Path]:
    """Return the files whose names fit sbatch's patterns, such as slurm-%j.out, the oldest first."""
    fill = partial(_filled, record, task)
    by_pattern = (_matching_files(_PATTERN.sub(fill, _escaped(pattern))) for pattern in patterns)
    # Slurm makes no links, so a link is not a log.
    names = itertools.filterfalse(os.path.islink, itertools.chain.from_iterable(by_pattern))
    written = []
    for path in map(Path, names):
        with contextlib.suppress(OSError):  # a log may be removed meanwhile
            written.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(written)]


def _matching_files(pattern: str) -> Iterable[str]:
    """Return the files that fit a pattern of `glob`; a pattern without wildcards is the name of a file.

    No file below /proc is returned: a record that somebody else wrote may name this process there, and its
    environment is private.
    """
    is_one = not glob.has_magic(pattern)
    if is_one and not os.path.lexists(pattern):  # a large sweep has many points without a log
        return []
    if os.path.realpath(pattern).startswith("/proc/"):
        return []
    return [pattern] if is_one else glob.glob(pattern)  # noqa: PTH207


def task_of(record: Record, path: Path) -> str:
    """Return the task, or the point of a sweep, in the name of a log; "" if the name has none."""
    name = _PATTERN.sub(lambda match: r"(\d+)" if match[2] == "a" else ".*?", re.escape(record.log))
    match = re.fullmatch(name, str(path)) if record.array else None
    return str(int(match[1]) + record.first) if match and match.lastindex else ""


def newest_logs(record: Record, task: str = "") -> list[Path]:
    """Return the newest log of a job or task; if stderr has a log of its own, it comes before the other."""
    if task.isdecimal():
        task = str(int(task) - record.first)
    names = [] if task.startswith("-") else [*filter(None, dict.fromkeys((record.errors, record.log)))]
    newest = (_existing(record, task, [name])[-1:] for name in names)
    return [*dict.fromkeys(itertools.chain.from_iterable(newest))]


def last_start(path: Path, max_lines: int) -> list[tuple[int, str]]:
    """Return at most `max_lines` last lines of a log, with their numbers, since its job's last start."""
    return last_starts(path, max_lines)[1]


def last_starts(path: Path, max_lines: int) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return the last lines of each of the last two starts of a job, with their numbers."""
    before, lines = (deque[tuple[int, str]](maxlen=max_lines) for _ in range(2))
    with contextlib.suppress(OSError):
        for number, line in last_lines(path):
            if START.match(line):
                before, lines = lines, deque(maxlen=max_lines)
            lines.append((number, line))
    return [*before], [*lines]


def starts(path: Path) -> int:
    """Return how often a job has started, as the end of its log shows; 0 if no line shows a start."""
    with contextlib.suppress(OSError):
        begun = filter(None, (START.match(line) for _, line in last_lines(path)))
        return max((1 + int(start[1]) for start in begun), default=0)
    return 0


def _filled(record: Record, task: str, match: re.Match[str]) -> str:
    """Return what replaces a pattern of sbatch such as %j in a pattern of `glob`; * for an unknown value."""
    width, letter = int(match[1] or 0), match[2]
    if letter == "%":
        return "%"
    if letter in "aj" and record.array and not task:
        return "*"  # each task of an array has an id of its own
    values = {"A": record.job, "j": record.job, "a": task, "x": record.name, "u": _my_name()}
    if letter not in values or (letter == "j" and task):
        return "*"
    value = values[letter]
    return glob.escape(value.zfill(width) if letter in "Aaj" else value)


_escaped = functools.lru_cache(maxsize=64)(glob.escape)  # all points of a sweep have the same pattern


@functools.cache
def _my_name() -> str:
    return user_name(os.geteuid())


def last_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines at the end of a log, each with its number from 1; raises OSError.

    The number is 0 if the log is too large to count its lines.
    """
    with files.regular(path) as file:
        start = max(0, os.fstat(file.fileno()).st_size - END)
        number = 0
        if start <= COUNTED:
            number = 1 + sum(file.read(min(PIECE, start - at)).count(b"\n") for at in range(0, start, PIECE))
        file.seek(start)
        for line in io.BytesIO(file.read(END)):
            if not line.isspace():
                yield number, line.decode("utf-8", "replace").rstrip("\n")
            number += bool(number)


def _start_of_lines(file: BinaryIO, count: int) -> int:
    """Return the offset of the last `count` lines of a file, at most FURTHEST bytes before the end."""
    at = end = os.fstat(file.fileno()).st_size
    left, is_last = count, True
    while left and at > max(0, end - FURTHEST):
        piece_at = max(0, at - PIECE)
        file.seek(piece_at)
        piece = file.read(at - piece_at)
        cut = len(piece) - (is_last and piece.endswith(b"\n"))  # a break at the end ends the last line
        is_last = False
        while left and (cut := piece.rfind(b"\n", 0, cut)) >= 0:
            left -= 1
            if not left:
                return piece_at + cut + 1
        at = piece_at
    return at if left else end


class Tail:
    """A reader of a file that grows. The file may not exist yet."""

    def __init__(self, path: Path, *, last: int | None = None) -> None:
        """Start at the first byte, or at the last lines, as many as `last`."""
        self.path = path
        self._at = 0
        self._inode: int | None = None
        if last is not None:
            with contextlib.suppress(OSError), files.regular(path, os.O_NOFOLLOW) as file:
                self._inode = os.fstat(file.fileno()).st_ino
                self._at = _start_of_lines(file, last)

    def more(self) -> Iterator[bytes]:
        """Yield the new bytes; all bytes again if the file was replaced or truncated."""
        try:
            with files.regular(self.path, os.O_NOFOLLOW) as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self._inode or now.st_size < self._at:
                    self._inode, self._at = now.st_ino, 0
                file.seek(self._at)
                while piece := file.read(PIECE):
                    self._at += len(piece)
                    yield piece
        except OSError:
            return


class RunLogs:
    """A reader of a run's logs: the newest that exists at the start, and all that are written later."""

    def __init__(
        self,
        folder: Path,
        lines: int | None,
        task: str,
        *,
        since: float = 0.0,
        program: str = "",
        job: str = "",
        plain: Record | None = None,
    ) -> None:
        """Choose logs of jobs submitted since a time, of a program or of a job; start at the last `lines`.

        `plain` describes a job that has no record in the folder.
        """
        self._folder, self._task, self._since, self._program = folder, task, since, program
        self._plain, self._job = plain, job
        self.refresh()
        # Listed before the newest logs are chosen: a log that appears in between is new, and shown whole.
        paths = self._paths()
        # The newest job that has logs; its log of stderr comes last.
        by_job = (newest_logs(record, task)[::-1] for record in reversed(self._records))
        newest = paths if program else next(filter(None, by_job), [])
        self._tails = {path: Tail(path, last=0) for path in paths if path not in newest}
        self._tails |= {path: Tail(path, last=lines) for path in newest}

    @property
    def is_empty(self) -> bool:
        """Whether all of the logs are empty."""
        with contextlib.suppress(OSError):
            return not any(path.stat().st_size for path in self._tails)
        return False

    def refresh(self) -> None:
        """Read the list of the jobs of the run again."""
        submitted = [self._plain] if self._plain else records(self._folder)
        wanted = (record for record in submitted if self._job in ("", record.job))
        self._records = [record for record in wanted if record.submitted >= self._since]

    def _paths(self) -> list[Path]:
        if self._program:
            return program_states.logs(self._folder).get(self._program, [])
        return [path for record in self._records for path in find_logs(record, self._task, errors=True)]

    def show(self, put: Callable[[bytes], None]) -> bool:
        """Pass the new bytes of all logs to `put`; return whether there is a log."""
        for path in self._paths():
            self._tails.setdefault(path, Tail(path))
        for piece in itertools.chain.from_iterable(tail.more() for tail in self._tails.values()):
            put(piece)
        return bool(self._tails)
