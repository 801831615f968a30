"""The history of a run: losses, accuracies, speed, stops and restarts, as its folder tells them.

The training package writes events.jsonl, one JSON object per line, config.json and status.json; your own
trainer may write the same. Others may write to the folder: only regular files are read, lines that are too
long or nested too deep are skipped, and numbers are bounded.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbatchgen import files
from sbatchgen.errors import DocumentError

EVENTS, CONFIG, STATUS = "events.jsonl", "config.json", "status.json"
CURVES = {
    "train": ("loss", "accuracy", "samples_per_s"),
    "epoch": ("loss", "accuracy"),
}
ENDS = {"preempted": "stopped", "done": "done"}
MAX_BYTES = 256 << 20  # of events
MAX_EVENTS = 2_000_000
MAX_LINE = 1 << 16
MAX_STEP = 1 << 53
MAX_VALUE = 1e100  # more is an overflow


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
    """The history of the run in a folder.

    Raises:
        DocumentError: There is no such folder, or nothing was measured.
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


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """The events; incomplete lines, as the last one of a running job, are skipped."""
    path = folder / EVENTS
    try:
        data = files.read(path, MAX_BYTES + 1)
    except OSError as error:
        if not folder.is_dir():
            fix = "name the folder of a run, such as runs/ddp"
            raise DocumentError.of(f"there is no run folder {folder}", fix=fix) from error
        what = f"can't read the events of the run: {error.strerror}"
        missing = isinstance(error, FileNotFoundError)
        fix = "name the folder of a run, which holds this file" if missing else ""
        raise DocumentError.of(what, at=str(path), fix=fix) from error
    if len(data) > MAX_BYTES or data.count(b"\n") > MAX_EVENTS:
        what = f"more than {MAX_BYTES >> 20} MiB or {MAX_EVENTS:,} lines of events"
        raise DocumentError.of(what, at=str(path), fix="train with a larger --log-every")
    return (event for event in map(_parsed, io.BytesIO(data)) if isinstance(event.get("event"), str))


def _object(path: Path) -> dict[str, Any]:
    try:
        return _parsed(files.read(path, MAX_LINE))
    except OSError:
        return {}


def _parsed(text: bytes) -> dict[str, Any]:
    """The object in a text; an empty one if it is something else, too long or nested too deep."""
    try:
        value = json.loads(text) if len(text) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _add(history: History, event: Mapping[str, Any]) -> None:
    kind, step = event["event"], event.get("step")
    if type(step) is not int or not 0 <= step < MAX_STEP:
        return
    if kind == "start":
        _go_back(history, step)
    elif kind in CURVES:
        for name in CURVES[kind]:
            value = event.get(name)
            if isinstance(value, (int, float)) and -MAX_VALUE < value < MAX_VALUE:  # NaN is not
                history.curves.setdefault(f"{kind} {name}", []).append((step, float(value)))
    elif kind in ENDS:
        history.end = ENDS[kind]
    else:
        return
    history.last = step if kind == "start" else max(history.last, step)


def _go_back(history: History, step: int) -> None:
    """A start from `step`: later steps will be repeated."""
    for points in history.curves.values():
        while points and points[-1][0] > step:
            points.pop()
    while history.restarts and history.restarts[-1] > step:
        history.restarts.pop()
    if step:
        history.restarts.append(step)
    history.end = ""
