"""The curves of a run by its steps: loss, accuracy, speed, stops and restarts, from its folder.

The training package writes events.jsonl, one JSON object per line, config.json and status.json; your own
trainer may write the same. Others may write to the folder: only regular files are read, lines that are too
long or nested too deep are skipped, and numbers are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbatchgen.errors import DocumentError
from sbatchgen.runs.events import CONFIG, EVENTS, STATUS, count, events, number, read_object

CURVES = {
    "train": ("loss", "accuracy", "samples_per_s"),
    "epoch": ("loss", "accuracy"),
}
ENDS = {"preempted": "stopped", "done": "done"}


@dataclass(kw_only=True)
class History:
    """A run so far; steps that were repeated after a crash count once.

    Attributes:
        folder: The run folder.
        curves: Points (step, value) of "train loss", "epoch accuracy" and so on. Losses are means per sample,
            accuracies in 0..1, samples_per_s is that of all processes.
        restarts: The steps from which a later start resumed.
        last: The last known step.
        end: "stopped", "failed" or "done"; empty while it runs, or if it was killed.
        config: What config.json says; empty without one.
    """

    folder: Path
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)
    last: int = 0
    end: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def read_history(folder: Path) -> History:
    """Return the history of the run in a folder.

    Raises:
        DocumentError: There is no such folder, or nothing was measured.
    """
    history = History(folder=folder, config=read_object(folder / CONFIG))
    for event in events(folder):
        _add(history, event)
    if read_object(folder / STATUS).get("state") == "failed":
        history.end = "failed"
    if not any(history.curves.values()):
        raise DocumentError.of(
            "nothing was measured in this run so far",
            at=str(folder / EVENTS),
            fix="wait for the first epoch, or for --log-every steps",
        )
    return history


def _add(history: History, event: Mapping[str, Any]) -> None:
    kind, step = event["event"], count(event.get("step"))
    if step is None:
        return
    if kind == "start":
        for points in history.curves.values():  # the start repeats the steps after the one it resumes from
            while points and points[-1][0] > step:
                points.pop()
        history.restarts = [earlier for earlier in history.restarts if earlier <= step] + [step] * bool(step)
        history.end = ""
    elif kind in CURVES:
        for name in CURVES[kind]:
            if (value := number(event.get(name))) is not None:
                history.curves.setdefault(f"{kind} {name}", []).append((step, value))
    elif kind in ENDS:
        history.end = ENDS[kind]
    else:
        return
    history.last = step if kind == "start" else max(history.last, step)
