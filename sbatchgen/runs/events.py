"""What a training writes into its run folder: events.jsonl, config.json and status.json.

Others may write to the folder: only regular files are read, and lines that are too long or nested too deep
are skipped.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sbatchgen import files
from sbatchgen.errors import DocumentError

EVENTS, CONFIG, STATUS = "events.jsonl", "config.json", "status.json"
MAX_BYTES = 256 << 20  # of events
MAX_EVENTS = 2_000_000
MAX_LINE = 1 << 16
MAX_VALUE = 1e100  # more is an overflow


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """Return the events; incomplete lines, as the last one of a running job, are skipped."""
    path = folder / EVENTS
    try:
        data = files.read_of_run(path, MAX_BYTES + 1)
    except OSError as error:
        if not folder.is_dir():
            fix = "name the folder of a run, such as runs/ddp"
            raise DocumentError.of(f"there is no run folder {folder}", fix=fix) from error
        what = f"can't read the events of the run: {error.strerror}"
        missing = isinstance(error, FileNotFoundError)
        fix = "the bundled trainer writes it once it has started; name its run" if missing else ""
        raise DocumentError.of(what, at=str(path), fix=fix) from error
    if len(data) > MAX_BYTES or data.count(b"\n") > MAX_EVENTS:
        what = f"more than {MAX_BYTES >> 20} MiB or {MAX_EVENTS:,} lines of events"
        raise DocumentError.of(what, at=str(path), fix="train with a larger --log-every")
    return (event for event in map(_parsed, io.BytesIO(data)) if isinstance(event.get("event"), str))


def some_events(folder: Path, *, from_end: bool = False) -> list[dict[str, Any]]:
    """Return the events at the start or the end of the file, in their order; nothing if it can't be read."""
    try:
        data = files.read_of_run(folder / EVENTS, MAX_LINE, from_end=from_end)
    except OSError:
        return []
    return [event for event in map(_parsed, data.split(b"\n")) if isinstance(event.get("event"), str)]


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file; an empty one without it."""
    try:
        return _parsed(files.read_of_run(path, MAX_LINE))
    except OSError:
        return {}


def _parsed(text: bytes) -> dict[str, Any]:
    """Return the object in a text; an empty one if it is something else, too long or nested too deep."""
    try:
        value = json.loads(text) if len(text) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def count(value: Any) -> int | None:
    """Return a number of things in an event; None if it is something else."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def number(value: Any) -> float | None:
    """Return a number in an event; None if it is something else, or not finite."""
    return float(value) if type(value) in (int, float) and -MAX_VALUE < value < MAX_VALUE else None
