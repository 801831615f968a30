"""How a run is asked to stop: signals, a file, and the end of its time. None does more than to be remembered.

Saving inside a signal handler would run in the middle of a step, on one process of many. So a handler only
notes the signal; at every synchronisation all processes add up what they noted (`Stop.noted`), and all of
them stop at one step.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from training.errors import UserError
from training.processes.jobscript import CANCELLED, LIMIT, asked_by

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
STOP_FILE_REASON = "stop file"
CANCELLED_REASON = "cancelled"
LIMIT_REASON = "time limit"  # the job script says that it is near
DEADLINE_REASON = "deadline"  # this process sees it come
# Of several, the first counts: who cancels a job, or asks for an end in another way, wants no restart.
REASONS = (
    STOP_FILE_REASON,
    CANCELLED_REASON,
    *(number.name for number in SIGNALS),
    LIMIT_REASON,
    DEADLINE_REASON,
)
OUT_OF_TIME = (LIMIT_REASON, DEADLINE_REASON)
LOOK_EVERY_S = 0.5  # a stat on a network file system is not free
MARGIN_S = 30.0  # before a deadline, besides twice what the last save took
EPOCH_FROM_S = 1e9  # a larger --deadline is a time since 1970, a smaller one counts from the start


class Stop:
    """What this process was asked so far. Make it before any slow import: from then on no signal kills."""

    def __init__(self) -> None:
        self._asked = [False] * len(REASONS)
        self._file: Path | None = None
        self._looked = float("-inf")
        self.began = time.time()
        self._end = float("inf")
        self.save_s = 0.0  # what the last save took
        for number in handled():
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # spawn starts its children with them blocked

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """Slurm and torchrun both pass signals on, so the same one may come twice: that changes nothing."""
        self._ask(signal.Signals(number).name)

    def _ask(self, why: str) -> None:
        self._asked[REASONS.index(why)] = True

    def watch(self, file: Path, end: float) -> None:
        """Look for the stop file and at the clock too.

        For rank 0 alone: the processes need not see the same folder, nor have the same time.

        Args:
            file: The stop file.
            end: When the run must be over, in seconds since 1970.
        """
        self._file, self._end = file, end

    def noted(self) -> list[float]:
        """One number for each of REASONS: 1 if it was asked for, else 0."""
        now = time.monotonic()
        if self._file and now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            if self._file.exists():
                by = {CANCELLED: CANCELLED_REASON, LIMIT: LIMIT_REASON}
                self._ask(by.get(asked_by(self._file), STOP_FILE_REASON))
            if time.time() >= self._end - self._margin_s():
                self._ask(DEADLINE_REASON)
        return [float(asked) for asked in self._asked]

    def _margin_s(self) -> float:
        """Seconds to leave for the last save; of a short job no more than half its time."""
        return min(2 * self.save_s + MARGIN_S, max(0.0, self._end - self.began) / 2)


def handled() -> tuple[signal.Signals, ...]:
    """The signals that count: under nohup not the end of the terminal.

    torchrun looks at it there all the same, and passes it on before it ends.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and "TORCHELASTIC_RUN_ID" not in os.environ
    return tuple(number for number in SIGNALS if number is not signal.SIGHUP or not ignored)


def reason(noted: list[float]) -> str:
    """The first of REASONS that any process noted, or an empty text.

    Args:
        noted: `Stop.noted`, added up over the processes.
    """
    return next((name for name, count in zip(REASONS, noted, strict=True) if count), "")


def end_of(deadline: str, environ: Mapping[str, str], now: float) -> float:
    """When a run has to be over, in seconds since 1970; infinity if nothing says so.

    Args:
        deadline: auto: the end of the Slurm job; off; or seconds, from `now` or since 1970.
        environ: The process's environment.
        now: Seconds since 1970.

    Raises:
        UserError: If it is none of these.
    """
    if deadline in {"auto", "off"}:
        told = environ.get("SLURM_JOB_END_TIME", "") if deadline == "auto" else ""
        return float(told) if told.isdecimal() else float("inf")
    try:
        seconds = float(deadline)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise UserError(
            f"--deadline is {deadline}", fix="auto, off, or seconds from now or since 1970", shared=True
        )
    return seconds if seconds >= EPOCH_FROM_S else now + seconds


def leave_signals_to_parent() -> None:
    """For loader processes: Slurm signals them too, and one that dies would end the run before it saves."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent(parent: int = 0) -> None:
    """For loaders and ranks: end at once when the process that started this one does, however that ends.

    By PR_SET_PDEATHSIG, see prctl(2); elsewhere than on Linux torch's loaders look every few seconds.

    Args:
        parent: Its number, if it is known: it may have ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if parent and os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
