"""Finds the logs of a job by its record, reads their last lines, and follows new lines."""

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
from typing import BinaryIO, NamedTuple

from sbatchgen.base import files
from sbatchgen.base.machine.trust import user_name
from sbatchgen.jobs.runs import program_states
from sbatchgen.jobs.runs.record import Record, records

# A line of a log after its number, which counts from 1: (12, "ValueError: a batch is empty").
NumberedLine = tuple[int, str]
PIECE_BYTES = 1 << 20  # bytes that are read at a time
MAX_TAIL_BYTES = 32 << 20  # bytes at the end of a log that are searched for the start of its last lines
END_BYTES = 2 << 20  # bytes at the end of a log that `last_lines` reads
MAX_COUNTED_BYTES = 1 << 30  # the lines of a larger log are not counted, so they have no numbers
# The line that a script of sbatchgen prints at each start of its job. All starts share one log.
JOB_START = re.compile(r"Job [0-9]+ on \S+, restart ([0-9]{1,9}) of at most [0-9]{1,9}")
_PATTERN = re.compile(r"%(\d{0,2})([%AJNabjnstux])")  # sbatch's patterns in file names, such as %j or %4a


def find_logs(record: Record, task: str = "", *, with_stderr: bool = False) -> list[Path]:
    """Return the logs of a job so far, the oldest first: of all tasks of an array, or only of `task`.

    For a sweep, `task` is the number of the point. A separate log of stderr is only among the logs with
    `with_stderr`.
    """
    index = _index_in_array(record, task)
    patterns = dict.fromkeys(filter(None, (record.log, record.errors if with_stderr else "")))
    is_of_earlier_job = index.startswith("-")
    return [] if is_of_earlier_job else _existing_logs(record, index, patterns)


def _index_in_array(record: Record, task: str) -> str:
    """Return the index of a task in the job's array.

    For a sweep, `task` is the number of a point. If an earlier job runs the point, the index is negative.
    """
    return str(int(task) - record.first) if task.isdecimal() else task


def _existing_logs(record: Record, index: str, patterns: Iterable[str]) -> list[Path]:
    """Return the files whose names fit sbatch's patterns, such as slurm-%j.out, the oldest first."""
    fill = partial(_glob_for, record, index)
    by_pattern = (_matching_files(_PATTERN.sub(fill, _escaped(pattern))) for pattern in patterns)
    # Slurm makes no links, so a link is not a log.
    names = itertools.filterfalse(os.path.islink, itertools.chain.from_iterable(by_pattern))
    return files.oldest_first(map(Path, names))


def _matching_files(pattern: str) -> Iterable[str]:
    """Return the files that fit a pattern of `glob`; a pattern without wildcards is the name of a file.

    No file below /proc is returned: a record that somebody else wrote may name a file of this process there,
    such as its environment, which is private.
    """
    is_file_name = not glob.has_magic(pattern)
    if is_file_name and not os.path.lexists(pattern):  # a large sweep has many points without a log
        return []
    if os.path.realpath(pattern).startswith("/proc/"):
        return []
    return [pattern] if is_file_name else glob.glob(pattern)  # noqa: PTH207


def task_of(record: Record, path: Path) -> str:
    """Return the task, or the point of a sweep, in the name of a log; "" if the name has none."""
    # "logs/%A_%a.out" becomes "logs/.*?_(\d+)\.out"
    regex = _PATTERN.sub(lambda match: r"(\d+)" if match[2] == "a" else ".*?", re.escape(record.log))
    match = re.fullmatch(regex, str(path)) if record.array else None
    return str(int(match[1]) + record.first) if match and match.lastindex else ""


def newest_logs(record: Record, task: str = "") -> list[Path]:
    """Return the newest log of a job or task; if stderr has a log of its own, this log comes first."""
    index = _index_in_array(record, task)
    is_of_earlier_job = index.startswith("-")
    patterns = [] if is_of_earlier_job else [*filter(None, dict.fromkeys((record.errors, record.log)))]
    newest = (_existing_logs(record, index, [pattern])[-1:] for pattern in patterns)
    return [*dict.fromkeys(itertools.chain.from_iterable(newest))]


def last_start(path: Path, max_lines: int) -> list[NumberedLine]:
    """Return the lines of a log since its job's last start, at most the last `max_lines`."""
    return last_starts(path, max_lines).last


class LastStarts(NamedTuple):
    """The lines that the last two starts of a job have written into its log."""

    before: list[NumberedLine]  # the last start but one; none if the job has started once
    last: list[NumberedLine]  # the last start


def last_starts(path: Path, max_lines: int) -> LastStarts:
    """Return the lines of the last two starts of a job in its log, at most the last `max_lines` of each."""
    before, last = (deque[NumberedLine](maxlen=max_lines) for _ in range(2))
    with contextlib.suppress(OSError):
        for number, line in last_lines(path):
            if JOB_START.match(line):
                before, last = last, deque(maxlen=max_lines)
            last.append((number, line))
    return LastStarts([*before], [*last])


def start_count(path: Path) -> int:
    """Return how often a job has started, as the end of its log shows; 0 if no line shows a start."""
    with contextlib.suppress(OSError):
        matches = filter(None, (JOB_START.match(line) for _, line in last_lines(path)))
        return max((1 + int(match[1]) for match in matches), default=0)
    return 0


