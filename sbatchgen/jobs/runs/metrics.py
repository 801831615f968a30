"""Reads losses and accuracies in the log of a user's own trainer, as events like the bundled trainer's.

A line counts if it has a JSON object with a step or an epoch, such as {"step": 3, "loss": 0.2}; if it
matches the job's key `metrics`, a regular expression; or if it looks as common frameworks print it.
"""

import contextlib
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError
from sbatchgen.jobs.runs.events import EVENTS, MAX_BYTES, PLACES, as_events, events
from sbatchgen.jobs.runs.job_log import PIECE, START, find_logs, newest_logs
from sbatchgen.jobs.runs.record import Record, records

END = 1 << 18  # bytes at the end of a log that are read for the newest numbers
LONGEST = 4000  # bytes of a line that are read
MOST_LINES = 4000  # lines of each kind in a log that become points: a picture has fewer columns
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
# Words of lines whose numbers are not measured at this step.
_NOT_NOW = re.compile(r"(?i)\b(?:best|early|load(?:ed|ing)?|resum\w*|restor\w*|train_runtime|namespace)\b")
# "Epoch 3/10" as a line of its own, and Keras' "40/100 [===>..] - 1s - loss: 0.5" below it
_HEADING = re.compile(r"(?i)\s*epoch:?\s*[\[#]?\s*(\d{1,12})\s*(?:/|of)\s*\d{1,12}\]?[\s:.-]*$")
_KERAS = re.compile(r"\s*(\d{1,9})/(\d{1,9})\s.* - \w+: ")
# "Epoch 2/9 ━━━━ 8/8 0:00:00 • 0:00:00 99.50it/s train_loss: 0.537": Lightning 2 with rich, which prints more
# metrics such as "val_loss: 0.761" in lines below, far to the right
_RICH = re.compile(r"Epoch \d{1,12}/\d{1,12} .*it/s")
_FAR_RIGHT = re.compile(r"\s{16,}(?:[\w/.-]{1,80}: {1,9}\S{1,40}\s*){1,20}$")
# Without the key `metrics`, a line that counts has one of these; most lines of a log have none.
_MAY_MEASURE = (b"loss", b"acc", b"epoch", b'{"', b"restart", b" - ")
_AFTER = ",;:%)]}'\""  # what may follow a number


class Line(NamedTuple):
    """A line of a log that stands for itself and for skipped lines."""

    text: str
    skipped: int  # how many lines of its kind were skipped before it


