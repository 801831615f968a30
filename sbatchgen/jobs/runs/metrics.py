"""Reads losses and accuracies in the log of a user's own trainer, for `status`, `plot` and rehearsals.

The numbers become events like those that the bundled trainer writes. A line of the log counts if it has a
JSON object with a step or an epoch, such as {"step": 3, "loss": 0.2}. It also counts if it matches the job's
key `metrics`, a regular expression, or if it looks like the output of a common framework.
"""

import contextlib
import io
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError
from sbatchgen.jobs.runs.events import EVENTS, MAX_BYTES, PLACE_FIELDS, as_events, events
from sbatchgen.jobs.runs.job_log import JOB_START, PIECE_BYTES, find_logs, newest_logs
from sbatchgen.jobs.runs.record import Record, records

END_BYTES = 1 << 18  # bytes at the end of a log that are read for the newest numbers
MAX_LINE_BYTES = 4000  # bytes of a line that are read
MAX_LINES = 4000  # lines of each kind in a log that become points: a picture has fewer columns
# The next patterns read lines as plain programs, tqdm, Lightning and transformers print them, such as
# "Epoch 3/10 ... train_loss=0.5, val acc: 97.5%".
_SEPARATOR = r"['\"]?[\s:=\[(#'\"]{0,12}"  # characters between "epoch" and its number: ": ", "=", " ["
# "Epoch 3" or "step: 40": how far the training is
_PROGRESS = re.compile(
    rf"(?i)(?<!per )(?<![/_-])\b(?:(epoch){_SEPARATOR}(\d{{1,12}})(?:\.\d{{1,20}})?"
    rf"|(step|iter(?:ation)?){_SEPARATOR}(\d{{1,12}}))(?!\w|\.\d)"
)
# "train_loss=0.5" or "val acc: 97.5%": the words before, the metric, the number, and the percent sign
_METRIC = re.compile(
    r"(?i)(?<![a-z_])(?<!--)((?:(?:train(?:ing)?|val(?:id(?:ation)?)?|eval|test|total|avg|average|mean|running|lm)"
    r"[\s_./-]{1,2}){0,2})(loss|acc(?:uracy)?)(?:_step|_epoch)?"
    r"['\"]?[\s:=]{1,4}['\"]?(-?\d{1,12}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)(%)?(?![\w/]|[.,:]\w)"
)
# A word that says that the numbers of a line are a validation's: "Validation: loss 0.5"
_VALIDATION_WORD = re.compile(
    r"(?i)(?<![/-])\b(?:val|valid|validation|eval|evaluation|test|testing)\b(?![/-])"
)
# The end of the text before another metric than the loss or the accuracy: "box loss", "top-5-accuracy"
_OTHER_METRIC = re.compile(r"[A-Za-z][\s_.]*$|\w[/-]$")
# Words before a step or an epoch at which the numbers of the line were not measured: "best loss, epoch 3"
_OTHER_TIME = re.compile(r"(?i)\b(?:best|early|load(?:ed|ing)?|resum\w*|restor\w*|train_runtime|namespace)\b")
# "Epoch 3/10" as a line of its own, and Keras' "40/100 [===>..] - 1s - loss: 0.5" below it
_HEADING = re.compile(r"(?i)\s*epoch:?\s*[\[#]?\s*(\d{1,12})\s*(?:/|of)\s*\d{1,12}\]?[\s:.-]*$")
_KERAS_BAR = re.compile(r"\s*(\d{1,9})/(\d{1,9})\s.* - \w+: ")
# "Epoch 2/9 ━━━━ 8/8 0:00:00 • 0:00:00 99.50it/s train_loss: 0.537", a progress bar of Lightning 2 with rich
_RICH_BAR = re.compile(r"Epoch \d{1,12}/\d{1,12} .*it/s")
# Lines below such a bar, which have more metrics such as "val_loss: 0.761", far to the right
_FAR_RIGHT = re.compile(r"\s{16,}(?:[\w/.-]{1,80}: {1,9}\S{1,40}\s*){1,20}$")
# Without the key `metrics`, each line that counts has one of these texts. Most lines of a log have none, and
# are skipped before the slower patterns are tried.
_TEXTS_OF_COUNTED_LINES = (b"loss", b"acc", b"epoch", b'{"', b"restart", b" - ")
_CHARS_AFTER_NUMBER = ",;:%)]}'\""  # characters that may follow a number


