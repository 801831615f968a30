"""Whether a start of a job has trained the same as the one before it: `python3 .../training/repeats.py`.

A job script asks before it starts a trainer of the user's own again at the time limit. Stdout is the job's
log, to which each start appends. It exits with 0 and an error in the log if both starts have printed the same
epochs and steps, in the same order, from the first one on; with 1 if not, or if that can't be seen.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable

MOST = 64 << 20  # bytes at the end of the log that are read
FEW = 3  # steps that both have printed
LONGER = 1.25  # a start that trained for longer may have saved what the one before did not reach
START = re.compile(rb"Job \d+ on \S+, restart \d+ of at most \d+")  # of the job script, as the next one
REQUEUED = re.compile(rb"Requeueing: restart \d+ of at most \d+")
PLACE = re.compile(rb"(?<![a-z_])(epoch|step|iter|iteration)(?![a-z_])[^\w]{0,4}(\d[\d.]*)", re.IGNORECASE)


class Start:
    """A start of the job, as the log shows it.

    Attributes:
        places: The epochs and steps that it has printed, each once, in their order.
        returns: Whether its first one came again, as with steps that are counted in each epoch.
        requeued: Whether it was started again at its time limit.
    """

    def __init__(self) -> None:
        self.places: dict[str, None] = {}
        self.returns = self.requeued = False

    def read(self, line: bytes) -> None:
        """Read a line of the log."""
        self.requeued |= bool(REQUEUED.match(line))
        for part in line.split(b"\r"):
            place = b" ".join(map(b" ".join, PLACE.findall(part))).decode().lower()
            if place:
                self.returns |= len(self.places) > FEW and place == next(iter(self.places))
                self.places[place] = None


def repeated(log: Iterable[bytes]) -> str:
    """Return with what the last start in a log began, if it has repeated the one before; else ""."""
    count, old, new = 0, Start(), Start()
    for line in log:
        if START.match(line):
            count, old, new = count + 1, new, Start()
        else:
            new.read(line)
    if count < 2 or not old.requeued or old.returns or new.returns:
        return ""
    before, now = [*old.places], [*new.places]
    both = min(len(before), len(now)) - 1  # the last line may have been cut
    is_same = both >= FEW and before[:both] == now[:both] and len(now) <= LONGER * len(before)
    return ", ".join(now[:FEW]) if is_same else ""


def main() -> int:
    """Print an error and return 0 if the job should not be started again, else return 1."""
    try:
        with open("/proc/self/fd/1", "rb") as log:  # noqa: PTH123
            status = os.fstat(log.fileno())
            if not stat.S_ISREG(status.st_mode):
                return 1
            log.seek(max(0, status.st_size - MOST))
            began = repeated(log)
    except OSError:
        return 1
    if not began:
        return 1
    what = f"this start has trained the same as the one before ({began}, ...), so there is no further restart"
    print(f"error: {what}; fix: load the newest checkpoint when the trainer starts", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