def read_events(
    folder: Path, pattern: str = "", submissions: Sequence[Record] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events of a run: from events.jsonl, or from the logs if there is no such file.

    A `pattern` replaces the job's key `metrics`; then only the logs are read. `submissions` describe a job
    that has no records in the folder. Raises DocumentError if there is no run folder, or no event.
    """
    printed: list[dict[str, Any]] = []
    if pattern or not os.path.lexists(folder / EVENTS):
        printed = log_events(folder, submissions, pattern=pattern)
    if pattern and not printed:
        what = f"no line in the log of {folder} matches '{pattern}'"
        raise DocumentError.of(what, at="--metrics", fix="`sbatchgen logs` shows the lines")
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
    """Return the events in the logs of a run, or of a task, the oldest first; `from_end`: only the newest."""
    submissions = records(folder) if submissions is None else submissions
    if not submissions and not task and folder.name.isdecimal():
        submissions, task = records(folder.parent), folder.name
    found_events: list[dict[str, Any]] = []
    for record in reversed(submissions):
        paths = newest_logs(record, task) if from_end else find_logs(record, task, errors=True)
        regex = _compiled(pattern or record.value("metrics"))
        read = _last_lines if from_end else _sample
        lines = chain.from_iterable(read(path, regex) for path in paths)
        found_events = [*_events(lines, regex), *found_events]
        if from_end and paths:
            break
    return found_events


def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Return a compiled pattern; None without a pattern, or if the pattern is not valid."""
    try:
        return re.compile(pattern) if pattern else None
    except (re.error, RecursionError, OverflowError):
        return None


def _last_lines(path: Path, pattern: re.Pattern[str] | None) -> Iterator[Line]:
    """Yield the lines at the end of a log that may count, also those of a progress bar."""
    with contextlib.suppress(OSError):
        data = files.read_of_run(path, END, from_end=True)
        for part in _parts(io.BytesIO(data), pattern):
            yield Line(part.decode("utf-8", "replace"), 0)


def _sample(path: Path, pattern: re.Pattern[str] | None) -> Iterator[Line]:
    """Yield all lines of a log that show a start of its job, and a sample of the other lines that may count.

    The sample has every n-th line of each kind; n doubles when there are more than can be drawn.
    """
    sample: dict[str, list[tuple[int, bytes]]] = {}  # by kinds: lines with their numbers
    intervals, seen = Counter[str](), Counter[str]()  # by kinds: n, and how many lines there were
    with contextlib.suppress(OSError), files.regular(path, os.O_NOFOLLOW) as file:
        for number, part in enumerate(_parts(file, pattern)):
            if not (kind := _kind_of(part, pattern)):
                continue
            lines, interval = sample.setdefault(kind, []), intervals[kind] or 1
            if seen[kind] % interval == 0:
                lines.append((number, part))
            if len(lines) > 2 * MOST_LINES and kind != "start":
                del lines[1::2]
                intervals[kind] = 2 * interval
            seen[kind] += 1
    numbered = [
        (number, part, (intervals[kind] or 1) - 1) for kind, lines in sample.items() for number, part in lines
    ]
    for _, part, skipped in sorted(numbered):
        yield Line(part.decode("utf-8", "replace"), skipped)


def _parts(file: IO[bytes], pattern: re.Pattern[str] | None) -> Iterator[bytes]:
    """Yield the lines of a log that may count, and each state of a progress bar as a line."""
    size = 0
    while (line := file.readline(PIECE)) and size < MAX_BYTES:
        size += len(line)
        text = line.lower()
        if pattern or any(word in text for word in _MAY_MEASURE):
            yield from (part[:LONGEST] for part in line.rstrip().split(b"\r"))


def _kind_of(part: bytes, pattern: re.Pattern[str] | None) -> str | None:
    """Return "start", "matches", "training", "validation" or "heading" for a line; None for other lines."""
    if part.startswith(b"Job ") and START.match(part.decode("utf-8", "replace")):
        return "start"
    if pattern:
        return "matches" if pattern.search(part.decode("utf-8", "replace")) or b'{"' in part else None
    text = part.lower()
    if b"val" in text or b"test" in text:
        return "validation"
    return "training" if b"loss" in text or b"acc" in text or b'{"' in text else "heading"


def _events(lines: Iterable[Line], pattern: re.Pattern[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the events in lines; if several ranks print the same step, only the first line counts."""
    seen: set[tuple[str, int]] = set()
    is_new = False  # whether the job has been started again, and has printed no event since
    validated: Mapping[str, Any] = {}  # the last validation, which a bar repeats during the next epoch
    for line, skipped in lines if pattern else _with_epochs(lines):
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
                yield event | {"skipped": skipped} if step is None and skipped else event
            if step is not None:
                seen.add((event["event"], step))


def _with_epochs(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines; put the epoch before those that follow a heading such as "Epoch 3/10"."""
    epoch, done, total = "", 0, ""
    for line, skipped in _with_bars_joined(lines):
        is_below = False
        if heading := _HEADING.match(line):
            epoch, done, total = heading[1], 0, ""
        elif epoch and not _PLACE.search(line):
            bar = _KERAS.match(line)
            is_below = not bar and bool(_MEASURED.match(line.lstrip()))
            if bar and int(bar[1]) >= done and total in ("", bar[2]):  # any other bar shows an evaluation
                done, total, is_below = int(bar[1]), bar[2], True
        yield Line(f"epoch {epoch}: {line}" if is_below else line, skipped)


def _with_bars_joined(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines; join a progress bar of rich and the metrics below it into one line."""
    bar = Line("", 0)
    for line in lines:
        if bar.text and _FAR_RIGHT.match(line.text):
            bar = bar._replace(text=f"{bar.text.rstrip()} {line.text.strip()}"[:LONGEST])
            continue
        if bar.text:
            yield bar
        is_bar = _RICH.match(line.text)
        # The comma keeps "it/s loss" from being read as the name of a metric, "s loss".
        bar = Line(line.text.replace("it/s ", "it/s, ", 1) if is_bar else "", line.skipped)
        if not is_bar:
            yield line
    if bar.text:
        yield bar


def line_events(line: str, pattern: re.Pattern[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the events in a line of a log; `pattern` is the job's key `metrics`, or None."""
    fields: dict[str, Any] = {}
    if pattern and (match := pattern.search(line)):
        numbers = {name: _number(text) for name, text in match.groupdict().items() if text}
        fields = {"epoch": None, **numbers}  # a line may have neither a step nor an epoch
    elif (cut := line.find('{"')) >= 0:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line[cut:])
            fields = value if isinstance(value, dict) and "event" not in value else {}
    elif not pattern and (where := _PLACE.search(line)) and not _NOT_NOW.search(line, 0, where.start()):
        measured = _common_metrics(line)
        counted = {"epoch": int(where[2])} if where[1] else {"step": int(where[4])}
        fields = {**counted, **measured} if measured else {}
    for place in ("step", "epoch"):
        if isinstance(value := fields.get(place), float) and math.isfinite(value):
            fields[place] = math.floor(value)  # epoch 2.7: two are done, as the bundled trainer counts
    yield from as_events(fields)


def _common_metrics(line: str) -> dict[str, float]:
    """Return the losses and accuracies in a line of common programs, such as "loss 0.5 acc 97.5%".

    Their names begin with "val_" in a validation. A number that may belong to either is ignored.
    """
    located = ((match, match.start()) for match in _MEASURED.finditer(line))
    matches = [match for match, start in located if not _OTHER.search(line, max(0, start - 20), start)]
    names = ["loss" if match[2].lower() == "loss" else "accuracy" for match in matches]
    metrics: dict[str, float] = {}
    for match, name, kind in zip(matches, names, _kinds(line, matches, names), strict=True):
        value = float(match[3])
        if name == "accuracy":
            value = value / 100 if match[4] or value > 1 else value
        is_right = 0 <= value <= 1 if name == "accuracy" else not match[4] and math.isfinite(value)
        if is_right and kind is not None:
            metrics.setdefault(kind + name, value)
    return metrics


def _kinds(line: str, matches: Sequence[re.Match[str]], names: Sequence[str]) -> Iterator[str | None]:
    """Yield a prefix for each number: "val_" (validation), "" (training), or None if it may be either."""
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
