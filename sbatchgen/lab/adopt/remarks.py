"""The remarks of an adoption: what became of the lines of a script, and why.

`rows_of` makes the rows of the account from remarks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import chain
from typing import Literal, NamedTuple, get_args

from sbatchgen.base.frozen import frozen

# The outcome of a line in an adoption:
# understood: a key of the job or the profile expresses the line.
# kept: the line stays shell, unchanged, in the setup of the profile.
# dropped: the new script does not need the line.
# mended: a key expresses the line without its defect.
# lost: no key expresses the line.
# If a line has several outcomes, the last in this order counts.
Outcome = Literal["understood", "kept", "dropped", "mended", "lost"]
OUTCOME_ORDER: tuple[Outcome, ...] = get_args(Outcome)
_MAX_REASON_LENGTH = 88  # characters of the reasons in a row
UNREMARKABLE = ("bash", "comment")  # reasons of lines that the account does not show, such as comments


class Remark(NamedTuple):
    """The outcome of some lines, with the reason and the names that the reason is about.

    The lines of a statement are a range, because its size does not grow with the statement.
    """

    lines: Sequence[int]
    outcome: Outcome
    reason: str  # why the lines have this outcome
    names: tuple[str, ...]  # names of options, variables or modules, which the account shows after the reason


@frozen()
class AccountRow:
    """A row of the account: remarks of neighbouring lines with the same outcome."""

    outcome: Outcome
    # an ordered set of the lines of each remark
    _spans: dict[Sequence[int], None] = field(default_factory=dict)
    # by reason: an ordered set of the names of all remarks with this reason
    _names_by_reason: dict[str, dict[str, None]] = field(default_factory=dict)

    @property
    def lines(self) -> list[int]:
        """The numbers of the lines; empty for a remark about the whole script."""
        return [*dict.fromkeys(chain.from_iterable(self._spans))]

    @property
    def reason(self) -> str:
        """The reasons with their names, as one text."""
        texts = [
            f"{reason}: {', '.join(names)}" if names else reason
            for reason, names in self._names_by_reason.items()
        ]
        return "; ".join(texts)

    def can_take(self, remark: Remark) -> bool:
        """Return whether a remark may join the row: same outcome, and reasons that fit into a line."""
        is_about_whole_script = not next(iter(self._spans), ())  # the first remark has no lines
        if remark.outcome != self.outcome or is_about_whole_script:
            return False
        if remark.outcome == "lost":  # lost lines share a row only with the same lines and the same reason
            return remark.lines in self._spans and remark.reason in self._names_by_reason
        copied_names = {reason: dict(names) for reason, names in self._names_by_reason.items()}
        longer_row = AccountRow(self.outcome, {}, copied_names)
        longer_row.add(remark)
        is_alike = (self.reason in UNREMARKABLE) == (remark.reason in UNREMARKABLE)
        return is_alike and len(longer_row.reason) <= _MAX_REASON_LENGTH

    def add(self, remark: Remark) -> None:
        """Add a remark to the row."""
        self._spans[remark.lines] = None
        self._names_by_reason.setdefault(remark.reason, {}).update(dict.fromkeys(remark.names))


def rows_of(remarks: Iterable[Remark]) -> list[AccountRow]:
    """Return the rows of the account. Neighbouring remarks with the same outcome share a row if they fit."""
    rows: list[AccountRow] = []
    for remark in remarks:
        if not rows or not rows[-1].can_take(remark):
            rows.append(AccountRow(remark.outcome))
        rows[-1].add(remark)
    return rows
