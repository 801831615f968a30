"""The account that `adopt` gives: the outcome of each line of a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple, get_args

# understood: a key of the job or the profile expresses it. kept: shell that runs unchanged. dropped: the new
# script does not need it. mended: expressed without a defect. lost: it has no place there. The later counts.
Outcome = Literal["understood", "kept", "dropped", "mended", "lost"]
_RANK: tuple[Outcome, ...] = get_args(Outcome)
_WIDTH = 88  # of the reasons in the table
PLAIN = ("bash", "comment")  # outcomes that no one needs to read


class Remark(NamedTuple):
    """Lines with their outcome, its reason, and the names that the reason is about.

    The lines of a statement are a range: there may be many of them, with many remarks.
    """

    lines: Sequence[int]
    outcome: Outcome
    what: str
    names: tuple[str, ...]


@dataclass
class AccountRow:
    """Remarks of neighbouring lines with one outcome, as people read them."""

    outcome: Outcome
    _spans: dict[Sequence[int], None] = field(default_factory=dict)
    _names: dict[str, dict[str, None]] = field(default_factory=dict)  # by reason, in order

    @property
    def lines(self) -> list[int]:
        """The numbers of the lines; empty for a remark about the whole script."""
        return [*dict.fromkeys(chain.from_iterable(self._spans))]

    @property
    def what(self) -> str:
        """The reasons in words."""
        return "; ".join(
            f"{what}: {', '.join(names)}" if names else what for what, names in self._names.items()
        )

    def takes(self, remark: Remark) -> bool:
        """Whether a remark may join the row: both fit into a line of the table."""
        if remark.outcome != self.outcome or not next(iter(self._spans), ()):
            return False
        if remark.outcome == "lost":
            return remark.lines in self._spans and remark.what in self._names
        both = AccountRow(self.outcome, {}, {what: dict(names) for what, names in self._names.items()})
        both.add(remark)
        return (self.what in PLAIN) == (remark.what in PLAIN) and len(both.what) <= _WIDTH

    def add(self, remark: Remark) -> None:
        """Add a remark."""
        self._spans[remark.lines] = None
        self._names.setdefault(remark.what, {}).update(dict.fromkeys(remark.names))


def joined(remarks: Iterable[Remark]) -> list[AccountRow]:
    """Return the rows of remarks; neighbours that fit into a line of the table are one row."""
    rows: list[AccountRow] = []
    for remark in remarks:
        if not rows or not rows[-1].takes(remark):
            rows.append(AccountRow(remark.outcome))
        rows[-1].add(remark)
    return rows


class Remarks:
    """The remarks about the lines of a script."""

    def __init__(self) -> None:
        self._outcomes: dict[int, Outcome] = {}
        self._marked: set[tuple[Sequence[int], Outcome]] = set()
        self._remarks: dict[Remark, None] = {}

    def __contains__(self, line: int) -> bool:
        return line in self._outcomes

    def add(self, lines: Iterable[int], outcome: Outcome, what: str, *names: str) -> None:
        """Note the outcome of lines; the more important of several outcomes counts."""
        numbers = lines if isinstance(lines, range) and len(lines) > 1 else tuple(lines)
        for line in numbers if (numbers, outcome) not in self._marked else ():
            self._outcomes[line] = max(outcome, self._outcomes.get(line, outcome), key=_RANK.index)
        self._marked.add((numbers, outcome))
        self._remarks[Remark(numbers, outcome, what, names)] = None

    def outcome(self, line: int) -> Outcome | None:
        """Return the outcome of a line."""
        return self._outcomes.get(line)

    @property
    def any_lost(self) -> bool:
        """Whether something has no place."""
        return any(remark.outcome == "lost" for remark in self._remarks)

    def sorted(self) -> list[Remark]:
        """Return the remarks in the order of the lines."""
        return sorted(self._remarks, key=lambda remark: remark.lines[0] if remark.lines else 0)
