"""Reads the progress of a training: its step, epoch, loss and state, from its run folder or its log."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import one_line
from sbatchgen.jobs.runs.events import (
    CONFIG,
    PLACE_FIELDS,
    STATUS,
    as_count,
    as_number,
    read_object,
    some_events,
)
from sbatchgen.jobs.runs.metrics import log_events
from sbatchgen.jobs.runs.record import Record

# The metrics that tell what a step costs, each with its words, in the order in which they are shown
STEP_COSTS = {
    "samples_per_s": "{:,.0f} samples/s",
    "step_s": "{:.3g} s a step",
    "data_wait": "{:.0%} of it waiting for data",
    "lr": "lr {:.3g}",
    "grad_norm": "gradient norm {:.3g}",
    "gpu_allocated_bytes": "GPU memory {:.3g} GB",
}
_STATES = ("running", "preempted", "done", "failed")


@frozen(kw_only=True)
class Progress:
    """The progress of a training; None or "" for unknown values."""

    # "running", "preempted" (the training has saved and ended, with more to do), "done" or "failed"; "" if
    # the trainer reports no state
    state: str
    step: int | None = None  # how many steps are done
    steps: int | None = None  # how many steps the training has in all
    epoch: int | None = None  # how many epochs are done
    epochs: int | None = None  # how many epochs the training has in all
    loss: float | None = None  # the loss of the last validation, or else of the training
    accuracy: float | None = None  # the accuracy of the last validation, or else of the training, in 0..1
    best: float | None = None  # the best accuracy of a validation
    samples_per_s: float | None = None  # the speed of all processes together
    checkpoint: str = ""  # the newest checkpoint, relative to the folder
    reason: str = ""  # why the training ended
    slow: str = ""  # which rank is slow, as its newest steps show
    time: float | None = None  # when the trainer wrote its state, in seconds since 1970
    # The newest number of each metric; the validation's if training and validation both measure the metric
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def says(self) -> str:
        """The progress in words: "epoch 3 of 10, loss 0.1234, accuracy 97.5%"; "" if nothing is known."""
        parts = []
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch}" + (f" of {self.epochs}" if self.epochs else ""))
        if self.step and self.state in ("running", ""):
            parts.append(f"step {self.step}" + (f" of {self.steps}" if self.steps else ""))
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.1%}")
        return ", ".join(parts)

    @property
    def costs(self) -> str:
        """The costs of its newest step in words: "0.21 s a step, 3% of it waiting for data, lr 0.1"."""
        values = {name: self.metrics[name] for name in STEP_COSTS if name in self.metrics}
        values |= {name: value / 1e9 for name, value in values.items() if name.endswith("bytes")}
        return ", ".join(STEP_COSTS[name].format(value) for name, value in values.items())


def read_progress(
    run_dir: Path, submissions: Sequence[Record] | None = None, task: str = ""
) -> Progress | None:
    """Return the progress of the training in a run folder; None if no training has reported progress.

    The user's own trainer may report its progress in its log. `log_events` explains `submissions` and `task`.
    """
    status = read_object(run_dir / STATUS)
    last_events = some_events(run_dir, from_end=True) or log_events(run_dir, submissions, task, from_end=True)
    state = _text(status, "state")
    state = state if state in _STATES else ""
    if not state and not last_events:
        return None
    validations = [event for event in last_events if event["event"] == "epoch"]
    # Without a validation, the loss of the training is only shown for a trainer that reports no state.
    measured = validations or [event for event in last_events if event["event"] == "train" and not state]
    newest = {name: value for event in measured for name, value in event.items()}  # later values win
    accuracies = [value for event in validations if (value := as_number(event.get("accuracy"))) is not None]
    with_speed = [event for event in last_events if event["event"] == "train" or "samples_per_s" in event]
    steps_done = [step for event in last_events if (step := as_count(event.get("step"))) is not None]
    epochs, steps = _total_epochs_and_steps(run_dir)
    checkpoint = _text(status, "checkpoint")
    return Progress(
        state=state,
        # The events come first, because status.json is written less often.
        step=steps_done[-1] if steps_done else as_count(status.get("step")),
        steps=steps,
        epoch=as_count(newest.get("epoch")) or as_count(status.get("epoch")),
        epochs=epochs,
        loss=as_number(newest.get("loss")),
        accuracy=as_number(newest.get("accuracy")),
        best=max(accuracies, default=None),
        samples_per_s=as_number(with_speed[-1].get("samples_per_s")) if with_speed else None,
        # The file may have been removed since the trainer wrote its name.
        checkpoint=checkpoint if checkpoint and (run_dir / checkpoint).exists() else "",
        reason=_text(status, "reason"),
        slow=_slow_rank(last_events),
        time=as_number(status.get("time")),
        metrics=_newest_metrics(last_events),
    )


def _total_epochs_and_steps(run_dir: Path) -> tuple[int | None, int | None]:
    """Return how many epochs and steps a training has in all; None for a number that it did not write."""
    epochs = as_count(read_object(run_dir / CONFIG).get("epochs"))
    first = next((event for event in some_events(run_dir) if event["event"] == "start"), {})
    samples, batch = as_count(first.get("train_samples")), as_count(first.get("global_batch_size"))
    return epochs, epochs * math.ceil(samples / batch) if epochs and samples and batch else None


def _slow_rank(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the trainer's words about a slow rank at the newest step; "" if no rank is slow."""
    newest: Mapping[str, Any] = next((event for event in reversed(events) if event["event"] == "train"), {})
    return one_line(_text(newest, "slow"))


def _newest_metrics(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the newest number of each metric; a number of the validation replaces one of the training."""
    metrics: dict[str, float] = {}
    for kind in ("train", "epoch"):
        for event in events:
            if event["event"] != kind:
                continue
            for name, value in event.items():
                metric = as_number(value)
                if name not in PLACE_FIELDS and metric is not None:
                    metrics[name] = metric
    return metrics


def _text(status: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text; "" if it is missing or something else."""
    value = status.get(name)
    return value if isinstance(value, str) else ""
