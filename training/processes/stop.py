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
STOP_FILE, DEADLINE = "stop file", "deadline"  # reasons that this process sees
OUT_OF_TIME = (LIMIT, DEADLINE)  # after these the job may start again, after the others it must not
REASONS = (STOP_FILE, CANCELLED, *(number.name for number in SIGNALS), *OUT_OF_TIME)  # the first counts
LOOK_EVERY_S = 0.5  # a stat on a network file system is not free
MARGIN_S = 30.0  # before a deadline, plus the time of a step and twice that of the last save
EPOCH_FROM_S = 1e9  # a larger --deadline is in seconds since 1970, a smaller one from the start


class Stop:
    """The requests to this process. Make it before any slow import: from then on signals do not kill."""

    def __init__(self) -> None:
        self._asked = [False] * len(REASONS)
        self._file: Path | None = None
        self._looked = float("-inf")
        self.began = time.time()
        self._end = float("inf")
        self.save_s = 0.0  # time of the last save
        self.step_s = 0.0  # time of a step: the next look is after one
        for number in handled_signals():  # each may come twice, from Slurm and from torchrun
            signal.signal(number, lambda number, _: self._ask(signal.Signals(number).name))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # spawn starts its children with them blocked

    def _ask(self, why: str) -> None:
        """Note the signal, no more: a save in its handler would happen in the middle of a step."""
        self._asked[REASONS.index(why)] = True

    def watch(self, file: Path, end: float) -> None:
        """Watch the stop file and the end (seconds since 1970) on rank 0, whose folder and time count."""
        self._file, self._end = file, end

    def requests(self) -> list[float]:
        """Return one number for each of REASONS: 1 if requested, else 0."""
        now = time.monotonic()
        if self._file and now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            with contextlib.suppress(OSError):  # a file system that does not answer now
                if self._file.exists():
                    self._ask(read_stop_file(self._file) or STOP_FILE)
            half = max(0.0, self._end - self.began) / 2  # of the time of a short job
            if time.time() >= self._end - min(self.step_s + 2 * self.save_s + MARGIN_S, half):
                self._ask(DEADLINE)
        return [float(asked) for asked in self._asked]


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run.

    SIGHUP is left out under nohup, unless torchrun handles it anyway.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and "TORCHELASTIC_RUN_ID" not in os.environ
    return tuple(number for number in SIGNALS if number is not signal.SIGHUP or not ignored)


def first_reason(requests: list[float]) -> str:
    """Return the first of REASONS that any process has, or ""; `requests` are summed over the processes."""
    return next((REASONS[number] for number, count in enumerate(requests) if count), "")


def parse_deadline(deadline: str, environ: Mapping[str, str], now: float) -> float:
    """Return when a run must end, in seconds since 1970.

    Infinity without a deadline. UserError if it is wrong.
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
    """Ignore signals in loaders: Slurm signals them too, and one that dies would end the run unsaved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_launcher(environ: Mapping[str, str]) -> None:
    """Call `end_with_parent` in ranks, if the parent is our launcher, which gives its number, or torchrun."""
    parent = environ.get(PARENT, "")
    if parent.isdecimal() or "TORCHELASTIC_RUN_ID" in environ:
        end_with_parent(int(parent) if parent.isdecimal() else 0)


def end_with_parent(parent: int = 0) -> None:
    """Let Linux kill a loader or rank when its parent ends, however that happens (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if parent and os.getppid() != parent:  # it has ended already
            os._exit(128 + signal.SIGKILL)
