"""The types of rules: a rule, a hit that a rule reports, and the list in which a module registers its rules.

A module of rules has a list `RULES`, and decorates each function that finds a mistake:

    @RULES.add("SB306", "warning", "a port that is the same for every job", words=("PORT",))
    def _shared_port(script: JobScript) -> Iterator[Hit]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Flag, auto
from typing import Any, Generic, NamedTuple, TypeVar

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import NOWHERE, Edit, Finding, Place, Severity
from sbatchgen.base.frozen import frozen

# The id of the rule about a dry run that ends at a limit before its script does. `lint` has an exit status of
# its own for such a finding.
UNFINISHED_DRY_RUN = "SB336"
J = TypeVar("J")  # the type that a rule judges: a Job of any kind, a DryRun, or the comments of a script


class Applies(Flag):
    """Kinds of scripts and of lines to which a rule may apply.

    Each rule applies to a whole script that a person submits. A flag adds a further kind.
    """

    EXAMPLES = auto()  # scripts in documents, which may have placeholders for readers
    PARTS = auto()  # scripts in documents that lack the first line #!, and may lack other lines too
    NEAR_PLACEHOLDERS = auto()  # lines without a placeholder, in a script whose other lines have some
    PLACEHOLDERS = auto()  # lines with a placeholder
    TEMPLATES = auto()  # scripts that a program fills in before they are submitted
    WRITERS = auto()  # scripts that write a job script, for example with cat <<END, and have no directives
    PURE_WRITERS = auto()  # scripts that write a job script, and whose #SBATCH lines all belong to its text
    RENDERED = auto()  # scripts that sbatchgen renders; the rules of resolved jobs judge these jobs too
    # The usual sets of these flags:
    JOB_SCRIPTS = EXAMPLES | PARTS | NEAR_PLACEHOLDERS | RENDERED  # for rules about a job that Slurm runs
    USUALLY = JOB_SCRIPTS | WRITERS  # for most rules
    ANY_TEXT = USUALLY | PURE_WRITERS  # for rules about lines that do harm in any script


class Hit(NamedTuple):
    """A mistake that a rule found in a job."""

    at: Place | str  # the place of the mistake, or the long name of the option whose place is meant
    what: str  # the message: the facts, and their consequence
    fix: str = ""  # a text to type, or one action
    severity: Severity | None = None  # None for the severity of the rule
    edits: tuple[Edit, ...] = ()  # the changes of the script that make the fix; () if no change is safe
    pedantic: bool | None = None  # whether only --pedantic shows the hit; None for what the rule says
    # Why the job can't run in its partition, such as "no GPUs", for the choice of another partition. "" for
    # hits that are not about a partition.
    why_not: str = ""


Check = Callable[[J], Iterator[Hit]]


@frozen(eq=False)
class Rule(Generic[J]):
    """A mistake that a job can have, and the function that finds it."""

    id: str
    severity: Severity
    title: str  # a phrase that starts with a small letter, without a full stop
    check: Check[J]  # the function that judges a job
    about_fit: bool = False  # whether the rule compares a job with the limits of its cluster
    # For a rule about fit: whether it also judges jobs of an unknown cluster, with Slurm's default limits.
    has_defaults: bool = False
    pedantic: bool = False  # whether the rule is off by default, as its mistake is usually harmless
    applies: Applies = Applies.USUALLY  # the scripts and lines to which the rule applies
    marks_secret: bool = False  # whether the place of a hit is a secret, which no report may show again
    # A script that breaks the rule holds at least one of these texts, so other scripts are not judged. () if
    # any script may break the rule. sbatch takes short forms of options: for --signal, the text is --si.
    words: tuple[str, ...] = ()
    # The manual that the rule follows: a man page of Slurm 26.05 or bash 5.2, a file of torch 2.13 or another
    # page. "" if public scripts show the mistake; tests/fixtures/seen.tsv lists these scripts.
    source: str = ""
    report: str = ""  # the address of a public report of the mistake, if no public script shows it

    def finding(self, hit: Hit, at: Place = NOWHERE) -> Finding:
        """Return a hit of this rule as a finding. If the hit names an option, `at` is the option's place."""
        at = at if isinstance(hit.at, str) else hit.at
        severity, pedantic = hit.severity or self.severity, hit.pedantic
        if pedantic is None:
            pedantic = self.pedantic and severity != "error"
        problem = Problem(hit.what, at.text, hit.fix)
        return Finding(severity, problem, self.about_fit, self.id, at, hit.edits, pedantic, hit.why_not)


class Rules(list[Rule[J]]):
    """The rules of a module, in order.

    `Rules[JobScript]` judge scripts, `Rules[JudgedJob]` resolved jobs, and `Rules[Job]` both.
    """

    def __init__(self, *, source: str = "") -> None:
        super().__init__()
        self.source = source  # the source of each rule that names no source of its own

    def add(
        self, rule_id: str, severity: Severity, title: str, *, source: str = "", **more: Any
    ) -> Callable[[Check[J]], Check[J]]:
        """Return a decorator that adds a function as a rule; `more` are further attributes of `Rule`."""

        def register(check: Check[J]) -> Check[J]:
            self.append(Rule(rule_id, severity, title, check, source=source or self.source, **more))
            return check

        return register

    def add_fit(
        self, rule_id: str, severity: Severity, title: str, *, source: str = "", **more: Any
    ) -> Callable[[Check[J]], Check[J]]:
        """Return a decorator that adds a function as a rule about the limits of a job's cluster."""
        source = source or self.source or "slurm.conf(5)"
        return self.add(rule_id, severity, title, source=source, about_fit=True, **more)

    def add_for_dry_run(
        self, script_rules: Rules[Any], rule_id: str, severity: Severity | None = None
    ) -> Callable[[Check[J]], Check[J]]:
        """Return a decorator that adds a function which finds a script's mistake in a dry run.

        `script_rules` are the rules of the module that finds the same mistake in the script. The new rule has
        all marks of that rule, such as id, title and source, but not `words` and `applies`, which are about
        the text of a script.
        """
        rule = next(rule for rule in script_rules if rule.id == rule_id)
        severity = severity or rule.severity
        checked = replace(rule, severity=severity, words=(), applies=Applies.USUALLY)

        def register(check: Check[J]) -> Check[J]:
            self.append(replace(checked, check=check))
            return check

        return register
