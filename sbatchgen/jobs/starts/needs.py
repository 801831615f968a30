"""How long a training still needs: its remaining samples, and the samples per second of its starts so far."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.runs.events import CONFIG, as_count, as_number, events, read_object

MARGIN = 1.15  # the proposed time limit, divided by the computed time


@frozen()
class Pace:
    """The remaining samples of a training, and its speed."""

    left: float  # samples that are left
    per_s: Mapping[int, float]  # samples per second, by the number of processes: one for each GPU
    restart_s: float | None = None  # seconds of a restart until its first new step; None if not known

    def needs(self, gpus: int) -> float | None:
        """Return the seconds that the training needs with so many GPUs; None if no start had this number."""
        return self.left / self.per_s[gpus] if self.per_s.get(gpus) else None


def read_pace(folder: Path) -> Pace | None:
    """Return the pace of the training in a run folder; None if its events do not show the pace."""
    epochs = as_count(read_object(folder / CONFIG).get("epochs"))
    starts: list[tuple[int, int]] = []  # of each start: processes, and samples of a step
    measured: list[list[tuple[float, int]]] = []  # of each start: times and steps of its events
    restart_costs: list[float] = []  # of each restart: seconds until a step that no earlier start had reached
    samples = 0  # the samples of an epoch
    step = 0  # the newest step
    reached = 0  # the last step of the earlier starts
    began: float | None = None  # when the newest start began; None once it has done a step after `reached`
    try:
        for event in events(folder):
            at, now = as_number(event.get("time")), as_count(event.get("step"))
            if event["event"] == "start":
                starts.append(
                    (as_count(event.get("processes")) or 0, as_count(event.get("global_batch_size")) or 0)
                )
                measured.append([])
                samples = as_count(event.get("train_samples")) or 0
                began, reached = at, step
            if event["event"] in ("start", "train") and at is not None and now is not None:
                step = now
                if event["event"] == "train" and measured:
                    measured[-1].append((at, now))
                    if began is not None and now > reached:
                        restart_costs.append(at - began)
                        began = None
    except DocumentError:
        return None
    if not (epochs and samples and starts) or len({batch for _, batch in starts}) != 1:
        return None  # if the batch size changed, the number of steps does not tell the samples
    speeds: dict[int, list[float]] = {}
    for (processes, batch), points in zip(starts, measured, strict=True):
        if len(points) > 1 and points[-1][0] > points[0][0]:
            rate = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
            speeds.setdefault(processes, []).append(rate * batch)
    left = max(0, epochs * samples - step * starts[-1][1])
    per_s = {processes: median(rates) for processes, rates in speeds.items()}
    return Pace(left, per_s, median(restart_costs) if restart_costs else None)
