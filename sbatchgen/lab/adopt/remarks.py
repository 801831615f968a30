"""The account that `adopt` gives: the outcome of each line of a script."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple, get_args

# understood: a key of the job or the profile expresses it. kept: shell that runs unchanged. dropped: the new
# script does not need it. mended: expressed without a defect. lost: it has no place there. The later counts.
Outcome = Literal["understood", "kept", "dropped", "mended", "lost"]
OUTCOME_ORDER: tuple[Outcome, ...] = get_args(Outcome)
_MAX_REASON = 88  # of the reasons in the table
UNREMARKABLE = ("bash", "comment")  # outcomes that no one needs to read


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
        """Return whether a remark may join the row: both fit into a line of the table."""
        if remark.outcome != self.outcome or not next(iter(self._spans), ()):
            return False
        if remark.outcome == "lost":
            return remark.lines in self._spans and remark.what in self._names
        both = AccountRow(self.outcome, {}, {what: dict(names) for what, names in self._names.items()})
        both.add(remark)
        return (self.what in UNREMARKABLE) == (remark.what in UNREMARKABLE) and len(both.what) <= _MAX_REASON

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
