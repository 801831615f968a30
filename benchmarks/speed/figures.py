"""Figures: ours against theirs, by rounds, and their table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any


class UnmeasurableError(Exception):
    """Why there is no figure, in one line."""


@dataclass
class Figure:
    """One line of the table: ours against theirs, round by round.

    Args:
        higher: Whether a higher ratio is better.
        target: Of the ratio ours/theirs.
    """

    name: str
    unit: str
    target: float
    higher: bool
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    against: str = "examples"
    left_out: str = ""

    @property
    def ratios(self) -> list[float]:
        """Ours divided by theirs, within each round."""
        return [mine / other for mine, other in zip(self.ours, self.theirs, strict=True)]

    @property
    def verdict(self) -> str:
        """PASS, MISS, or a dash where nothing was measured."""
        if self.left_out or not self.ours:
            return "-"
        ratio = median(self.ratios)
        return "PASS" if (ratio >= self.target if self.higher else ratio <= self.target) else "MISS"


def in_rounds(rounds: int, contenders: dict[str, Callable[[int], Any]]) -> Iterator[dict[str, Any]]:
    """The result of each contender, round by round, every other round backwards."""
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        results = {name: contenders[name](number) for name in names}
        yield {name: results[name] for name in contenders}


def guarded(figures: list[Figure], work: Callable[[], None]) -> list[Figure]:
    """The figures, filled by the work, or left out with its reason."""
    try:
        work()
    except UnmeasurableError as reason:
        for figure in figures:
            if not figure.ours:
                figure.left_out = str(reason)
    return figures


def table(figures: list[Figure]) -> Iterator[str]:
    """The lines to print."""
    rows = [("", "ours", "against", "", "unit", "ratio", "target", "")]
    for figure in figures:
        if figure.left_out or not figure.ours:
            continue
        sign = ">=" if figure.higher else "<="
        rows.append(
            (
                *(figure.name, spread(figure.ours), spread(figure.theirs), figure.against, figure.unit),
                *(spread(figure.ratios), f"{sign} {figure.target:g}", figure.verdict),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    for figure in figures:
        if figure.left_out:
            yield f"{figure.name}: left out: {figure.left_out}"


def spread(values: list[float]) -> str:
    """The median, with the lowest and the highest."""
    middle = median(values)
    digits = max(0, 2 - int(math.log10(max(abs(middle), 1))))
    low, mid, high = (f"{value:.{digits}f}" for value in (min(values), middle, max(values)))
    return mid if len(values) == 1 else f"{mid} ({low}..{high})"
