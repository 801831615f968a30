"""A rule, and the lists of rules that its decorators fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from sbatchgen.errors import Problem
from sbatchgen.finding import Edit, Finding, Place, Severity

S = TypeVar("S")


class Hit(NamedTuple):
    """What a rule found.

    Attributes:
        at: Where: a place, or the long name of the option it is about.
        what: The facts, and what follows from them.
        fix: Something to type.
        severity: If it is another than the rule's.
        edits: A fix that keeps the script's meaning but for what the rule is about.
        pedantic: Whether it is told only to those who ask for it, if that is not as the rule has it.
    """

    at: Place | str
    what: str
    fix: str = ""
    severity: Severity | None = None
    edits: tuple[Edit, ...] = ()
    pedantic: bool | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Rule(Generic[S]):
    """A rule; `about_fit` where it compares a job with its cluster.

    A `pedantic` one is off unless it is asked for: what it says is true, and mostly harmless.
    """

    id: str
    severity: Severity
    title: str
    check: Callable[[S], Iterator[Hit]]
    about_fit: bool = False
    pedantic: bool = False

    def findings(self, subject: S, place: Callable[[str], Place]) -> Iterator[Finding]:
        """What it says about a subject; `place` tells where an option was written."""
        return (self.finding(hit, place) for hit in self.check(subject))

    def finding(self, hit: Hit, place: Callable[[str], Place]) -> Finding:
        """A hit as a finding."""
        at = place(hit.at) if isinstance(hit.at, str) else hit.at
        problem = Problem(hit.what, at.text, hit.fix)
        severity, pedantic = hit.severity or self.severity, hit.pedantic
        pedantic = self.pedantic and severity != "error" if pedantic is None else pedantic
        return Finding(severity, problem, self.about_fit, self.id, at, hit.edits, pedantic)


class Rules(list[Rule[S]]):
    """Rules about one kind of subject, in the order in which they were written."""

    def add(
        self,
        rule_id: str,
        severity: Severity,
        title: str,
        *,
        about_fit: bool = False,
        pedantic: bool = False,
    ) -> Callable[[Callable[[S], Iterator[Hit]]], Callable[[S], Iterator[Hit]]]:
        """A decorator which makes a function a rule. The title is a sentence without a full stop."""

        def register(check: Callable[[S], Iterator[Hit]]) -> Callable[[S], Iterator[Hit]]:
            self.append(Rule(rule_id, severity, title, check, about_fit, pedantic))
            return check

        return register