def _glob_for(record: Record, index: str, match: re.Match[str]) -> str:
    """Return the text that replaces a pattern of sbatch, such as %j, in a pattern of `glob`.

    The text is the value for this job, or "*" if the value is not known.
    """
    width, letter = int(match[1] or 0), match[2]
    if letter == "%":
        return "%"
    # Each task of an array has an index and a job id of its own, and the record has only the id of the array.
    if letter in "aj" and record.array and not index:
        return "*"
    values = {"A": record.job, "j": record.job, "a": index, "x": record.name, "u": _my_name()}
    if letter not in values or (letter == "j" and index):
        return "*"
    value = values[letter]
    return glob.escape(value.zfill(width) if letter in "Aaj" else value)


_escaped = functools.lru_cache(maxsize=64)(glob.escape)  # all points of a sweep have the same pattern


@functools.cache
def _my_name() -> str:
    """Return the name of this user, for sbatch's pattern %u."""
    return user_name(os.geteuid())


def last_lines(path: Path) -> Iterator[NumberedLine]:
    """Yield the non-blank lines at the end of a log; raises OSError.

    The number of each line is 0 if the log is too large to count its lines.
    """
    with files.open_regular(path) as file:
        start = max(0, os.fstat(file.fileno()).st_size - END_BYTES)
        number = 0
        if start <= MAX_COUNTED_BYTES:
            sizes = (min(PIECE_BYTES, start - offset) for offset in range(0, start, PIECE_BYTES))
            number = 1 + sum(file.read(size).count(b"\n") for size in sizes)
        file.seek(start)
        for line in io.BytesIO(file.read(END_BYTES)):
            if not line.isspace():
                yield number, line.decode("utf-8", "replace").rstrip("\n")
            number += bool(number)


def _start_of_lines(file: BinaryIO, count: int) -> int:
    """Return the offset of the last `count` lines of a file, at most MAX_TAIL_BYTES before the end."""
    offset = end = os.fstat(file.fileno()).st_size
    lines_left, is_last_piece = count, True
    while lines_left and offset > max(0, end - MAX_TAIL_BYTES):
        piece_start = max(0, offset - PIECE_BYTES)
        file.seek(piece_start)
        piece = file.read(offset - piece_start)
        # A line break at the end of the file ends the last line, so it does not start another.
        newline = len(piece) - (is_last_piece and piece.endswith(b"\n"))
        is_last_piece = False
        while lines_left and (newline := piece.rfind(b"\n", 0, newline)) >= 0:
            lines_left -= 1
            if not lines_left:
                return piece_start + newline + 1
        offset = piece_start
    return offset if lines_left else end


class Tail:
    """A reader of a file that grows. The file may not exist yet."""

    def __init__(self, path: Path, *, last_lines: int | None = None) -> None:
        """Begin to read at the last `last_lines` lines of the file, or at its first byte without a number."""
        self.path = path
        self._offset = 0
        self._inode: int | None = None
        if last_lines is not None:
            with contextlib.suppress(OSError), files.open_regular(path, os.O_NOFOLLOW) as file:
                self._inode = os.fstat(file.fileno()).st_ino
                self._offset = _start_of_lines(file, last_lines)

    def new_bytes(self) -> Iterator[bytes]:
        """Yield the bytes since the last call; all bytes again if the file was replaced or truncated."""
        try:
            with files.open_regular(self.path, os.O_NOFOLLOW) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                while piece := file.read(PIECE_BYTES):
                    self._offset += len(piece)
                    yield piece
        except OSError:
            return


class RunLogs:
    """A reader of a run's logs, for `logs`.

    It shows the end of the newest log, and then each line that a log gets while the command follows the run.
    """

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
        """Choose the logs to read.

        Args:
            folder: The run folder.
            lines: How many lines at the end of the newest log are shown first; None for the whole log.
            task: The task of an array or the point of a sweep; "" for all.
            since: Only jobs that were submitted since this time count, in seconds since 1970.
            program: The program whose logs are read, if the job has several; "" for the job's own log.
            job: The id of the job; "" for all jobs of the run.
            plain: The record of a job of plain sbatch, which has none in the folder.
        """
        self._folder, self._task, self._since, self._program = folder, task, since, program
        self._plain, self._job = plain, job
        self.refresh()
        # List the logs before choosing the newest, so that a log that appears in between is shown whole.
        paths = self._paths()
        # `newest` has the logs of the newest job that has any; its log of stderr comes last.
        by_job = (newest_logs(record, task)[::-1] for record in reversed(self._records))
        newest = paths if program else next(filter(None, by_job), [])
        # Older logs are not shown, only lines that they get from now on.
        self._tails = {path: Tail(path, last_lines=0) for path in paths if path not in newest}
        self._tails |= {path: Tail(path, last_lines=lines) for path in newest}

    @property
    def is_empty(self) -> bool:
        """Whether all of the logs are empty."""
        with contextlib.suppress(OSError):
            return not any(path.stat().st_size for path in self._tails)
        return False

    def refresh(self) -> None:
        """Read the records of the run's jobs again, because jobs may have been submitted meanwhile."""
        submitted = [self._plain] if self._plain else records(self._folder)
        of_chosen_job = (record for record in submitted if self._job in ("", record.job))
        self._records = [record for record in of_chosen_job if record.submitted >= self._since]

    def _paths(self) -> list[Path]:
        """Return the logs that exist now."""
        if self._program:
            return program_states.logs(self._folder).get(self._program, [])
        return [path for record in self._records for path in find_logs(record, self._task, with_stderr=True)]

    def show(self, put: Callable[[bytes], None]) -> bool:
        """Pass the bytes that are new since the last call to `put`; return whether there is a log."""
        for path in self._paths():
            self._tails.setdefault(path, Tail(path))
        for piece in itertools.chain.from_iterable(tail.new_bytes() for tail in self._tails.values()):
            put(piece)
        return bool(self._tails)
