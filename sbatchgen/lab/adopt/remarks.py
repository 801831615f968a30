"""The remarks of an adoption: what became of the lines of a script, and why.

`join` makes the rows of the account from remarks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import chain
from typing import Literal, NamedTuple, get_args

from sbatchgen.base.frozen import frozen

# understood: a key of the job or the profile expresses the line.
# kept: the line stays shell, unchanged.
# dropped: the new script does not need the line.
# mended: a key expresses the line without its defect.
# lost: no key expresses the line.
# If a line has several outcomes, the last in this order counts.
Outcome = Literal["understood", "kept", "dropped", "mended", "lost"]
OUTCOME_ORDER: tuple[Outcome, ...] = get_args(Outcome)
_MAX_REASON = 88  # characters of the reasons in a row
UNREMARKABLE = ("bash", "comment")  # reasons whose lines have no row in the table


class Remark(NamedTuple):
    """The outcome of some lines, with the reason and the names that the reason is about.

    The lines of a statement are a range, because a long statement may have many remarks.
    """

    lines: Sequence[int]
    outcome: Outcome
    what: str  # the reason
    names: tuple[str, ...]


@frozen()
class AccountRow:
    """A row of the account: remarks of neighbouring lines with the same outcome."""

    outcome: Outcome
    _spans: dict[Sequence[int], None] = field(
        default_factory=dict
    )  # an ordered set: the lines of each remark
    _names: dict[str, dict[str, None]] = field(default_factory=dict)  # the names of each reason, in order

    @property
    def lines(self) -> list[int]:
        """The numbers of the lines; empty for a remark about the whole script."""
        return [*dict.fromkeys(chain.from_iterable(self._spans))]

    @property
    def what(self) -> str:
        """The reasons with their names, as one text."""
        return "; ".join(
            f"{what}: {', '.join(names)}" if names else what for what, names in self._names.items()
        )

    def can_take(self, remark: Remark) -> bool:
        """Return whether a remark may join the row: same outcome, and the reasons are not too long."""
        is_about_whole_script = not next(iter(self._spans), ())
        if remark.outcome != self.outcome or is_about_whole_script:
            return False
        if remark.outcome == "lost":  # lost lines share a row only with the same lines and the same reason
            return remark.lines in self._spans and remark.what in self._names
        # Try the row with the remark, because the reasons must still fit into one line.
        longer = AccountRow(self.outcome, {}, {what: dict(names) for what, names in self._names.items()})
        longer.add(remark)
        is_alike = (self.what in UNREMARKABLE) == (remark.what in UNREMARKABLE)
        return is_alike and len(longer.what) <= _MAX_REASON

    def add(self, remark: Remark) -> None:
        """Add a remark to the row."""
        self._spans[remark.lines] = None
        self._names.setdefault(remark.what, {}).update(dict.fromkeys(remark.names))


def join(remarks: Iterable[Remark]) -> list[AccountRow]:
    """Return the rows of remarks. Neighbouring remarks with the same outcome share a row if they fit."""
    rows: list[AccountRow] = []
    for remark in remarks:
        if not rows or not rows[-1].can_take(remark):
            rows.append(AccountRow(remark.outcome))
        rows[-1].add(remark)
    return rows
