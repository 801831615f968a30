"""Slow ranks, by the time that each rank needs for a step before it waits for the other ranks' gradients."""

import time
from statistics import median_low
from typing import Any

import torch

SLOW_FACTOR = 1.5  # a slow rank needs so many times the median of the ranks
SLOW_STEPS = 20  # steps for which a rank must be slow
MIN_ROUNDS = 3  # synchronisations at least, because a rank may be late once
MAX_TIMED_PARTS = 20  # parts of steps that are timed after a synchronisation
# The share of a step's time that a slow rank must cost. The backward pass, twice as long as the forward pass,
# is not timed. If all ranks load data at nearly the same speed, only the slowest rank waits, because the
# loaders of the other ranks get ahead meanwhile.
MIN_LOST_SHARE = {"data wait": 1 / 3, "forward pass": 1 / 10}


class Pace:
    """The pace of the ranks on these hosts, measured without new collectives and without waits for GPUs."""

    def __init__(self, hosts: list[str], rank: int, *, on_gpu: bool) -> None:
        self._hosts, self._rank, self._on_gpu = hosts, rank, on_gpu
        self._marks: list[Any] = []  # three marks for each part of a step: times, or events of the GPU
        self._parts, self._saved = 0, False
        self._steps = [0] * len(hosts)  # steps in a row that contradict the known pace of a rank
        self._known: dict[int, str] = {}  # descriptions of slow ranks

    @property
    def says(self) -> str:
        """The ranks that are slow now, each with the slow part of its step, or ""."""
        return "; ".join(self._known.values())

    def mark(self) -> None:
        """Mark the beginning of a part of a step, of its forward pass, or of its backward pass."""
        if len(self._hosts) > 1 and len(self._marks) < 3 * MAX_TIMED_PARTS:
            self._marks.append(_event() if self._on_gpu else time.perf_counter())

    def spent(self, *, saves: bool, is_saving: bool) -> list[float]:
        """Return the seconds of data wait and forward pass in a part, two numbers for each rank.

        The numbers of other ranks are 0. The numbers of this rank are also 0 if it has saved since the last
        call. The marks begin again after each call.
        """
        marks, self._marks, self._parts = self._marks, [], len(self._marks) // 3
        is_fair, self._saved = not (self._saved or is_saving), saves
        spent = [0.0] * 2 * len(self._hosts)
        if marks and is_fair:
            begins, passes, ends = marks[0::3], marks[1::3], marks[2::3]
            mine = _mean(begins, passes), _mean(passes, ends)
            spent[2 * self._rank : 2 * self._rank + 2] = mine
        return spent

    def judge(self, spent: list[float], part_s: float) -> str:
        """Judge the ranks by the times of all ranks; return a description if a rank became slow, or ""."""
        took = {"data wait": spent[0::2], "forward pass": spent[1::2]}
        if not min(took["forward pass"], default=0):
            return ""
        usual = {what: median_low(each) for what, each in took.items()}
        own = [sum(each) for each in zip(*took.values(), strict=True)]
        limit, new = SLOW_FACTOR * median_low(own), ""
        for rank, host in enumerate(self._hosts):
            if own[rank] <= limit and rank not in self._known:
                self._steps[rank] = 0
                continue
            lost = {what: each[rank] - usual[what] for what, each in took.items()}
            is_slow = own[rank] > limit and any(lost[what] > MIN_LOST_SHARE[what] * part_s for what in lost)
            differs = is_slow != (rank in self._known)
            self._steps[rank] = (self._steps[rank] + min(self._parts, -(-SLOW_STEPS // MIN_ROUNDS))) * differs
            if self._steps[rank] < SLOW_STEPS:
                continue
            self._steps[rank] = 0
            if self._known.pop(rank, None) is None:
                what = max(lost, key=lambda each: lost[each])
                times = f"{took[what][rank]:.2g} s, median of the ranks {usual[what]:.2g} s"
                self._known[rank] = f"rank {rank} on {host}: {what} of {times}"
                new = self.says
        return new


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
    event.record()
    return event


def _mean(begins: list[Any], ends: list[Any]) -> float:
    """Return the mean of the times between marks, in seconds."""
    if isinstance(ends[-1], float):
        return float(sum(ends) - sum(begins)) / len(ends)
    ends[-1].synchronize()
    times = (float(begin.elapsed_time(end)) for begin, end in zip(begins, ends, strict=True))
    return sum(times) / 1000 / len(ends)
