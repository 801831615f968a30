"""What became of each line of a script: the account that `adopt` gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

# understood: a key of the job or the profile says it. kept: shell that runs as it stands. dropped: the new
# script does not need it. mended: said without a defect. lost: it has no place there. The later counts.
Became = Literal["understood", "kept", "dropped", "mended", "lost"]
_RANK: tuple[Became, ...] = get_args(Became)
_WIDTH = 88  # of what is said of lines, in the table
PLAIN = ("bash", "comment")  # what need not be told


@dataclass(frozen=True, kw_only=True)
class Remark:
    """Lines and what became of them.

    Attributes:
        lines: Their numbers.
        became: What.
        parts: In words, each with the names that it is said of.
    """

    lines: tuple[int, ...]
    became: Became
    parts: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def what(self) -> str:
        """What became of them, in words."""
        return "; ".join(f"{what}: {', '.join(names)}" if names else what for what, names in self.parts)


class Remarks:
    """What became of the lines so far."""

    def __init__(self) -> None:
        self._lines: dict[int, Became] = {}
        self._rows: dict[Remark, None] = {}

    def __contains__(self, line: int) -> bool:
        return line in self._lines

    def add(self, lines: Iterable[int], became: Became, what: str, *names: str) -> None:
        """Say what became of lines; of those that were told before, what matters more counts."""
        numbers = tuple(lines)
        for line in numbers:
            self._lines[line] = max(became, self._lines.get(line, became), key=_RANK.index)
        row = Remark(lines=numbers, became=became, parts=((what, names),))
        self._rows[row] = None

    def became(self, line: int) -> Became | None:
        """What became of a line."""
        return self._lines.get(line)

    @property
    def any_lost(self) -> bool:
        """Whether something has no place."""
        return any(row.became == "lost" for row in self._rows)

    @property
    def rows(self) -> list[Remark]:
        """What was said, in the order of the lines; of neighbours in one row."""
        return list(_joined(sorted(self._rows, key=lambda row: row.lines[:1] or (0,))))


def told(rows: Iterable[Remark]) -> list[Remark]:
    """The rows without what goes without saying."""
    return list(_joined(row for row in rows if row.what not in PLAIN))


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
    parts = dict(one.parts)
    for what, names in other.parts:
        parts[what] = tuple(dict.fromkeys((*parts.get(what, ()), *names)))
    same = parts.keys() == dict(one.parts).keys()
    lines = tuple(dict.fromkeys((*one.lines, *other.lines)))
    both = Remark(lines=lines, became=one.became, parts=tuple(parts.items()))
    apart = one.became != other.became or (one.became == "lost" and not (same and one.lines == other.lines))
    plain = (one.what in PLAIN) != (other.what in PLAIN)
    long = len(both.what) > _WIDTH and one.became != "lost"
    return None if apart or plain or long or not one.lines else both


def spans(lines: Iterable[int]) -> str:
    """Numbers of lines as people write them: 3, 5-8."""
    parts: list[tuple[int, int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][1] + 1:
            parts[-1] = parts[-1][0], line
        else:
            parts.append((line, line))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
