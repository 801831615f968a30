"""Requests to stop a run: signals, the stop file, and the deadline. All processes stop at one step."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from training.errors import UserError
from training.processes.jobscript import CANCELLED, LIMIT, PARENT, read_stop_file

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
STOP_FILE, DEADLINE = "stop file", "deadline"  # reasons that rank 0 finds by looking
OUT_OF_TIME = (LIMIT, DEADLINE)  # the reasons after which the job may start again
REASONS = (STOP_FILE, CANCELLED, *(number.name for number in SIGNALS), *OUT_OF_TIME)  # the first one counts
LOOK_EVERY_S = 0.5  # between two looks, because a stat(2) on a network file system takes time
# A run stops before its deadline, by so many seconds, a step, and twice the time of the last save.
MARGIN_S = 30.0
EPOCH_FROM_S = 1e9  # a --deadline from here on counts from 1970, a smaller number from the start


class Stop:
    """The requests to stop this process.

    As soon as this object exists, signals do not kill the process. It is therefore made before slow imports.
    """

    def __init__(self) -> None:
        self._requested = [False] * len(REASONS)
        self._file: Path | None = None
        self._looked_at = float("-inf")
        self.began = time.time()
        self._deadline = float("inf")
        self.save_s = 0.0  # the time that the last save took
        self.step_s = 0.0  # the time of a step, for which the next look may have to wait
        for number in handled_signals():  # a signal may come twice, from Slurm and from torchrun
            signal.signal(number, lambda number, _: self._request(signal.Signals(number).name))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # spawn blocks the signals of its children

    def _request(self, reason: str) -> None:
        """Note a reason to stop. A signal handler can't save, because it runs in the middle of a step."""
        self._requested[REASONS.index(reason)] = True

    def watch(self, file: Path, deadline: float) -> None:
        """Watch the stop file and the deadline (seconds since 1970); only rank 0 calls this function."""
        self._file, self._deadline = file, deadline

    def requests(self) -> list[float]:
        """Return a number for each of REASONS: 1 if the reason was given, else 0."""
        now = time.monotonic()
        if self._file and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            with contextlib.suppress(OSError):  # the file system may answer at the next look
                if self._file.exists():
                    self._request(read_stop_file(self._file) or STOP_FILE)
            # A short job trains for at least half of its time.
            half = max(0.0, self._deadline - self.began) / 2
            if time.time() >= self._deadline - min(self.step_s + 2 * self.save_s + MARGIN_S, half):
                self._request(DEADLINE)
        return [float(requested) for requested in self._requested]


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run. Under nohup and without torchrun, SIGHUP is not one of them."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and "TORCHELASTIC_RUN_ID" not in os.environ
    return tuple(number for number in SIGNALS if number is not signal.SIGHUP or not ignored)


def first_reason(requests: list[float]) -> str:
    """Return the first of REASONS that any process has; "" without one.

    `requests` are the sums of `Stop.requests` over all processes.
    """
    return next((REASONS[number] for number, count in enumerate(requests) if count), "")


def parse_deadline(deadline: str, environ: Mapping[str, str], now: float) -> float:
    """Return when a run must end, in seconds since 1970; infinity without a deadline.

    Raises UserError if --deadline is wrong.
    """
    if deadline in {"auto", "off"}:
        end = environ.get("SLURM_JOB_END_TIME", "") if deadline == "auto" else ""
        return float(end) if end.isdecimal() else float("inf")
    try:
        seconds = float(deadline)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise UserError(f"--deadline is {deadline}", fix="auto, off, or seconds from now or since 1970")
    return seconds if seconds >= EPOCH_FROM_S else now + seconds


def ignore_signals() -> None:
    """Ignore SIGNALS in this process, such as a loader, whose death would end the run before its save."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_launcher(environ: Mapping[str, str]) -> None:
    """Let Linux kill this rank when its launcher ends, if that is torchrun or names itself in `environ`."""
    parent = environ.get(PARENT, "")
    if parent.isdecimal() or "TORCHELASTIC_RUN_ID" in environ:
        end_with_parent(int(parent) if parent.isdecimal() else 0)


def end_with_parent(parent: int = 0) -> None:
    """Let Linux kill this process when its parent ends in any way (prctl(2)).

    `parent` is the process id of the parent, or 0 if it is not known.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if parent and os.getppid() != parent:  # the parent has ended already
            os._exit(128 + signal.SIGKILL)
