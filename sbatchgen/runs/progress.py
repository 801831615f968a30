"""How far a training is, as its run folder tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbatchgen.runs.events import CONFIG, STATUS, count, first_events, last_events, number, read_object

_STATES = ("running", "preempted", "done", "failed")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is; None or "" for what the folder does not tell.

    Attributes:
        state: "running", "preempted" (it has saved and ended, with more to do), "done" or "failed".
        step, steps: Steps done, of how many.
        epoch, epochs: Epochs done, of how many.
        loss, accuracy: Of the last validation; the accuracy in 0..1.
        best: The best accuracy of a validation.
        samples_per_s: The speed of all processes together.
        checkpoint: The newest checkpoint, relative to the folder.
        reason: Why it ended.
        time: When this was written, in seconds since 1970.
    """

    state: str
    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    best: float | None = None
    samples_per_s: float | None = None
    checkpoint: str = ""
    reason: str = ""
    time: float | None = None

    @property
    def says(self) -> str:
        """In short: "epoch 3 of 10, loss 0.1234, accuracy 97.5%"."""
        epoch = (
            ""
            if self.epoch is None
            else f"epoch {self.epoch}" + (f" of {self.epochs}" if self.epochs else "")
        )
        step = ""
        if self.step and self.state == "running":
            step = f"step {self.step}" + (f" of {self.steps}" if self.steps else "")
        loss = "" if self.loss is None else f"loss {self.loss:.4g}"
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        return ", ".join(filter(None, (epoch, step, loss, accuracy)))


def read_progress(run_dir: Path) -> Progress | None:
    """How far the training in a run folder is; None if none has written there."""
    status = read_object(run_dir / STATUS)
    if status.get("state") not in _STATES:
        return None
    found: dict[str, Any] = {}
    last = last_events(run_dir)
    for event in last:
        if event["event"] == "epoch":
            found = {**found, **event, "best": _most(found.get("best"), number(event.get("accuracy")))}
        elif event["event"] == "train":
            found["samples_per_s"] = event.get("samples_per_s")
    epochs = count(read_object(run_dir / CONFIG).get("epochs"))
    steps = [step for event in last if (step := count(event.get("step"))) is not None]
    return Progress(
        state=str(status["state"]),
        step=steps[-1] if steps else count(status.get("step")),  # status.json is written less often
        steps=_steps(run_dir, epochs),
        epoch=count(found.get("epoch")) or count(status.get("epoch")),
        epochs=epochs,
        loss=number(found.get("loss")),
        accuracy=number(found.get("accuracy")),
        best=number(found.get("best")),
        samples_per_s=number(found.get("samples_per_s")),
        checkpoint=_text(status, "checkpoint"),
        reason=_text(status, "reason"),
        time=number(status.get("time")),
    )


def _steps(run_dir: Path, epochs: int | None) -> int | None:
    """How many steps the whole training has."""
    for event in first_events(run_dir):
        if event["event"] == "start":
            samples, batch = count(event.get("train_samples")), count(event.get("global_batch_size"))
            return epochs * math.ceil(samples / batch) if epochs and samples and batch else None
    return None


def _most(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _text(status: Mapping[str, Any], name: str) -> str:
    value = status.get(name)
    return value if isinstance(value, str) else ""
