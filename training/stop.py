"""How a run is asked to stop: signals, and a file. Neither does more than to be remembered.

Saving inside a signal handler would run in the middle of a step, on one process of many. So a handler only
notes the signal; at every synchronisation all processes add up what they noted (`Stop.noted`), and all of
them stop at one step.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
STOP_FILE_REASON = "stop file"
REASONS = (STOP_FILE_REASON, *(number.name for number in SIGNALS))
LOOK_EVERY_S = 0.5  # a stat on a network file system is not free


class Stop:
    """What this process was asked so far. Make it before any slow import: from then on no signal kills."""

    def __init__(self) -> None:
        self._asked = [False] * len(REASONS)
        self._file: Path | None = None
        self._looked = float("-inf")
        for number in SIGNALS:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # spawn starts its children with them blocked

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """Slurm and torchrun both pass signals on, so the same one may come twice: that changes nothing."""
        self._asked[1 + SIGNALS.index(signal.Signals(number))] = True

    def watch(self, file: Path) -> None:
        """Look for the stop file too; for rank 0 alone: the processes need not see the same folder."""
        self._file = file

    def noted(self) -> list[float]:
        """One number for each of REASONS: 1 if it was asked for, else 0."""
        now = time.monotonic()
        if self._file and now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._asked[0] = self._asked[0] or self._file.exists()
        return [float(asked) for asked in self._asked]


def reason(noted: list[float]) -> str:
    """The first of REASONS that any process noted, or an empty text.

    Args:
        noted: `Stop.noted`, added up over the processes.
    """
    return next((name for name, count in zip(REASONS, noted, strict=True) if count), "")


def leave_signals_to_parent() -> None:
    """For loader processes: Slurm signals them too, and one that dies would end the run before it saves."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
