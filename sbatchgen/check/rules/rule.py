"""A rule, what it finds, and the list that a module's rules are in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Flag, auto
from typing import Any, Generic, NamedTuple, TypeVar

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import NOWHERE, Edit, Finding, Place, Severity
from sbatchgen.base.frozen import frozen

CUT_SHORT = "SB336"  # the rule that says what a dry run does not show
J = TypeVar("J")  # what a rule judges: a Job of any kind, a DryRun, or the comments of a script


class Applies(Flag):
    """The scripts and lines that a rule is true of, beside whole scripts that a person submits."""

    EXAMPLES = auto()  # scripts of documents, in which readers have something to fill in
    PARTS = auto()  # scripts of documents that lack their first line, and perhaps more
    UNFILLED = auto()  # filled lines of scripts in which another line is yet to be filled in
    PLACEHOLDERS = auto()  # lines that are yet to be filled in
    TEMPLATES = auto()  # scripts that a program fills in
    WRITERS = auto()  # scripts without directives that write a job script
    PURE_WRITERS = auto()  # those whose #SBATCH lines are all parts of scripts that they write
    RENDERED = auto()  # scripts that sbatchgen renders: the rules of resolved jobs judge these jobs too
    NOT_WRITERS = EXAMPLES | PARTS | UNFILLED | RENDERED
    USUALLY = NOT_WRITERS | WRITERS
    AS_TEXT = USUALLY | PURE_WRITERS  # the lines do harm wherever they run, whatever writes them


class Hit(NamedTuple):
    """What a rule found."""

    at: Place | str  # a place, or the long name of the option that it is about
    what: str  # the facts, and what follows from them
    fix: str = ""  # something to type
    severity: Severity | None = None  # if it is not the rule's
    edits: tuple[Edit, ...] = ()  # a fix that changes nothing else in the script
    pedantic: bool | None = None  # whether it is off by default, if that differs from the rule's
    # In a few words, why the job can't run in the partition; "" if it is not about the partition.
    why_not: str = ""


Check = Callable[[J], Iterator[Hit]]


@frozen(eq=False)
class Rule(Generic[J]):
    """A mistake that a job can have, and the function that finds it."""

    id: str
    severity: Severity
    title: str  # a phrase that starts with a small letter, without a full stop
    check: Check[J]  # the function that judges a job
    about_fit: bool = False  # whether it compares a job with its cluster
    has_defaults: bool = False  # whether it compares with Slurm's defaults where no cluster is known
    pedantic: bool = False  # whether it is off by default: it is true, and mostly harmless
    applies: Applies = Applies.USUALLY  # the scripts and lines that it is true of
    marks_secret: bool = False  # whether its findings mark what no report may show again
    # Texts of which a script has one wherever the rule finds something; empty where any script may break it.
    words: tuple[str, ...] = ()
    # The manual that it follows from: a man page of Slurm 26.05 or bash 5.2, a file of torch 2.13, or another
    # page. "" if public scripts show it, as tests/fixtures/seen.tsv says.
    source: str = ""
    report: str = ""  # the address of a public report of the mistake, for one that public scripts do not show

    def finding(self, hit: Hit, at: Place = NOWHERE) -> Finding:
        """Return a hit as a finding; `at` is the place of the option that it names."""
        at = at if isinstance(hit.at, str) else hit.at
        severity, pedantic = hit.severity or self.severity, hit.pedantic
        pedantic = self.pedantic and severity != "error" if pedantic is None else pedantic
        problem = Problem(hit.what, at.text, hit.fix)
        return Finding(severity, problem, self.about_fit, self.id, at, hit.edits, pedantic, hit.why_not)


class Rules(list[Rule[J]]):
    """Rules of a module: `Rules[JobScript]` of scripts, `Rules[JudgedJob]` of jobs, `Rules[Job]` of both.

    `source` is that of rules which name none.
    """

    def __init__(self, *, source: str = "") -> None:
        super().__init__()
        self.source = source

    def add(
        self, rule_id: str, severity: Severity, title: str, *, source: str = "", **more: Any
    ) -> Callable[[Check[J]], Check[J]]:
        """Return a decorator that makes a function a rule; `more` are further attributes of `Rule`."""

        def register(check: Check[J]) -> Check[J]:
            self.append(Rule(rule_id, severity, title, check, source=source or self.source, **more))
            return check

        return register

    def add_fit(
        self, rule_id: str, severity: Severity, title: str, *, source: str = "slurm.conf(5)", **more: Any
    ) -> Callable[[Check[J]], Check[J]]:
        """Return the decorator of a rule that compares a job with its cluster."""
        return self.add(rule_id, severity, title, source=source, about_fit=True, **more)

    def again(
        self, rules: Rules[Any], rule_id: str, severity: Severity | None = None
    ) -> Callable[[Check[J]], Check[J]]:
        """Return a decorator that makes a function a rule of another module, for what this one judges."""
        rule = next(rule for rule in rules if rule.id == rule_id)
        return self.add(rule_id, severity or rule.severity, rule.title, source=rule.source)
