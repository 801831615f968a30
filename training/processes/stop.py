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
STOP_FILE, DEADLINE = "stop file", "deadline"  # reasons that this process finds itself
OUT_OF_TIME = (LIMIT, DEADLINE)  # the reasons after which the job may start again
REASONS = (STOP_FILE, CANCELLED, *(number.name for number in SIGNALS), *OUT_OF_TIME)  # by priority
LOOK_EVERY_S = 0.5  # a stat on a network file system is not free
MARGIN_S = 30.0  # a run stops so long before its deadline, plus a step and twice the time of the last save
EPOCH_FROM_S = 1e9  # a larger --deadline is in seconds since 1970, a smaller number counts from the start


class Stop:
    """The requests to stop this process.

    From the creation of this object on, signals do not kill the process. So it is created before slow
    imports.
    """

    def __init__(self) -> None:
        self._requested = [False] * len(REASONS)
        self._file: Path | None = None
        self._looked_at = float("-inf")
        self.began = time.time()
        self._end = float("inf")
        self.save_s = 0.0  # time of the last save
        self.step_s = 0.0  # time of a step, until which the next look may have to wait
        for number in handled_signals():  # a signal may come twice, from Slurm and from torchrun
            signal.signal(number, lambda number, _: self._request(signal.Signals(number).name))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # spawn blocks the signals of its children

    def _request(self, reason: str) -> None:
        """Note a reason to stop. A signal handler can't save, because it runs in the middle of a step."""
        self._requested[REASONS.index(reason)] = True

    def watch(self, file: Path, end: float) -> None:
        """Watch the stop file and the end (seconds since 1970); only rank 0 calls this function."""
        self._file, self._end = file, end

    def requests(self) -> list[float]:
        """Return a number for each of REASONS: 1 if the reason was given, else 0."""
        now = time.monotonic()
        if self._file and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            with contextlib.suppress(OSError):  # the file system may answer at the next look
                if self._file.exists():
                    self._request(read_stop_file(self._file) or STOP_FILE)
            half = max(0.0, self._end - self.began) / 2  # half of a short job's time
            if time.time() >= self._end - min(self.step_s + 2 * self.save_s + MARGIN_S, half):
                self._request(DEADLINE)
        return [float(requested) for requested in self._requested]


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run. SIGHUP does not stop a run under nohup without torchrun."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and "TORCHELASTIC_RUN_ID" not in os.environ
    return tuple(number for number in SIGNALS if number is not signal.SIGHUP or not ignored)


def first_reason(requests: list[float]) -> str:
    """Return the first of REASONS that a process has, or ""; `requests` are sums over the processes."""
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
    """Ignore the signals of Slurm in a loader, because a dead loader would end the run before its save."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_launcher(environ: Mapping[str, str]) -> None:
    """Call `end_with_parent` if the parent is torchrun, or a launcher that gives its process number."""
    parent = environ.get(PARENT, "")
    if parent.isdecimal() or "TORCHELASTIC_RUN_ID" in environ:
        end_with_parent(int(parent) if parent.isdecimal() else 0)


def end_with_parent(parent: int = 0) -> None:
    """Let Linux kill this loader or rank when its parent ends in any way (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if parent and os.getppid() != parent:  # the parent has ended already
            os._exit(128 + signal.SIGKILL)
