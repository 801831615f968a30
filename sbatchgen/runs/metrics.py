"""What the user's own trainer prints of its training, as events like those of the bundled one.

A line of the log counts if it holds a JSON object with a step or an epoch, {"step": 3, "loss": 0.2}, or a
match of the job's key `metrics`, a regular expression that the user wrote.
"""

import contextlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from sbatchgen import files
from sbatchgen.errors import DocumentError
from sbatchgen.runs.events import EVENTS, MAX_BYTES, PLACES, as_events, events
from sbatchgen.runs.job_log import START, find_logs, newest_logs
from sbatchgen.runs.record import Record, records

END = 1 << 18  # bytes at the end of a log, which have the newest numbers
LONGEST = 4000  # characters of a line that are read
# "Epoch 3/10 ... train_loss=0.5, val acc: 97.5%", as plain programs, tqdm, Lightning and transformers do.
_BETWEEN = r"['\"]?[\s:=\[(#'\"]{0,12}"
_PLACE = re.compile(
    rf"(?i)(?<!per )(?<![/_-])\b(?:(epoch){_BETWEEN}(\d{{1,12}})(?:\.\d{{1,20}})?"
    rf"|(step|iter(?:ation)?){_BETWEEN}(\d{{1,12}}))(?!\w|\.\d)"
)
_MEASURED = re.compile(
    r"(?i)(?<![a-z_])(?<!--)((?:(?:train(?:ing)?|val(?:id(?:ation)?)?|eval|test|total|avg|average|mean|running|lm)"
    r"[\s_./-]{1,2}){0,2})(loss|acc(?:uracy)?)(?:_step|_epoch)?"
    r"['\"]?[\s:=]{1,4}['\"]?(-?\d{1,12}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)(%)?(?![\w/]|[.,:]\w)"
)
_VALIDATION = re.compile(r"(?i)(?<![/-])\b(?:val|valid|validation|eval|evaluation|test|testing)\b(?![/-])")
_OTHER = re.compile(r"[A-Za-z][\s_.]*$|\w[/-]$")  # "box loss", "best loss", "top-5-accuracy"
# What a line is of whose numbers are not those of now.
_NOT_NOW = re.compile(r"(?i)\b(?:best|early|load(?:ed|ing)?|resum\w*|restor\w*|train_runtime|namespace)\b")
# "Epoch 3/10" as a line of its own, and Keras' "40/100 [===>..] - 1s - loss: 0.5" below it
_HEADING = re.compile(r"(?i)\s*epoch:?\s*[\[#]?\s*(\d{1,12})\s*(?:/|of)\s*\d{1,12}\]?[\s:.-]*$")
_KERAS = re.compile(r"\s*(\d{1,9})/(\d{1,9})\s.* - \w+: ")
# "Epoch 2/9 ━━━━ 8/8 0:00:00 • 0:00:00 99.50it/s train_loss: 0.537": Lightning 2, where rich is installed;
# "val_loss: 0.761" far to the right in lines of their own below it
_RICH = re.compile(r"Epoch \d{1,12}/\d{1,12} .*it/s")
_FAR_RIGHT = re.compile(r"\s{16,}(?:[\w/.-]{1,80}: {1,9}\S{1,40}\s*){1,20}$")
# What a line without a pattern of the user's holds, if it counts: most lines of a log hold none of it.
_MAY_MEASURE = re.compile(rb"(?i)loss|acc|epoch|[{]\"|restart| - ")
_AFTER = ",;:%)]}'\""  # what may follow a number


