"""The check for starts without progress: `python3 .../training/repeats.py RESTARTS SECONDS [CHECKPOINT...]`.

At the time limit, a job script runs this program before it starts the user's own trainer again. RESTARTS is
the number of restarts so far, SECONDS the time since the last start, and each CHECKPOINT a file that matches
the job's pattern of checkpoints. Stdout is the job's log, to which each start appends.

The exit status is 0, with an error in the log, in two cases: the last two starts have printed the same first
epochs and steps, or this start is a restart and left no newer checkpoint. The status is 1 if the start made
progress, or if the program can't tell.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterable

MAX_BYTES = 64 << 20  # the most that is read, at the end of the log
CLOCK_S = 300  # seconds by which the clock of a file server may differ
MIN_STEPS = 3  # both starts must have printed so many steps
# A start with more than so many times the steps may have come further than the start before.
LONGER_FACTOR = 1.25
# Lines that the job script prints at the start, and before a restart.
START = re.compile(rb"Job \d+ on \S+, restart \d+ of at most \d+")
REQUEUED = re.compile(rb"Requeueing: restart \d+ of at most \d+")
# Such as "Epoch 3" or "step: 120" in a line of the trainer.
STEP = re.compile(rb"(?<![a-z_])(epoch|step|iter|iteration)(?![a-z_])[^\w]{0,4}(\d[\d.]*)", re.IGNORECASE)


def repeated_steps(log: Iterable[bytes]) -> str:
    """Return the first steps of the last start in a log if the start before printed the same, else ""."""
    starts: list[list[bytes]] = [[]]
    for line in log:
        if START.match(line):
            starts.append([])
        else:
            starts[-1].append(line)
    if len(starts) < 3 or not any(map(REQUEUED.match, starts[-2])):
        return ""
    before, last = _steps(starts[-2]), _steps(starts[-1])
    count = min(len(before), len(last)) - 1  # without the last line, which may have been cut
    is_same = count >= MIN_STEPS and before[:count] == last[:count]
    return ", ".join(last[:MIN_STEPS]) if is_same and len(last) <= LONGER_FACTOR * len(before) else ""


def _steps(lines: Iterable[bytes]) -> list[str]:
    """Return the epochs and steps that a start printed, each once, such as "epoch 1 step 20".

    The result is [] if the start printed its first step again, because its steps then show no progress.
    """
    steps: dict[str, None] = {}
    for part in b"\r".join(lines).split(b"\r"):  # the parts of a progress bar are lines too
        step = b" ".join(map(b" ".join, STEP.findall(part))).decode().lower()
        if len(steps) > MIN_STEPS and step == next(iter(steps)):
            return []
        if step:
            steps[step] = None
    return [*steps]


def _time_of_change(file: str) -> float:
    """Return when a file was last changed, in seconds since 1970; 0 if the trainer has removed the file."""
    with contextlib.suppress(OSError):
        return os.stat(file).st_mtime  # noqa: PTH116
    return 0.0


def main(argv: list[str]) -> int:
    """Print an error and return 0 if the start made no progress, else return 1."""
    restarts, seconds, *checkpoints = argv
    repeated = ""
    with contextlib.suppress(OSError), open("/proc/self/fd/1", "rb") as log:  # noqa: PTH123
        status = os.fstat(log.fileno())
        if stat.S_ISREG(status.st_mode):
            log.seek(max(0, status.st_size - MAX_BYTES))
            repeated = repeated_steps(log)
    newest = max(map(_time_of_change, checkpoints), default=0.0)
    has_saved = newest > time.time() - float(seconds) - CLOCK_S
    if repeated:
        what = f"this start has trained the same as the one before ({repeated}, ...)"
        fix = "load the newest checkpoint when the trainer starts"
    elif int(restarts) and checkpoints and not has_saved:
        what = f"this start has left no newer checkpoint ({checkpoints[-1]})"
        fix = "save more often than jobs end, or correct `checkpoint` in the job file"
    else:
        return 1
    print(f"error: {what}, so there is no further restart; fix: {fix}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
