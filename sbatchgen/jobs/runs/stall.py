"""Finds out whether a run stands still: whether its last sign of life is long ago for this run.

Signs of life are new lines in the run's logs and new files in its run folder. The times of events and of
lines in the logs show the pauses that are usual for the run. For a log without times, only the mean pause is
known, from the number of its lines. If a log has more lines than are counted, the true mean is smaller. This
module also reads the report of a hang, which names the rank.
"""

import contextlib
import itertools
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.quoting import one_line
from sbatchgen.base.units import in_units
from sbatchgen.jobs.runs.events import EVENTS, as_number, read_object, some_events
from sbatchgen.jobs.runs.failure import lines_before_end
from sbatchgen.jobs.runs.job_log import END_BYTES, JOB_START, NumberedLine, last_start, newest_logs
from sbatchgen.jobs.runs.record import Record

MAX_LINES = 2000  # lines at the end of a log whose times are read
MAX_COUNTED_LINES = 20_000  # lines at the end of a log that are counted, for the mean pause
MIN_STALL_S = 120.0  # a program that is silent for a shorter time does not stand still
# A longer time for a program whose usual pauses are not known: it may import, download or evaluate
MIN_FIRST_STALL_S = 600.0
LONGEST_PAUSE_FACTOR = 4  # a run stands still if it is quiet for more than 4 times its longest pause so far
MEAN_PAUSE_FACTOR = 20  # or for more than 20 times its mean pause, if only the mean is known
MIN_PAUSES = 4  # with fewer pauses, it is not known which pauses are usual
HANG_FILE = "hang.json"  # in this file the training package's launchers report which rank hangs, and where
# `hang` begins its words with this prefix, so that commands tell them from the words of a Stall.
HANGS_PREFIX = "hangs: "
MAX_REPORT_CHARS = 600  # characters of the report of a hang that are shown
MAX_CLOCK_DIFFERENCE_S = 120.0  # how many seconds the clocks of a cluster may differ
_TIMESTAMP = re.compile(r"(?<![\d-])\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
# Lines that Slurm writes into a log: no signs of life
_SLURM_LINE = re.compile(r"slurmstepd|srun: |\[\d{4}-\d\d-\d\dT[\d:.]+\] error:")


class Stall(NamedTuple):
    """A run that stands still, with times in seconds."""

    quiet_s: float  # how long there was no sign of life
    usual_s: float | None  # the usual pause; None if it is not known

    @property
    def says(self) -> str:
        """The stall in words: "no output for 5 min; usual: 4 s"."""
        usual = "" if self.usual_s is None else f"; usual: {in_units(self.usual_s)}"
        return f"no output for {in_units(self.quiet_s)}{usual}"


def hang(folder: Path, started: float, ended: float | None = None) -> str:
    """Return the words of a hang, such as "hangs: rank 2 on n3 is in dataset.py:88"; "" without a hang.

    The launcher of the training package reports a hang in HANG_FILE, in the run folder. `started` and `ended`
    are the job's times; `ended` is None while it runs. A report from another time is about another job of the
    folder.
    """
    report = read_object(folder / HANG_FILE)
    says, seen = report.get("says"), as_number(report.get("time"))
    if not isinstance(says, str) or seen is None:
        return ""
    latest = float("inf") if ended is None else ended + MAX_CLOCK_DIFFERENCE_S
    is_about_job = started - MAX_CLOCK_DIFFERENCE_S <= seen <= latest
    ago = "" if ended is not None else f", seen {in_units(max(0.0, time.time() - seen))} ago"
    return f"{HANGS_PREFIX}{one_line(says[:MAX_REPORT_CHARS])}{ago}" if is_about_job else ""


def stalled_for(record: Record, folder: Path, started: float, now: float) -> Stall | None:
    """Return the stall of a run that runs since `started`; None if the run does not stand still."""
    logs = newest_logs(record)
    file_times = []
    for path in (*logs, folder / EVENTS, folder, folder / "checkpoints"):  # the training writes these
        with contextlib.suppress(OSError):
            file_times.append(path.stat().st_mtime)
    counted = {path: last_start(path, MAX_COUNTED_LINES) for path in logs}
    lines = [line for numbered in counted.values() for _, line in numbered[-MAX_LINES:]]
    times = _times_of_signs(lines, folder, started, now)
    last_sign = max([*(time for time in file_times if time <= now), *times, started])
    quiet_s = now - last_sign
    pauses = [after - before for before, after in itertools.pairwise(times)]
    if len(pauses) >= MIN_PAUSES:
        return _stall_if_longer(quiet_s, statistics.median(pauses), LONGEST_PAUSE_FACTOR * max(pauses))
    if len(lines) > MIN_PAUSES:
        return _stall_by_mean(counted, last_sign - started, quiet_s)
    return Stall(quiet_s, None) if quiet_s > MIN_FIRST_STALL_S else None


def stalled_at_end(
    record: Record, folder: Path, started: float, ended: float, task: str = ""
) -> Stall | None:
    """Return the stall of a run before its end; None if it did not stand still, or its pauses are not known.

    `task` is the task of an array, or the point of a sweep; "" for a job without tasks.

    Only the times of lines and events count. Slurm writes the end into the log, so the time of the file does
    not show the last sign of life.
    """
    logs = [lines_before_end([*last_start(path, MAX_LINES)]) for path in newest_logs(record, task)]
    times = _times_of_signs([line for log in logs for _, line in log], folder, started, ended)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    if len(pauses) < MIN_PAUSES:
        return None
    return _stall_if_longer(ended - times[-1], statistics.median(pauses), LONGEST_PAUSE_FACTOR * max(pauses))


def _stall_by_mean(
    counted: Mapping[Path, Sequence[NumberedLine]], running_s: float, quiet_s: float
) -> Stall | None:
    """Return the stall of a run whose last sign of life came after `running_s`, by its mean pause; else None.

    `counted` has the lines of each log that were counted. If others were not, the true mean is smaller, and
    the stall has no usual pause. The mean does not show a long pause, such as an evaluation after each
    thousand lines, so the run may be silent for MIN_FIRST_STALL_S.
    """
    mean = running_s / sum(map(len, counted.values()))
    is_complete = all(_has_all_lines(path, lines) for path, lines in counted.items())
    longest_s = max(MIN_FIRST_STALL_S, MEAN_PAUSE_FACTOR * mean)
    return _stall_if_longer(quiet_s, mean if is_complete else None, longest_s)


def _has_all_lines(path: Path, lines: Sequence[NumberedLine]) -> bool:
    """Return whether the lines that were read from a log are all lines since its job's last start."""
    if lines and JOB_START.match(lines[0][1]):
        return True
    with contextlib.suppress(OSError):
        return len(lines) < MAX_COUNTED_LINES and path.stat().st_size <= END_BYTES
    return False


def _stall_if_longer(quiet_s: float, usual_s: float | None, longest_s: float) -> Stall | None:
    """Return the stall of a run that is quiet for longer than `longest_s` and MIN_STALL_S; else None."""
    return Stall(quiet_s, usual_s) if quiet_s > max(MIN_STALL_S, longest_s) else None


def _times_of_signs(lines: Sequence[str], folder: Path, started: float, until: float) -> list[float]:
    """Return the sorted times of the events, or of the lines in the logs if more lines than events have one.

    A line may be MAX_CLOCK_DIFFERENCE_S before `started` or after `until`. If the time of a line is further
    away, the lines have the times of another clock or time zone. Then no line counts.
    """
    events = [as_number(event.get("time")) for event in some_events(folder, from_end=True)]
    event_times = sorted(time for time in events if time is not None and started <= time <= until)
    stamps = []
    for line in lines:
        match = None if _SLURM_LINE.search(line) else _TIMESTAMP.search(line[:80])
        with contextlib.suppress(ValueError):
            stamps += [datetime.fromisoformat(match[0]).astimezone().timestamp()] if match else []
    stamps.sort()
    if stamps and (
        stamps[0] < started - MAX_CLOCK_DIFFERENCE_S or stamps[-1] > until + MAX_CLOCK_DIFFERENCE_S
    ):
        stamps = []
    return max(event_times, stamps, key=len)
