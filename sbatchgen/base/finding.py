"""Findings: the reports of rules about a resolved job or a script."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypedDict

from sbatchgen.base.errors import Problem

Severity = Literal["error", "warning", "info"]


class Place(NamedTuple):
    """The place of a value: a position in a script, or a line of a document, or a flag."""

    text: str = ""  # for people: `job.slurm:4:9`, `job.yaml:4` or a flag
    line: int = 0  # the line in a script, counted from 1; 0 without a script
    column: int = 0  # the first character in the line, counted from 1
    end: int = 0  # the column after the last character; 0 for the rest of the line


NOWHERE = Place()


class Edit(NamedTuple):
    """A change of a script: a text that replaces some columns of one line. All other bytes stay.

    The text may hold line breaks. `end` 0 means the end of the line.
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
    """One report of a check: a problem with its severity, its rule and its place."""

    # error: Slurm refuses the job, or the job can't do its work. warning: Slurm accepts the mistake silently.
    # info: a fact that is worth knowing
    severity: Severity
    problem: Problem
    about_fit: bool = False  # whether the job exceeds a limit of the cluster
    rule: str = ""  # the rule's id, such as SB204
    place: Place = NOWHERE  # the place in a script
    edits: tuple[Edit, ...] = ()  # a safe fix of a script, which is applied as a whole
    pedantic: bool = False  # correct and usually harmless: reported only on request
    # the reason why the job can't run in its partition, in a few words; "" for another problem
    why_not: str = ""

    def as_object(self) -> ShortFinding:
        """Return the finding as an object for the JSON of a review or a check."""
        what, at, fix = self.problem
        return {"severity": self.severity, "rule": self.rule, "what": what, "at": at, "fix": fix}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings of a script in the order of its lines."""
    return sorted(findings, key=lambda finding: (finding.place.line, finding.place.column, finding.rule))
