"""Rules, their hits, and the lists in which modules register their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Flag, auto
from typing import Any, Generic, NamedTuple, TypeVar

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import NOWHERE, Edit, Finding, Place, Severity
from sbatchgen.base.frozen import frozen

CUT_SHORT = "SB336"  # the rule about steps that a dry run does not show
J = TypeVar("J")  # what a rule judges: a Job of any kind, a DryRun, or the comments of a script


class Applies(Flag):
    """The scripts and lines to which a rule also applies, beside whole scripts that a person submits."""

    EXAMPLES = auto()  # scripts in documents, which may have placeholders for readers
    PARTS = auto()  # scripts in documents without a first line, which may lack more lines
    UNFILLED = auto()  # lines without placeholders, in scripts with placeholders in other lines
    PLACEHOLDERS = auto()  # lines with placeholders
    TEMPLATES = auto()  # scripts that a program fills in
    WRITERS = auto()  # scripts without directives that write a job script
    PURE_WRITERS = auto()  # writers of job scripts whose #SBATCH lines are all text of the job script
    RENDERED = auto()  # scripts that sbatchgen renders; the rules of resolved jobs judge these jobs too
    NOT_WRITERS = EXAMPLES | PARTS | UNFILLED | RENDERED  # for rules about scripts that are jobs
    USUALLY = NOT_WRITERS | WRITERS  # for most rules
    ANY_TEXT = USUALLY | PURE_WRITERS  # for rules about lines that do harm in any script


class Hit(NamedTuple):
    """A mistake that a rule found in a job."""

    at: Place | str  # a place, or the long name of an option, whose place is meant
    what: str  # the message: the facts, and their consequence
    fix: str = ""  # a text to type
    severity: Severity | None = None  # None for the rule's severity
    edits: tuple[Edit, ...] = ()  # the fix as changes of the script, if it is safe
    pedantic: bool | None = None  # whether the hit is off by default; None for the rule's answer
    # A few words on why the job can't run in a partition; "" for hits that are not about a partition.
    why_not: str = ""


Check = Callable[[J], Iterator[Hit]]


@frozen(eq=False)
class Rule(Generic[J]):
    """A mistake that a job can have, and the function that finds it."""

    id: str
    severity: Severity
    title: str  # a phrase that starts with a small letter, without a full stop
    check: Check[J]  # the function that judges a job
    about_fit: bool = False  # whether the rule compares a job with its cluster
    has_defaults: bool = False  # whether the rule uses Slurm's defaults if no cluster is known
    pedantic: bool = False  # whether the rule is off by default, as its mistake is usually harmless
    applies: Applies = Applies.USUALLY  # the scripts and lines to which the rule applies
    marks_secret: bool = False  # whether the findings mark a secret, which no report may show again
    # A script that breaks the rule holds at least one of these texts; empty if any script may break the rule.
    words: tuple[str, ...] = ()
    # The manual that the rule follows: a man page of Slurm 26.05 or bash 5.2, a file of torch 2.13 or another
    # page. "" if public scripts show the mistake, as tests/fixtures/seen.tsv lists them.
    source: str = ""
    report: str = ""  # the address of a public report of the mistake, if public scripts do not show it

    def finding(self, hit: Hit, at: Place = NOWHERE) -> Finding:
        """Return a hit as a finding; `at` is the place of the option, if the hit names an option."""
        at = at if isinstance(hit.at, str) else hit.at
        severity, pedantic = hit.severity or self.severity, hit.pedantic
        if pedantic is None:
            pedantic = self.pedantic and severity != "error"
        problem = Problem(hit.what, at.text, hit.fix)
        return Finding(severity, problem, self.about_fit, self.id, at, hit.edits, pedantic, hit.why_not)


class Rules(list[Rule[J]]):
    """The rules of a module: `Rules[JobScript]` judge scripts, `Rules[JudgedJob]` jobs, `Rules[Job]` both.

    `source` is the source of rules that name no source.
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
        self, rule_id: str, severity: Severity, title: str, *, source: str = "", **more: Any
    ) -> Callable[[Check[J]], Check[J]]:
        """Return a decorator that makes a function a rule about a job and its cluster."""
        source = source or self.source or "slurm.conf(5)"
        return self.add(rule_id, severity, title, source=source, about_fit=True, **more)

    def add_for_dry_run(
        self, rules: Rules[Any], rule_id: str, severity: Severity | None = None
    ) -> Callable[[Check[J]], Check[J]]:
        """Return a decorator that makes a function the check of a dry run for a rule of scripts.

        `rules` are the rules of the module that has the rule. The check has all marks of the rule, except
        those about the text of a script: `words` and `applies`.
        """
        rule = next(rule for rule in rules if rule.id == rule_id)
        severity = severity or rule.severity
        checked = replace(rule, severity=severity, words=(), applies=Applies.USUALLY)

        def register(check: Check[J]) -> Check[J]:
            self.append(replace(checked, check=check))
            return check

        return register
