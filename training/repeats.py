"""Whether a start made no progress: `python3 .../training/repeats.py RESTARTS SECONDS [CHECKPOINT...]`.

A job script asks before it starts a trainer of the user's own again at the time limit, with the number of
restarts so far, the seconds since this one, and the files that fit the job's pattern of checkpoints.
Stdout is the job's log, to which each start appends. It exits with 0 and an error in the log if the last two
starts have printed the same epochs and steps from the first one on, or if there is a pattern and this start,
a restart, has left no newer checkpoint; with 1 if not, or if that can't be seen.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterable

MOST = 64 << 20  # bytes at the end of the log that are read
CLOCKS_S = 300  # how far the clock of a file server may differ
FEW = 3  # steps that both have printed
LONGER = 1.25  # a start that trained for longer may have saved what the one before did not reach
START = re.compile(rb"Job \d+ on \S+, restart \d+ of at most \d+")  # of the job script, as the next one
REQUEUED = re.compile(rb"Requeueing: restart \d+ of at most \d+")
PLACE = re.compile(rb"(?<![a-z_])(epoch|step|iter|iteration)(?![a-z_])[^\w]{0,4}(\d[\d.]*)", re.IGNORECASE)


def repeated(log: Iterable[bytes]) -> str:
    """Return with what the last start in a log began, if it has repeated the one before; else ""."""
    starts: list[list[bytes]] = [[]]
    for line in log:
        if START.match(line):
            starts.append([])
        else:
            starts[-1].append(line)
    if len(starts) < 3 or not any(map(REQUEUED.match, starts[-2])):
        return ""
    before, now = _places(starts[-2]), _places(starts[-1])
    both = min(len(before), len(now)) - 1  # the last line may have been cut
    is_same = both >= FEW and before[:both] == now[:both] and len(now) <= LONGER * len(before)
    return ", ".join(now[:FEW]) if is_same else ""


def _places(lines: Iterable[bytes]) -> list[str]:
    """Return the epochs and steps that a start has printed, each once; empty if the first one came again."""
    places: dict[str, None] = {}
    for part in b"\r".join(lines).split(b"\r"):
        place = b" ".join(map(b" ".join, PLACE.findall(part))).decode().lower()
        if len(places) > FEW and place == next(iter(places)):
            return []
        if place:
            places[place] = None
    return [*places]


def main(argv: list[str]) -> int:
    """Print an error and return 0 if the job should not be started again, else return 1."""
    restarts, seconds, *checkpoints = argv
    began = ""
    with contextlib.suppress(OSError), open("/proc/self/fd/1", "rb") as log:  # noqa: PTH123
        status = os.fstat(log.fileno())
        if stat.S_ISREG(status.st_mode):
            log.seek(max(0, status.st_size - MOST))
            began = repeated(log)
    newest = max((os.stat(file).st_mtime for file in checkpoints if os.path.exists(file)), default=0.0)  # noqa: PTH110, PTH116
    is_saved = newest > time.time() - float(seconds) - CLOCKS_S
    if began:
        what = f"this start has trained the same as the one before ({began}, ...)"
        fix = "load the newest checkpoint when the trainer starts"
    elif int(restarts) and checkpoints and not is_saved:
        what = f"this start has left no newer checkpoint ({checkpoints[-1]})"
        fix = "save more often than jobs end, or correct `checkpoint` in the job file"
    else:
        return 1
    print(f"error: {what}, so there is no further restart; fix: {fix}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
