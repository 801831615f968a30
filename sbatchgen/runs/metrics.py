"""What a trainer of one's own prints of its training, as events like those of the bundled one.

A line of the log counts if it holds a JSON object with a step or an epoch, {"step": 3, "loss": 0.2}, or a
match of the job's key `metrics`, a regular expression that the user wrote.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from sbatchgen import files
from sbatchgen.runs.events import EVENTS, MAX_BYTES, as_events, events
from sbatchgen.runs.job_log import START, find_logs, newest_logs
from sbatchgen.runs.record import Record, records

END = 1 << 18  # bytes at the end of a log, which have the newest numbers
LONGEST = 4000  # characters of a line that are read
# "Epoch 3/10 ... train_loss=0.5, val acc: 97.5%", as plain programs, tqdm, Lightning and transformers do.
_PLACE = re.compile(r"(?i)\b(epoch|step|iter(?:ation)?)['\"]?[\s:=\[(#'\"]{0,4}(\d{1,12})\b")
_PLACES = {"e": "epoch", "s": "step", "i": "step"}
_MEASURED = re.compile(
    r"(?i)(?<![a-z_])(?:(train|training|val|valid|validation|eval|test)[\s_]{1,2})?(loss|acc(?:uracy)?)"
    r"['\"]?[\s:=]{1,4}['\"]?(\d{1,12}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)(%)?(?![\w/])"
)
_AFTER = ",;:%)]}'\""  # what may follow a number


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run, of its file or else its logs; DocumentError without a folder or an event."""
    printed = [] if (folder / EVENTS).exists() else log_events(folder)
    yield from printed or events(folder)


def log_events(
    folder: Path, submissions: Sequence[Record] | None = None, task: str = "", *, from_end: bool = False
) -> list[dict[str, Any]]:
    """Return the events in the logs of a run, the oldest first; nothing if it prints none."""
    submissions = records(folder) if submissions is None else submissions
    if not submissions and not task and folder.name.isdecimal():
        submissions, task = records(folder.parent), folder.name
    known: list[dict[str, Any]] = []
    for record in reversed(submissions):
        paths = newest_logs(record, task) if from_end else find_logs(record, task, errors=True)
        pattern = next((value.value for value in record.values if value.name == "metrics"), "")
        lines = chain.from_iterable(_lines(path, from_end=from_end) for path in paths)
        known = [*_events(lines, re.compile(pattern) if pattern else None), *known]
        if from_end and paths:
            break
    return known


def _lines(path: Path, *, from_end: bool) -> Iterator[str]:
    """Yield what a log says at each start of its job, and its lines, also those of a progress bar."""
    with contextlib.suppress(OSError):
        data = files.read_of_run(path, END if from_end else MAX_BYTES, from_end=from_end)
        for line in io.BytesIO(data):
            for part in line.rstrip().split(b"\r"):
                yield part[:LONGEST].decode("utf-8", "replace")


def _events(lines: Iterable[str], pattern: re.Pattern[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the events in lines; of several ranks that print the same, that of the first counts."""
    seen: set[tuple[str, int]] = set()
    is_new = False  # whether the job has been started again, and has printed nothing since
    for line in lines:
        if START.match(line):
            is_new = bool(seen)
        for event in line_events(line, pattern):
            step = event.get("step")
            if is_new and step is not None:
                yield {"event": "start", "step": max(0, step - 1)}
                seen.clear()
            is_new = False
            if step is None or (event["event"], step) not in seen:
                yield event
            if step is not None:
                seen.add((event["event"], step))


def line_events(line: str, pattern: re.Pattern[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the events in a line of a log; `pattern` is the job's key `metrics`."""
    fields: dict[str, Any] = {}
    if pattern and (match := pattern.search(line)):
        numbers = {name: _number(text) for name, text in match.groupdict().items() if text}
        fields = {"epoch": None, **numbers}  # it may have neither a step nor an epoch
    elif (cut := line.find('{"')) >= 0:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line[cut:])
            fields = value if isinstance(value, dict) and "event" not in value else {}
    elif not pattern and (where := _PLACE.search(line)):
        fields = {_PLACES[where[1][0].lower()]: int(where[2]), **_common(line)}
        fields = fields if len(fields) > 1 else {}
    for place in ("step", "epoch"):
        if isinstance(value := fields.get(place), float) and math.isfinite(value):
            fields[place] = math.floor(value)  # of an epoch the whole ones, as the bundled trainer counts
    yield from as_events(fields)


def _common(line: str) -> dict[str, float]:
    """Return the losses and accuracies in a line as many programs print them: "loss 0.5 acc 97.5%"."""
    known: dict[str, float] = {}
    for match in _MEASURED.finditer(line):
        kind = "val_" * bool(match[1] and not match[1].lower().startswith("train"))
        name, value = "loss" if match[2].lower() == "loss" else "accuracy", _number(match[3])
        if value is not None and math.isfinite(value):
            is_percent = name == "accuracy" and (value > 1 or match[4] == "%")
            known.setdefault(kind + name, value / 100 if is_percent else value)
    return known


def _number(text: str) -> float | None:
    try:
        return float(text.strip().strip(_AFTER).replace(",", ""))
    except ValueError:
        return None
