"""The stall of a run: how long the run has given no sign of life, compared with its usual pause.

Signs of life are new lines in its logs and new files in its run folder. Events have times, and so do many
lines of logs. For a log without times, only the mean pause is known, from the number of its lines.
"""

import contextlib
import itertools
import re
import statistics
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.quoting import one_line
from sbatchgen.base.units import in_units
from sbatchgen.jobs.runs.events import EVENTS, number, read_object, some_events
from sbatchgen.jobs.runs.failure import lines_before_end
from sbatchgen.jobs.runs.job_log import last_start, newest_logs
from sbatchgen.jobs.runs.record import Record

MAX_LINES = 2000  # lines at the end of a log that are read
QUIET_S = 120.0  # a program that is silent for a shorter time does not stand still
SILENT_S = 600.0  # the same for a program that has printed nothing yet: it may import or download
LONGEST_FACTOR = 4  # a run stands still after this many times its longest pause so far
MEAN_FACTOR = 20  # the factor for the mean pause, if only that is known
MIN_PAUSES = 4  # pauses that are needed to know what is usual
HANG = "hang.json"  # the file in which the training package's launchers report which rank hangs, and where
HANGS = "hangs: "  # the start of the words about a hang
MAX_REPORT = 600  # characters of the report that are shown
CLOCKS_S = 120.0  # how many seconds the clocks of a cluster may differ
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
    """Return which rank of a job hangs, as the job's watcher reports; "" without a hang.

    `started` and `ended` are the job's times. A report from another time is about another job of the folder.
    """
    report = read_object(folder / HANG)
    says, seen = report.get("says"), number(report.get("time"))
    if not isinstance(says, str) or seen is None:
        return ""
    is_about_job = started - CLOCKS_S <= seen and (ended is None or seen <= ended + CLOCKS_S)
    ago = "" if ended is not None else f", seen {in_units(max(0.0, time.time() - seen))} ago"
    return f"{HANGS}{one_line(says[:MAX_REPORT])}{ago}" if is_about_job else ""


def stalled_for(record: Record, folder: Path, started: float, now: float) -> Stall | None:
    """Return the stall of a run that started at a time; None if the run does not stand still."""
    logs = newest_logs(record)
    file_times = []
    for path in (*logs, folder / EVENTS, folder, folder / "checkpoints"):  # the training writes these
        with contextlib.suppress(OSError):
            file_times.append(path.stat().st_mtime)
    lines = [line for path in logs for _, line in last_start(path, MAX_LINES)]
    times = _times(lines, folder, started, now)
    last_sign = max([*(time for time in file_times if time <= now), *times, started])
    quiet_s = now - last_sign
    pauses = [after - before for before, after in itertools.pairwise(times)]
    if len(pauses) >= MIN_PAUSES:
        return _stall(quiet_s, statistics.median(pauses), LONGEST_FACTOR * max(pauses))
    if len(lines) > MIN_PAUSES:
        mean = (last_sign - started) / len(lines)
        return _stall(quiet_s, mean, MEAN_FACTOR * mean)
    return Stall(quiet_s, None) if quiet_s > SILENT_S else None


def stalled_at_end(
    record: Record, folder: Path, started: float, ended: float, task: str = ""
) -> Stall | None:
    """Return the stall of a run before its end; None if the run did not stand still, or nothing is known.

    Slurm writes the end into the log, so the log's own time does not count, only times of lines and events.
    """
    logs = [lines_before_end([*last_start(path, MAX_LINES)]) for path in newest_logs(record, task)]
    times = _times([line for log in logs for _, line in log], folder, started, ended)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    if len(pauses) < MIN_PAUSES:
        return None
    return _stall(ended - times[-1], statistics.median(pauses), LONGEST_FACTOR * max(pauses))


def _stall(quiet_s: float, usual_s: float, longest_s: float) -> Stall | None:
    """Return the stall if a run is quiet for longer than `longest_s` and QUIET_S; None otherwise."""
    return Stall(quiet_s, usual_s) if quiet_s > max(QUIET_S, longest_s) else None


def _times(lines: Sequence[str], folder: Path, started: float, until: float) -> list[float]:
    """Return sorted times: of the events, or of the lines in the logs if more lines have times.

    If a time of a line is outside the run's time, lines have the times of another clock or time zone. Then no
    line counts.
    """
    events = [number(event.get("time")) for event in some_events(folder, from_end=True)]
    event_times = sorted(time for time in events if time is not None and started <= time <= until)
    stamps = []
    for line in lines:
        match = None if _SLURM_LINE.search(line) else _TIMESTAMP.search(line[:80])
        with contextlib.suppress(ValueError):
            stamps += [datetime.fromisoformat(match[0]).astimezone().timestamp()] if match else []
    stamps.sort()
    if stamps and (stamps[0] < started - CLOCKS_S or stamps[-1] > until + CLOCKS_S):
        stamps = []
    return max(event_times, stamps, key=len)
