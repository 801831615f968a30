"""What a rule finds in a resolved job or a script."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypedDict

from sbatchgen.base.errors import Problem

Severity = Literal["error", "warning", "info"]


class Place(NamedTuple):
    """Where something was written."""

    text: str = ""  # as people read it: `job.slurm:4:9`, `job.yaml:4` or a flag
    line: int = 0  # the line in a script, from 1; 0 where there is no script
    column: int = 0  # the first character in the line, from 1
    end: int = 0  # the column after the last character; 0 for the rest of the line


NOWHERE = Place()


class Edit(NamedTuple):
    """A change of a script that keeps the rest byte for byte: columns of one line, replaced by a text.

    The text may hold line breaks. `end` 0 stands for the end of the line.
    """

    line: int
    column: int
    end: int
    text: str


class ShortFinding(TypedDict):
    """A finding without its place in a script."""

    severity: Severity
    rule: str
    what: str
    at: str
    fix: str


class Finding(NamedTuple):
    """What a check says."""

    # error: Slurm refuses it, or the job can't do what it says. warning: Slurm takes it without a word. info:
    # worth knowing
    severity: Severity
    problem: Problem  # what, where, and the fix
    about_fit: bool = False  # whether the job breaks on a limit of the cluster, not on itself
    rule: str = ""  # the rule's id, as SB204
    place: Place = NOWHERE  # where in a script
    edits: tuple[Edit, ...] = ()  # a safe fix of a script, all of it or nothing
    pedantic: bool = False  # true and mostly harmless: reported only on request
    # in a few words, why the job can't run in its partition; "" if it is not about the partition
    why_not: str = ""

    def as_object(self) -> ShortFinding:
        """Return what the JSON of a review or a check has of it."""
        what, at, fix = self.problem
        return {"severity": self.severity, "rule": self.rule, "what": what, "at": at, "fix": fix}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings of a script in the order of its lines."""
    return sorted(findings, key=lambda finding: (finding.place.line, finding.place.column, finding.rule))
