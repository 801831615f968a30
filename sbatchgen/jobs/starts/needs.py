"""How long a training still needs: the samples that are left, over the samples a second of its starts."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs.events import CONFIG, count, events, number, read_object

MARGIN = 1.15  # of the time limit that is proposed over what was measured


@frozen()
class Pace:
    """What is left of a training, and how fast its starts were, by number of processes: one for each GPU."""

    left: float  # samples
    per_s: Mapping[int, float]
    restart_s: float | None = None  # what a start costs until its first new step; None if that was not seen

    def needs(self, gpus: int) -> float | None:
        """Return the seconds that are left with so many GPUs; None if no such start was measured."""
        return self.left / self.per_s[gpus] if self.per_s.get(gpus) else None


def read_pace(folder: Path) -> Pace | None:
    """Return the pace of the training in a run folder; None if its events do not show the pace."""
    epochs = count(read_object(folder / CONFIG).get("epochs"))
    starts: list[tuple[int, int]] = []  # processes and samples of a step
    measured: list[list[tuple[float, int]]] = []  # time and step of each start, in its order
    costs: list[float] = []  # how long a start took until a step beyond the last one before it
    samples = step = reached = 0
    began: float | None = None  # when the newest start began, until it reached a new step
    try:
        for event in events(folder):
            at, now = number(event.get("time")), count(event.get("step"))
            if event["event"] == "start":
                starts.append(
                    (count(event.get("processes")) or 0, count(event.get("global_batch_size")) or 0)
                )
                measured.append([])
                samples = count(event.get("train_samples")) or 0
                began, reached = at, step
            if event["event"] in ("start", "train") and at is not None and now is not None:
                step = now
                if event["event"] == "train" and measured:
                    measured[-1].append((at, now))
                    if began is not None and now > reached:
                        costs.append(at - began)
                        began = None
    except DocumentError:
        return None
    if not (epochs and samples and starts) or len({batch for _, batch in starts}) != 1:
        return None  # steps of another size: what is done does not follow from their number
    speeds: dict[int, list[float]] = {}
    for (processes, batch), seen in zip(starts, measured, strict=True):
        if len(seen) > 1 and seen[-1][0] > seen[0][0]:
            rate = (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
            speeds.setdefault(processes, []).append(rate * batch)
    left = max(0, epochs * samples - step * starts[-1][1])
    per_s = {processes: median(each) for processes, each in speeds.items()}
    return Pace(left, per_s, median(costs) if costs else None)
