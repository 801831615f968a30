"""The history of a run: what its folder tells of losses, accuracies and speed, and of stops and restarts.

The training package writes events.jsonl, one JSON object a line, config.json and status.json; a trainer of
one's own may write the same. A run that is still going on is read as far as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbatchgen.errors import DocumentError

EVENTS, CONFIG, STATUS = "events.jsonl", "config.json", "status.json"
CURVES = {
    "train": ("loss", "accuracy", "samples_per_s"),
    "epoch": ("loss", "accuracy"),
}
ENDS = {"preempted": "stopped", "done": "done"}


@dataclass(kw_only=True)
class History:
    """What a run has gone through, as it stands: what was trained again after a crash counts once.

    Attributes:
        folder: The run folder.
        curves: The points (step, value) of each curve, by steps; "train loss", "epoch accuracy", and so on.
            Losses are means of a sample, accuracies in 0..1, samples_per_s those of all processes.
        restarts: The steps at which a later start went on.
        last: The last step that is told of.
        end: "stopped", "failed" or "done"; empty while it runs, or if it was killed.
        config: What config.json says; empty if it is not there.
    """

    folder: Path
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)
    last: int = 0
    end: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def read_history(folder: Path) -> History:
    """The history of the run in a folder.

    Raises:
        DocumentError: There is no such folder, or it tells of no training.
    """
    history = History(folder=folder, config=_object(folder / CONFIG))
    for event in _events(folder):
        _add(history, event)
    if _object(folder / STATUS).get("state") == "failed":
        history.end = "failed"
    if not any(history.curves.values()):
        raise DocumentError.of(
            "nothing was measured in this run so far",
            at=str(folder / EVENTS),
            fix="wait for the first epoch, or for --log-every steps",
        )
    return history


def _events(folder: Path) -> list[dict[str, Any]]:
    """The events; what is no whole line, as the last one of a run that is writing, is passed over."""
    path = folder / EVENTS
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        if not folder.is_dir():
            fix = "name the folder of a run, such as runs/ddp"
            raise DocumentError.of(f"there is no run folder {folder}", fix=fix) from error
        fix = (
            "name the folder of a run, which holds this file" if isinstance(error, FileNotFoundError) else ""
        )
        what = f"can't read the events of the run: {error.strerror}"
        raise DocumentError.of(what, at=str(path), fix=fix) from error
    return [event for event in map(_parsed, lines) if event.get("event")]


def _object(path: Path) -> dict[str, Any]:
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return {}


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _add(history: History, event: Mapping[str, Any]) -> None:
    kind, step = event["event"], event.get("step")
    if type(step) is not int:
        return
    if kind == "start":
        _go_back(history, step)
    elif kind in CURVES:
        for name in CURVES[kind]:
            value = event.get(name)
            if isinstance(value, (int, float)) and math.isfinite(value):
                history.curves.setdefault(f"{kind} {name}", []).append((step, float(value)))
    elif kind in ENDS:
        history.end = ENDS[kind]
    else:
        return
    history.last = step if kind == "start" else max(history.last, step)


def _go_back(history: History, step: int) -> None:
    """A start from `step`: what was later than that will be done again."""
    for name, points in history.curves.items():
        history.curves[name] = [point for point in points if point[0] <= step]
    history.restarts = [one for one in history.restarts if one <= step]
    if step:
        history.restarts.append(step)
    history.end = ""
