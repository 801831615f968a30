"""Computes how long a training still needs, from the events in its run folder.

The time is the number of remaining samples, divided by the samples per second of the starts so far.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs.events import CONFIG, as_count, as_number, events, read_object

TIME_MARGIN = 1.15  # the proposed time limit is the computed time multiplied by this factor


@frozen()
class Pace:
    """The remaining samples of a training, and its speed."""

    samples_left: float
    samples_per_s: Mapping[int, float]  # number of processes, one for each GPU -> samples per second
    restart_s: float | None = None  # seconds from a restart to its first new step; None if not known

    def needed_s(self, gpus: int) -> float | None:
        """Return the seconds that the training still needs with this number of GPUs.

        Return None if no start had this number of GPUs.
        """
        return self.samples_left / self.samples_per_s[gpus] if self.samples_per_s.get(gpus) else None


class _Start(NamedTuple):
    """What the events of one start of the training show."""

    processes: int
    step_samples: int  # the samples of a step: the global batch size
    steps: list[tuple[float, int]]  # the time in seconds and the number of each step that has an event


def read_pace(folder: Path) -> Pace | None:
    """Return the pace of the training in a run folder; None if its events do not show the pace."""
    epochs = as_count(read_object(folder / CONFIG).get("epochs"))
    starts: list[_Start] = []
    restart_times_s: list[float] = []  # for each restart, the seconds until its first new step
    epoch_samples = 0  # the samples of an epoch
    newest_step = 0
    last_step_before = 0  # the last step of the earlier starts
    began: float | None = None  # when the newest start began; None once it has done a new step
    try:
        for event in events(folder):
            kind, time, step = event["event"], as_number(event.get("time")), as_count(event.get("step"))
            if kind == "start":
                processes = as_count(event.get("processes"))
                step_samples = as_count(event.get("global_batch_size"))
                starts.append(_Start(processes or 0, step_samples or 0, []))
                epoch_samples = as_count(event.get("train_samples")) or 0
                began, last_step_before = time, newest_step
            if kind in ("start", "train") and time is not None and step is not None:
                newest_step = step
                if kind == "train" and starts:
                    starts[-1].steps.append((time, step))
                    if began is not None and step > last_step_before:
                        restart_times_s.append(time - began)
                        began = None
    except DocumentError:
        return None
    has_one_batch_size = len({start.step_samples for start in starts}) == 1
    if not epochs or not epoch_samples or not has_one_batch_size:
        return None  # if the batch size has changed, the number of steps does not tell the number of samples
    samples_left = max(0, epochs * epoch_samples - newest_step * starts[-1].step_samples)
    restart_s = median(restart_times_s) if restart_times_s else None
    return Pace(samples_left, _samples_per_s(starts), restart_s)


def _samples_per_s(starts: Sequence[_Start]) -> dict[int, float]:
    """Return a number of processes -> the median of the samples per second of the starts with this number."""
    speeds: dict[int, list[float]] = {}
    for start in starts:
        if len(start.steps) > 1:
            (first_time, first_step), (last_time, last_step) = start.steps[0], start.steps[-1]
            if last_time > first_time:
                steps_per_s = (last_step - first_step) / (last_time - first_time)
                speeds.setdefault(start.processes, []).append(steps_per_s * start.step_samples)
    return {processes: median(speeds_of_starts) for processes, speeds_of_starts in speeds.items()}
