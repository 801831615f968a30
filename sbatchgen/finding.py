"""What a rule finds in a resolved job or a script."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypedDict

from sbatchgen.errors import Problem

Severity = Literal["error", "warning", "info"]


class Place(NamedTuple):
    """Where something was written.

    Attributes:
        text: As people read it: `job.slurm:4:9`, `job.yaml:4` or a flag.
        line: The line in a script, from 1; 0 where there is no script.
        column: The first character in the line, from 1.
        end: The column after the last character; 0 for the rest of the line.
    """

    text: str = ""
    line: int = 0
    column: int = 0
    end: int = 0


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
    """What a check says.

    Attributes:
        severity: error: Slurm refuses it, or the job can't do what it says. warning: Slurm takes it without
            a word. info: worth knowing.
        problem: What, where, and the fix.
        about_fit: Whether the job breaks on a limit of the cluster, not on itself.
        rule: The rule's id, as SB204.
        place: Where in a script.
        edits: A safe fix of a script, all of it or nothing.
        pedantic: True and mostly harmless: reported only on request.
        why_not: In a few words, why the job can't run in its partition; "" if it is not about the partition.
    """

    severity: Severity
    problem: Problem
    about_fit: bool = False
    rule: str = ""
    place: Place = NOWHERE
    edits: tuple[Edit, ...] = ()
    pedantic: bool = False
    why_not: str = ""

    def as_object(self) -> ShortFinding:
        """Return what the JSON of a review or a check has of it."""
        what, at, fix = self.problem
        return {"severity": self.severity, "rule": self.rule, "what": what, "at": at, "fix": fix}