class Line(NamedTuple):
    """A line of a log, which may stand for similar lines that a sample left out."""

    text: str
    skipped: int  # how many lines of its kind the sample left out before it


def read_events(
    folder: Path, pattern: str = "", submissions: Sequence[Record] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events of a run: from events.jsonl, or from the logs if there is no such file.

    A `pattern` replaces the job's key `metrics`, and then only the logs are read. `submissions` replace the
    records in the folder, for a job without records. Raises DocumentError if there is no run folder or no
    event.
    """
    from_logs: list[dict[str, Any]] = []
    if pattern or not os.path.lexists(folder / EVENTS):
        from_logs = log_events(folder, submissions, pattern=pattern)
    if pattern and not from_logs:
        what = f"no line in the log of {folder} matches '{pattern}'"
        raise DocumentError.of(what, at="--metrics", fix="`sbatchgen logs` shows the lines")
    if submissions and not from_logs and not folder.is_dir():
        what = "its log has no lines with a loss or an accuracy that are understood"
        raise DocumentError.of(what, at=str(folder), fix="--metrics REGEX says where the numbers are")
    yield from from_logs or events(folder)


def log_events(
    folder: Path,
    submissions: Sequence[Record] | None = None,
    task: str = "",
    *,
    from_end: bool = False,
    pattern: str = "",
) -> list[dict[str, Any]]:
    """Return the events in the logs of a run, or of a task of an array, the oldest first.

    With `from_end`, only the ends of the newest logs are read. `read_events` explains `submissions` and
    `pattern`.
    """
    submissions = records(folder) if submissions is None else submissions
    if not submissions and not task and folder.name.isdecimal():  # a task's folder, such as runs/sweep/3
        submissions, task = records(folder.parent), folder.name
    found_events: list[dict[str, Any]] = []
    for record in reversed(submissions):
        paths = newest_logs(record, task) if from_end else find_logs(record, task, with_stderr=True)
        regex = _compiled_or_none(pattern or record.value("metrics"))
        read = _last_lines if from_end else _sample
        lines = chain.from_iterable(read(path, regex) for path in paths)
        found_events = [*_events(lines, regex), *found_events]
        if from_end and paths:
            break
    return found_events


def _compiled_or_none(pattern: str) -> re.Pattern[str] | None:
    """Return a compiled pattern; None without a pattern, or if the pattern is not valid."""
    try:
        return re.compile(pattern) if pattern else None
    except (re.error, RecursionError, OverflowError):
        return None


def _last_lines(path: Path, pattern: re.Pattern[str] | None) -> Iterator[Line]:
    """Yield the lines at the end of a log that may count, also those of a progress bar."""
    with contextlib.suppress(OSError):
        data = files.read_run_file(path, END_BYTES, from_end=True)
        for part in _lines_that_may_count(io.BytesIO(data), pattern):
            yield Line(part.decode("utf-8", "replace"), 0)


def _sample(path: Path, pattern: re.Pattern[str] | None) -> Iterator[Line]:
    """Yield all lines of a log that show a start of its job, and a sample of the other lines that may count.

    The sample has every n-th line of each kind. Whenever it has more lines of a kind than a picture can show,
    half of them are dropped, and n doubles.
    """
    sample: dict[str, list[tuple[int, bytes]]] = {}  # for each kind, the lines with their numbers
    intervals: dict[str, int] = defaultdict(lambda: 1)  # n for each kind
    seen = Counter[str]()  # how many lines of each kind were read
    with contextlib.suppress(OSError), files.open_regular(path, os.O_NOFOLLOW) as file:
        for number, part in enumerate(_lines_that_may_count(file, pattern)):
            if not (kind := _kind_of(part, pattern)):
                continue
            lines = sample.setdefault(kind, [])
            if seen[kind] % intervals[kind] == 0:
                lines.append((number, part))
            if len(lines) > 2 * MAX_LINES and kind != "start":
                del lines[1::2]
                intervals[kind] *= 2
            seen[kind] += 1
    numbered = [
        (number, part, intervals[kind] - 1) for kind, lines in sample.items() for number, part in lines
    ]
    for _, part, skipped in sorted(numbered):
        yield Line(part.decode("utf-8", "replace"), skipped)


def _lines_that_may_count(file: IO[bytes], pattern: re.Pattern[str] | None) -> Iterator[bytes]:
    """Yield the lines of a log that may count. Each state of a progress bar is a line of its own."""
    size = 0
    while (line := file.readline(PIECE_BYTES)) and size < MAX_BYTES:
        size += len(line)
        text = line.lower()
        if pattern or any(word in text for word in _TEXTS_OF_COUNTED_LINES):
            yield from (part[:MAX_LINE_BYTES] for part in line.rstrip().split(b"\r"))


def _kind_of(part: bytes, pattern: re.Pattern[str] | None) -> str | None:
    """Return the kind of a line, for the sample: "start", "matches", "training", "validation" or "heading".

    Return None for a line that does not count.
    """
    if part.startswith(b"Job ") and JOB_START.match(part.decode("utf-8", "replace")):
        return "start"
    if pattern:
        return "matches" if pattern.search(part.decode("utf-8", "replace")) or b'{"' in part else None
    text = part.lower()
    if b"val" in text or b"test" in text:
        return "validation"
    return "training" if b"loss" in text or b"acc" in text or b'{"' in text else "heading"


def _events(lines: Iterable[Line], pattern: re.Pattern[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the events in the lines of a log.

    If several ranks print the same step, only the first line counts. After a restart of the job, an event
    "start" is added before the first event with a step.
    """
    seen: set[tuple[str, int]] = set()  # the kinds and steps of the events since the newest start
    is_restarted = False  # whether the job has been started again, and has printed no event since
    validation: Mapping[str, Any] = {}  # the metrics of the last validation
    for line, skipped in lines if pattern else _with_epochs(lines):
        if JOB_START.match(line):
            is_restarted = bool(seen)
        for event in line_events(line, pattern):
            step = event.get("step")
            if is_restarted and step is not None:
                yield {"event": "start", "step": max(0, step - 1)}
                seen.clear()
            is_restarted = False
            if step is None and event["event"] == "epoch":
                metrics = {name: event[name] for name in event if name not in PLACE_FIELDS}
                if metrics == validation:  # a progress bar repeats the validation during the next epoch
                    continue
                validation = metrics
            if step is None or (event["event"], step) not in seen:
                yield event | {"skipped": skipped} if step is None and skipped else event
            if step is not None:
                seen.add((event["event"], step))


def _with_epochs(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines; begin the lines of metrics below a heading such as "Epoch 3/10" with the epoch."""
    epoch = ""
    bar_step, bar_total = 0, ""  # the steps in the newest bar of Keras, such as 40/100
    for line, skipped in _with_bars_joined(lines):
        is_below = False  # whether the line has metrics of the epoch in the heading
        if heading := _HEADING.match(line):
            epoch, bar_step, bar_total = heading[1], 0, ""
        elif epoch and not _PROGRESS.search(line):
            bar = _KERAS_BAR.match(line)
            is_below = not bar and bool(_METRIC.match(line.lstrip()))
            if bar and int(bar[1]) >= bar_step and bar_total in ("", bar[2]):  # else it shows an evaluation
                bar_step, bar_total, is_below = int(bar[1]), bar[2], True
        yield Line(f"epoch {epoch}: {line}" if is_below else line, skipped)


def _with_bars_joined(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines; join a progress bar of rich and the metrics below it into one line."""
    bar = Line("", 0)
    for line in lines:
        if bar.text and _FAR_RIGHT.match(line.text):
            bar = bar._replace(text=f"{bar.text.rstrip()} {line.text.strip()}"[:MAX_LINE_BYTES])
            continue
        if bar.text:
            yield bar
        is_bar = _RICH_BAR.match(line.text)
        # The comma keeps "it/s loss" from being read as the name of a metric, "s loss".
        bar = Line(line.text.replace("it/s ", "it/s, ", 1) if is_bar else "", line.skipped)
        if not is_bar:
            yield line
    if bar.text:
        yield bar


def line_events(line: str, pattern: re.Pattern[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the events in a line of a log; `pattern` is the compiled key `metrics`, or None."""
    fields: dict[str, Any] = {}
    if pattern and (match := pattern.search(line)):
        numbers = {name: _number(text) for name, text in match.groupdict().items() if text}
        fields = {"epoch": None, **numbers}  # so the line counts even if it has neither a step nor an epoch
    elif (start := line.find('{"')) >= 0:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line[start:])
            fields = value if isinstance(value, dict) and "event" not in value else {}
    elif not pattern and (place := _PROGRESS.search(line)) and not _OTHER_TIME.search(line, 0, place.start()):
        metrics = _common_metrics(line)
        progress = {"epoch": int(place[2])} if place[1] else {"step": int(place[4])}
        fields = {**progress, **metrics} if metrics else {}
    for name in ("step", "epoch"):
        if isinstance(value := fields.get(name), float) and math.isfinite(value):
            fields[name] = math.floor(value)  # the bundled trainer counts finished epochs: 2 of 2.7
    yield from as_events(fields)


def _common_metrics(line: str) -> dict[str, float]:
    """Return the losses and accuracies in a line of a common framework, such as "loss 0.5 acc 97.5%".

    The names of a validation's numbers begin with "val_". A number is ignored if nothing tells whether it
    belongs to the training or to the validation.
    """
    located = ((match, match.start()) for match in _METRIC.finditer(line))
    matches = [match for match, start in located if not _OTHER_METRIC.search(line, max(0, start - 20), start)]
    names = ["loss" if match[2].lower() == "loss" else "accuracy" for match in matches]
    metrics: dict[str, float] = {}
    for match, name, prefix in zip(matches, names, _prefixes(line, matches, names), strict=True):
        value, is_percentage = float(match[3]), bool(match[4])
        if name == "accuracy":
            value = value / 100 if is_percentage or value > 1 else value
        is_valid = 0 <= value <= 1 if name == "accuracy" else not is_percentage and math.isfinite(value)
        if is_valid and prefix is not None:
            metrics.setdefault(prefix + name, value)
    return metrics


def _prefixes(line: str, matches: Sequence[re.Match[str]], names: Sequence[str]) -> Iterator[str | None]:
    """Yield the prefix of each number's name: "val_" for a validation, "" for the training.

    Yield None if nothing tells which of the two measured the number: for example, the accuracy in "loss 0.5
    val_loss 0.6 acc 0.9". `names` has "loss" or "accuracy" for each match.
    """
    words = [match[1].lower() for match in matches]  # the words before each metric, such as "train_" or ""
    kinds = ["val_" if re.search("val|test", word) else "train" if "train" in word else "" for word in words]
    if "val_" not in kinds:
        before = line[: matches[0].start()] if matches else ""
        is_validation = "train" not in before.lower() and _VALIDATION_WORD.search(before)
        yield from ("val_" if is_validation and not kind else "" for kind in kinds)
        return
    first_validated = kinds.index("val_")
    for position, (kind, name) in enumerate(zip(kinds, names, strict=True)):
        if kind or position < first_validated:
            yield kind.removeprefix("train")
        elif ("val_", name) in zip(kinds, names, strict=True):
            yield ""  # the validation has measured another number with this name
        else:  # after "val_loss 0.6" at the start of a line, "acc 0.9" belongs to the validation
            yield None if first_validated else "val_"


def _number(text: str) -> float | None:
    """Return the number in a text such as "1,024," or "97.5%"; None if it has no number."""
    try:
        return float(text.strip().strip(_CHARS_AFTER_NUMBER).replace(",", ""))
    except ValueError:
        return None
