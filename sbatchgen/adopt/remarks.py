"""What became of each line of a script: the account that `adopt` gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

# understood: a key of the job or the profile says it. kept: shell that runs as it stands. dropped: the new
# script does not need it. mended: said without a defect. lost: it has no place there. The later counts.
Became = Literal["understood", "kept", "dropped", "mended", "lost"]
_RANK: tuple[Became, ...] = ("understood", "kept", "dropped", "mended", "lost")
_WIDTH = 88  # of what is said of lines, in the table


@dataclass(frozen=True, kw_only=True)
class Remark:
    """Lines and what became of them.

    Attributes:
        lines: Their numbers.
        became: What.
        what: In words.
    """

    lines: tuple[int, ...]
    became: Became
    what: str


class Remarks:
    """What became of the lines so far."""

    def __init__(self) -> None:
        self._lines: dict[int, Became] = {}
        self._rows: list[Remark] = []

    def __contains__(self, line: int) -> bool:
        return line in self._lines

    def add(self, lines: Iterable[int], became: Became, what: str) -> None:
        """Say what became of lines; of those that were told before, what matters more counts."""
        numbers = tuple(lines)
        for line in numbers:
            self._lines[line] = max(became, self._lines.get(line, became), key=_RANK.index)
        row = Remark(lines=numbers, became=became, what=what)
        if row not in self._rows:
            self._rows.append(row)

    def became(self, line: int) -> Became | None:
        """What became of a line."""
        return self._lines.get(line)

    @property
    def lost(self) -> list[Remark]:
        """What has no place in the job, in the order of the lines."""
        return [row for row in self.rows if row.became == "lost"]

    @property
    def rows(self) -> list[Remark]:
        """One row for lines of which the same is said, in the order of the lines."""
        return list(_joined(sorted(self._rows, key=lambda row: row.lines[:1] or (0,))))


def _joined(rows: Iterable[Remark]) -> Iterator[Remark]:
    """The rows; neighbours of one kind that fit into a line of the table are one."""
    last: Remark | None = None
    for row in rows:
        if last is not None and (both := _both(last, row)):
            last = both
            continue
        if last is not None:
            yield last
        last = row
    if last is not None:
        yield last


def _both(one: Remark, other: Remark) -> Remark | None:
    """Two rows as one; None if they are better told apart."""
    if one.became != other.became or one.became == "lost" or not one.lines or not other.lines:
        return None
    if other.lines[0] > one.lines[-1] + 1:
        return None
    told = one.what.split("; ")
    what = one.what if other.what in told else f"{one.what}; {other.what}"
    if len(what) > _WIDTH:
        return None
    return Remark(lines=tuple(dict.fromkeys((*one.lines, *other.lines))), became=one.became, what=what)


def spans(lines: Iterable[int]) -> str:
    """Numbers of lines as people write them: 3, 5-8."""
    parts: list[tuple[int, int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][1] + 1:
            parts[-1] = parts[-1][0], line
        else:
            parts.append((line, line))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
