"""The search for slow ranks, by the time that each rank needs before its backward pass."""

import time
from statistics import median_low
from typing import Any

import torch

SLOW_FACTOR = 1.5  # a slow rank needs so many times the median of the ranks
SLOW_STEPS = 20  # timed parts of steps for which a rank must be slow
MIN_ROUNDS = 3  # synchronisations for which a rank must be slow, because it may be late once
MAX_TIMED_PARTS = 20  # the parts of steps that are timed after each synchronisation
# The share of a step's time that a slow rank must cost. The share for the forward pass is small, because the
# backward pass takes twice as long and is not timed. The share for data is large, because only the slowest
# rank waits for data, even if its loaders are hardly slower. The loaders of the other ranks get ahead
# meanwhile.
MIN_LOST_SHARE = {"data wait": 1 / 3, "forward pass": 1 / 10}


class Pace:
    """The pace of the ranks, measured without further collectives and without waiting for GPUs."""

    def __init__(self, hosts: list[str], rank: int, *, on_gpu: bool) -> None:
        self._hosts, self._rank, self._on_gpu = hosts, rank, on_gpu
        self._marks: list[Any] = []  # three marks for each part of a step: times, or events of the GPU
        self._timed_parts = 0  # at the last synchronisation
        self._has_saved = False  # whether the steps before the last synchronisation ended with a save
        # By rank: the parts in a row for which a slow rank was normal, or a normal rank slow.
        self._changed_for = [0] * len(hosts)
        self._slow: dict[int, str] = {}  # by rank: the descriptions of the ranks that are known as slow

    @property
    def slow_ranks(self) -> str:
        """The ranks that are slow now, each with the slow part of its step; "" without a slow rank."""
        return "; ".join(self._slow.values())

    def mark(self) -> None:
        """Mark the beginning of a part of a step, of its forward pass, or of its backward pass."""
        if len(self._hosts) > 1 and len(self._marks) < 3 * MAX_TIMED_PARTS:
            self._marks.append(_event() if self._on_gpu else time.perf_counter())

    def take_times(self, *, saves: bool, is_saving: bool) -> list[float]:
        """Return the seconds of data wait and forward pass in a part of a step, and remove the marks.

        The list has two numbers for each rank. The numbers of other ranks are 0. The numbers of this rank are
        also 0 if it has saved since the last call, or saves now.
        """
        marks, self._marks, self._timed_parts = self._marks, [], len(self._marks) // 3
        # A save makes rank 0 slower, which is not a fault of its node.
        is_fair, self._has_saved = not (self._has_saved or is_saving), saves
        times = [0.0] * 2 * len(self._hosts)
        if marks and is_fair:
            begins, forwards, backwards = marks[0::3], marks[1::3], marks[2::3]
            times[2 * self._rank : 2 * self._rank + 2] = _mean(begins, forwards), _mean(forwards, backwards)
        return times

    def judge(self, times: list[float], part_s: float) -> str:
        """Judge the ranks by the times of all ranks, in seconds; `part_s` is the time of a part of a step.

        Returns the description of all slow ranks if a rank has become slow, else "".
        """
        phases = {"data wait": times[0::2], "forward pass": times[1::2]}
        if not min(phases["forward pass"], default=0):  # a rank has no times
            return ""
        medians = {phase: median_low(seconds) for phase, seconds in phases.items()}
        sums = [sum(seconds) for seconds in zip(*phases.values(), strict=True)]
        limit, news = SLOW_FACTOR * median_low(sums), ""
        max_parts = -(-SLOW_STEPS // MIN_ROUNDS)  # the most that one synchronisation counts
        for rank, host in enumerate(self._hosts):
            if sums[rank] <= limit and rank not in self._slow:
                self._changed_for[rank] = 0
                continue
            lost = {phase: seconds[rank] - medians[phase] for phase, seconds in phases.items()}
            loses_much = any(lost[phase] > MIN_LOST_SHARE[phase] * part_s for phase in lost)
            is_slow = sums[rank] > limit and loses_much
            differs = is_slow != (rank in self._slow)
            parts = min(self._timed_parts, max_parts)
            self._changed_for[rank] = self._changed_for[rank] + parts if differs else 0
            if self._changed_for[rank] < SLOW_STEPS:
                continue
            self._changed_for[rank] = 0
            if self._slow.pop(rank, None) is None:  # it has become slow, and not normal again
                phase = max(lost, key=lambda name: lost[name])
                text = f"{phases[phase][rank]:.2g} s, median of the ranks {medians[phase]:.2g} s"
                self._slow[rank] = f"rank {rank} on {host}: {phase} of {text}"
                news = self.slow_ranks
        return news


def _event() -> Any:
    """Return an event that the GPU reaches after the work so far."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
    event.record()
    return event


def _mean(begins: list[Any], ends: list[Any]) -> float:
    """Return the mean of the times between pairs of marks, in seconds."""
    if isinstance(ends[-1], float):
        return float(sum(ends) - sum(begins)) / len(ends)
    ends[-1].synchronize()
    times = (float(begin.elapsed_time(end)) for begin, end in zip(begins, ends, strict=True))
    return sum(times) / 1000 / len(ends)