def read_events(
    folder: Path, pattern: str = "", submissions: Sequence[Record] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events of a run, of its file or else its logs; DocumentError without a folder or an event.

    With a pattern, which takes the place of the job's key `metrics`, those of its logs. `submissions` are
    given for a job that has no records in the folder.
    """
    printed: list[dict[str, Any]] = []
    if pattern or not os.path.lexists(folder / EVENTS):
        printed = log_events(folder, submissions, pattern=pattern)
    if pattern and not printed:
        what = f"no line in the log of {folder} matches '{pattern}'"
        raise DocumentError.of(what, at="--metrics", fix="sbatchgen logs shows the lines")
    if submissions and not printed and not folder.is_dir():
        what = "its log has no lines with a loss or an accuracy that are understood"
        raise DocumentError.of(what, at=str(folder), fix="--metrics REGEX says where the numbers are")
    yield from printed or events(folder)


def log_events(
    folder: Path,
    submissions: Sequence[Record] | None = None,
    task: str = "",
    *,
    from_end: bool = False,
    pattern: str = "",
) -> list[dict[str, Any]]:
    """Return the events in the logs of a run, the oldest first; nothing if it prints none."""
    submissions = records(folder) if submissions is None else submissions
    if not submissions and not task and folder.name.isdecimal():
        submissions, task = records(folder.parent), folder.name
    known: list[dict[str, Any]] = []
    for record in reversed(submissions):
        paths = newest_logs(record, task) if from_end else find_logs(record, task, errors=True)
        key = pattern or record.value("metrics")
        lines = chain.from_iterable(_lines(path, from_end=from_end, every=bool(key)) for path in paths)
        known = [*_events(lines, re.compile(key) if key else None), *known]
        if from_end and paths:
            break
    return known


def _lines(path: Path, *, from_end: bool, every: bool) -> Iterator[str]:
    """Yield what a log says at each start of its job, and its lines, also those of a progress bar."""
    with contextlib.suppress(OSError):
        data = files.read_of_run(path, END if from_end else MAX_BYTES, from_end=from_end)
        for line in io.BytesIO(data):
            if not (every or _MAY_MEASURE.search(line)):
                continue
            for part in line.rstrip().split(b"\r"):
                yield part[:LONGEST].decode("utf-8", "replace")


def _events(lines: Iterable[str], pattern: re.Pattern[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the events in lines; of several ranks that print the same, that of the first counts."""
    seen: set[tuple[str, int]] = set()
    is_new = False  # whether the job has been started again, and has printed nothing since
    validated: Mapping[str, Any] = {}  # as a bar repeats it during the next epoch
    for line in lines if pattern else _with_epochs(lines):
        if START.match(line):
            is_new = bool(seen)
        for event in line_events(line, pattern):
            step = event.get("step")
            if is_new and step is not None:
                yield {"event": "start", "step": max(0, step - 1)}
                seen.clear()
            is_new = False
            if step is None and event["event"] == "epoch":
                before, validated = validated, {name: event[name] for name in event if name not in PLACES}
                if before == validated:
                    continue
            if step is None or (event["event"], step) not in seen:
                yield event
            if step is not None:
                seen.add((event["event"], step))


def _with_epochs(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, with the epoch in those that are below a heading, "Epoch 3/10"."""
    epoch, done, total = "", 0, ""
    for line in _with_columns(lines):
        is_below = False
        if heading := _HEADING.match(line):
            epoch, done, total = heading[1], 0, ""
        elif epoch and not _PLACE.search(line):
            bar = _KERAS.match(line)
            is_below = not bar and bool(_MEASURED.match(line.lstrip()))
            if bar and int(bar[1]) >= done and total in ("", bar[2]):  # else of an evaluation afterwards
                done, total, is_below = int(bar[1]), bar[2], True
        yield f"epoch {epoch}: {line}" if is_below else line


def _with_columns(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines; the bar of rich as one, with the metrics that it prints below it."""
    bar = ""
    for line in lines:
        if bar and _FAR_RIGHT.match(line):
            bar = f"{bar.rstrip()} {line.strip()}"[:LONGEST]
            continue
        if bar:
            yield bar
        bar = line.replace("it/s ", "it/s, ", 1) if _RICH.match(line) else ""  # no "s loss"
        if not bar:
            yield line
    if bar:
        yield bar


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
    elif not pattern and (where := _PLACE.search(line)) and not _NOT_NOW.search(line, 0, where.start()):
        measured = _common(line)
        counted = {"epoch": int(where[2])} if where[1] else {"step": int(where[4])}
        fields = {**counted, **measured} if measured else {}
    for place in ("step", "epoch"):
        if isinstance(value := fields.get(place), float) and math.isfinite(value):
            fields[place] = math.floor(value)  # of an epoch the whole ones, as the bundled trainer counts
    yield from as_events(fields)


def _common(line: str) -> dict[str, float]:
    """Return the losses and accuracies in a line as many programs print them: "loss 0.5 acc 97.5%".

    What may be of the training or of a validation is left out.
    """
    each = ((match, match.start()) for match in _MEASURED.finditer(line))
    matches = [match for match, start in each if not _OTHER.search(line, max(0, start - 20), start)]
    names = ["loss" if match[2].lower() == "loss" else "accuracy" for match in matches]
    known: dict[str, float] = {}
    for match, name, kind in zip(matches, names, _kinds(line, matches, names), strict=True):
        value = float(match[3])
        if name == "accuracy":
            value = value / 100 if match[4] or value > 1 else value
        is_right = 0 <= value <= 1 if name == "accuracy" else not match[4] and math.isfinite(value)
        if is_right and kind is not None:
            known.setdefault(kind + name, value)
    return known


def _kinds(line: str, matches: Sequence[re.Match[str]], names: Sequence[str]) -> Iterator[str | None]:
    """Yield of each number "val_" if it is of a validation, else ""; None if it may be of either."""
    words = [match[1].lower() for match in matches]
    kinds = ["val_" if re.search("val|test", word) else "train" * ("train" in word) for word in words]
    if "val_" not in kinds:
        before = line[: matches[0].start()] if matches else ""
        is_all = "train" not in before.lower() and _VALIDATION.search(before)
        yield from ("val_" if is_all and not kind else "" for kind in kinds)
        return
    first = kinds.index("val_")
    for at, (kind, name) in enumerate(zip(kinds, names, strict=True)):
        if kind or at < first:
            yield kind.removeprefix("train")
        elif ("val_", name) in zip(kinds, names, strict=True):
            yield ""
        else:
            yield None if first else "val_"


def _number(text: str) -> float | None:
    try:
        return float(text.strip().strip(_AFTER).replace(",", ""))
    except ValueError:
        return None
