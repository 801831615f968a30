"""Reads the files that a training writes into its run folder: events.jsonl, config.json and status.json.

Other users may be able to write into the folder. So only regular files are read, and lines that are too long
or nested too deep are skipped.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError
from sbatchgen.base.quoting import ALSO

EVENTS, CONFIG, STATUS = "events.jsonl", "config.json", "status.json"  # names of files
MAX_BYTES = 256 << 20  # the largest file of events that is read
MAX_EVENTS = 2_000_000  # the most lines of this file
MAX_LINE_BYTES = 1 << 16  # bytes of the longest line of events, and of the largest other file
MAX_METRIC = 1e100  # a larger number comes from the overflow of a metric, so it is ignored
# Fields of an event that say when it happened; the others are metrics
PLACE_FIELDS = ("step", "epoch", "time")
# The fix for a training that reports no numbers
FIX_WITHOUT_NUMBERS = 'let your trainer print(json.dumps({"step": step, "loss": loss})), or set metrics'
_VALIDATION_PREFIX = re.compile("^(?:val|valid|validation|eval|test)[_/]")  # "val_" of "val_loss"


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """Return the events of a run, the oldest first; skip incomplete lines, such as the last of a running job.

    Raises DocumentError if the file can't be read or is too large.
    """
    path = folder / EVENTS
    try:
        data = files.read_run_file(path, MAX_BYTES + 1)
    except OSError as error:
        if not folder.is_dir():
            fix = "name the folder of a run, such as runs/ddp"
            raise DocumentError.of(f"there is no run folder {folder}", fix=fix) from error
        what = f"can't read the events of the run: {error.strerror}"
        is_missing = isinstance(error, FileNotFoundError)
        fix = f"{FIX_WITHOUT_NUMBERS}{ALSO}the bundled trainer writes this file" if is_missing else ""
        raise DocumentError.of(what, at=str(path), fix=fix) from error
    if len(data) > MAX_BYTES or data.count(b"\n") > MAX_EVENTS:
        what = f"more than {MAX_BYTES >> 20} MiB or {MAX_EVENTS:,} lines of events"
        raise DocumentError.of(what, at=str(path), fix="train with a larger --log-every")
    return (event for line in io.BytesIO(data) for event in as_events(_parsed_object(line)))


def some_events(folder: Path, *, from_end: bool = False) -> list[dict[str, Any]]:
    """Return the first events of a run, or the last with `from_end`; nothing if the file can't be read.

    They are read from MAX_LINE_BYTES at the start or the end of the file, and are in the order of the file.
    """
    try:
        data = files.read_run_file(folder / EVENTS, MAX_LINE_BYTES, from_end=from_end)
    except OSError:
        return []
    return [event for line in data.split(b"\n") for event in as_events(_parsed_object(line))]


def as_events(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events in a JSON object that a trainer has written.

    An object of the bundled trainer is an event already. The object of a user's own trainer has no `event`:
    {"step": 3, "loss": 0.2, "val_loss": 0.3}. Its training numbers become an event "train". Its validation
    numbers become an event "epoch", without the prefix "val_".
    """
    if isinstance(fields.get("event"), str):
        yield dict(fields)
    elif not {*PLACE_FIELDS}.isdisjoint(fields):
        places = {name: fields[name] for name in PLACE_FIELDS if name in fields}
        measured: dict[str, dict[str, Any]] = {"train": {}, "epoch": {}}
        for name, value in fields.items():
            metric = _VALIDATION_PREFIX.sub("", name)
            if name not in PLACE_FIELDS and as_number(value) is not None:
                measured["train" if metric == name else "epoch"].setdefault(metric, value)
        yield from ({"event": kind, **places, **values} for kind, values in measured.items() if values)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file; an empty object if the file can't be read or has none."""
    try:
        return _parsed_object(files.read_run_file(path, MAX_LINE_BYTES))
    except OSError:
        return {}


def _parsed_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a text; {} for any other text, or for a too long or too deeply nested one."""
    try:
        value = json.loads(text) if len(text) <= MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def as_count(value: Any) -> int | None:
    """Return the value if it is an integer from 0 that JSON can hold exactly; None for any other value."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def as_number(value: Any) -> float | None:
    """Return the value as a float if it is a finite number; None for any other value."""
    return float(value) if type(value) in (int, float) and -MAX_METRIC < value < MAX_METRIC else None
