"""Draws the curves of runs with letters, for a terminal: `plot --text`, or without matplotlib."""

import math
from collections.abc import Iterator, Sequence
from string import ascii_lowercase

from sbatchgen.base.quoting import one_line
from sbatchgen.jobs.runs.plot import LOG_FACTOR, METRICS_BY_KIND, PANELS, History, labels

HEIGHT = 12  # lines of a panel
MIN_WIDTH = 20  # columns of the narrowest panel
_LABEL_WIDTH = 9  # columns before the axis


def chart(histories: Sequence[History], width: int) -> str:
    """Return a panel of `width` columns for each measured metric, and below them the letter of each run."""
    lines = [line for name, title in PANELS for line in _panel(histories, name, title, max(width, MIN_WIDTH))]
    names = labels(histories)
    legend = [f"{_letter(number, 'train')} {one_line(name)}" for number, name in enumerate(names)]
    return "\n".join([*lines, f"{', '.join(legend)}; capital letters: validation", ""])


def _letter(run_number: int, kind: str) -> str:
    """Return the letter that draws a run: "a" for the training of run 0, "A" for its validation."""
    letter = ascii_lowercase[run_number % len(ascii_lowercase)]
    return letter.upper() if kind == "epoch" else letter


def _panel(histories: Sequence[History], name: str, title: str, width: int) -> Iterator[str]:
    """Yield the lines of the panel of the metric `name`; nothing if no run has measured it."""
    curves = [
        (_letter(number, kind), points)
        for kind in METRICS_BY_KIND
        for number, history in enumerate(histories)
        if (points := history.curves.get(f"{kind} {name}"))
    ]
    if not curves:
        return
    steps = [step for _, points in curves for step, _ in points]
    values = [value for _, points in curves for _, value in points]
    low, high, last_step = min(values), max(values), max(steps)
    is_log = name == "loss" and 0 < LOG_FACTOR * low < high
    factor = 100 if name == "accuracy" else 1  # an accuracy is shown in percent
    columns = width - _LABEL_WIDTH - 2
    rows = [[" "] * columns for _ in range(HEIGHT)]
    for letter, points in curves:
        for step, value in points:
            height, width_share = _share(value, low, high, is_log=is_log), _share(step, 0, last_step)
            rows[round((1 - height) * (HEIGHT - 1))][round(width_share * (columns - 1))] = letter
    yield title + (", logarithmic" if is_log else "")
    for number, row in enumerate(rows):
        label = {0: f"{high * factor:.4g}", HEIGHT - 1: f"{low * factor:.4g}"}.get(number, "")
        yield f"{label:>{_LABEL_WIDTH}} |{''.join(row)}".rstrip()
    yield f"{'0':>{_LABEL_WIDTH}} +{f' {last_step:,} steps':->{columns}}"
    yield ""


def _share(value: float, low: float, high: float, *, is_log: bool = False) -> float:
    """Return the place of a value between `low` (0) and `high` (1); with `is_log` on a logarithmic scale."""
    if is_log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low) if high > low else 0.0
