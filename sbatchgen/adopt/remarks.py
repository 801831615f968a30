"""What became of each line of a script: the account that `adopt` gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, get_args

# understood: a key of the job or the profile says it. kept: shell that runs as it stands. dropped: the new
# script does not need it. mended: said without a defect. lost: it has no place there. The later counts.
Became = Literal["understood", "kept", "dropped", "mended", "lost"]
_RANK: tuple[Became, ...] = get_args(Became)
_WIDTH = 88  # of what is said of lines, in the table
PLAIN = ("bash", "comment")  # what need not be told
_Parts = dict[str, dict[str, None]]  # what is said, each with its names in order


@dataclass(frozen=True, kw_only=True)
class Remark:
    """Lines and what became of them.

    Attributes:
        lines: Their numbers; a range of those of a statement, which may be long and have many remarks.
        became: What.
        parts: In words, each with the names that it is said of.
    """

    lines: Sequence[int]
    became: Became
    parts: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def what(self) -> str:
        """What became of them, in words."""
        return _words(dict(self.parts))


class Remarks:
    """What became of the lines so far."""

    def __init__(self) -> None:
        self._lines: dict[int, Became] = {}
        self._marked: set[tuple[Sequence[int], Became]] = set()
        self._rows: dict[Remark, None] = {}

    def __contains__(self, line: int) -> bool:
        return line in self._lines

    def add(self, lines: Iterable[int], became: Became, what: str, *names: str) -> None:
        """Say what became of lines; of those that were told before, what matters more counts."""
        numbers = lines if isinstance(lines, range) and len(lines) > 1 else tuple(lines)
        for line in numbers if (numbers, became) not in self._marked else ():
            self._lines[line] = max(became, self._lines.get(line, became), key=_RANK.index)
        self._marked.add((numbers, became))
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
        return list(_joined(sorted(self._rows, key=lambda row: row.lines[0] if row.lines else 0)))


def told(rows: Iterable[Remark]) -> list[Remark]:
    """The rows without what goes without saying."""
    return list(_joined(row for row in rows if row.what not in PLAIN))


def _joined(rows: Iterable[Remark]) -> Iterator[Remark]:
    """The rows; neighbours of one kind that fit into a line of the table are one."""
    group: list[Remark] = []
    parts: _Parts = {}
    for row in rows:
        if group and not _joins(row, group[0], parts):
            yield _one(group, parts)
            group, parts = [], {}
        group.append(row)
        _add(row, parts)
    if group:
        yield _one(group, parts)


def _joins(row: Remark, first: Remark, parts: _Parts) -> bool:
    """Whether a row becomes one with those before it: the first of them, and what they say."""
    if row.became != first.became or not first.lines:
        return False
    if row.became == "lost":
        return row.lines == first.lines and all(what in parts for what, _ in row.parts)
    both = {what: dict(names) for what, names in parts.items()}
    _add(row, both)
    return (_words(parts) in PLAIN) == (row.what in PLAIN) and len(_words(both)) <= _WIDTH


def _add(row: Remark, parts: _Parts) -> None:
    """Add what a row says."""
    for what, names in row.parts:
        parts.setdefault(what, {}).update(dict.fromkeys(names))


def _one(group: Sequence[Remark], parts: _Parts) -> Remark:
    """The rows as one."""
    if len(group) == 1:
        return group[0]
    lines = dict.fromkeys(chain.from_iterable(dict.fromkeys(row.lines for row in group)))
    said = tuple((what, tuple(names)) for what, names in parts.items())
    return replace(group[0], lines=tuple(lines), parts=said)


def _words(parts: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(f"{what}: {', '.join(names)}" if names else what for what, names in parts.items())


def spans(lines: Iterable[int]) -> str:
    """Numbers of lines as people write them: 3, 5-8."""
    parts: list[tuple[int, int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][1] + 1:
            parts[-1] = parts[-1][0], line
        else:
            parts.append((line, line))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
