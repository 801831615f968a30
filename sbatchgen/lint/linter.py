"""All rules over one script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any

from sbatchgen.errors import Problem
from sbatchgen.finding import Finding
from sbatchgen.inputs.profile import Profile
from sbatchgen.lint import suppression
from sbatchgen.rules import (
    containers,
    directives,
    environment,
    judge,
    launch,
    names,
    rendezvous,
    safety,
    steps,
    submission,
    survival,
    syntax,
)
from sbatchgen.rules.directives import OLD
from sbatchgen.rules.rule import Rule
from sbatchgen.sbatch.releases import RELEASES
from sbatchgen.subject.ask import Ask
from sbatchgen.subject.subject import Subject
from sbatchgen.units import Text

GROUPS = (
    directives,
    launch,
    rendezvous,
    steps,
    environment,
    names,
    containers,
    survival,
    safety,
    submission,
    syntax,
)
_LONGEST = 200  # characters of what an exception says
NO_CLUSTER = Profile(name=Text("unknown"), url=Text(""), checked=Text(""))


@cache
def rules() -> dict[str, Rule[Any]]:
    """Every rule by its id, in the order of the ids."""
    groups: list[Iterable[Rule[Any]]] = [
        suppression.RULES,
        judge.ALL,
        *(group.RULES for group in GROUPS),
    ]
    return {rule.id: rule for rule in sorted(chain.from_iterable(groups), key=lambda rule: rule.id)}


def lint(subject: Subject, others: Sequence[Finding] = ()) -> list[Finding]:
    """The findings of a script that no comment in it turns off, in the order of its lines.

    Args:
        subject: The script.
        others: Findings of other tools in it, which comments turn off as well.
    """
    failures = _Failures(subject)
    checks = chain(_of_script(subject), _of_job(subject))
    found = [finding for rule, check in checks for finding in failures.kept(rule, check)]
    found = _without_template(subject, _dated(subject, _without_consequences(subject, found)))
    found += others
    if "sbatchgen:" in subject.text:
        known, ids = subject.profile is not None, [*rules()]
        found = suppression.settled(
            found, subject.file, subject.lines, rules=ids, certain=known, kept=failures.kept
        )
    return _sorted([*found, *failures.findings()])


_NAMES_A_TIME = re.compile(r"--?(?:wall)?time\b|[ \t]-t[ \t=]?\d")


def _without_consequences(subject: Subject, found: list[Finding]) -> list[Finding]:
    """The findings; where a directive for the time is not read, this is all there is to say."""
    lines = {one.place.line for one in found if one.rule in ("SB104", "SB105", "SB113")}
    if not any(_NAMES_A_TIME.search(subject.lines[line - 1]) for line in lines):
        return found
    return [one for one in found if one.rule != "SB205"]


LONG = 1 << 17  # characters of a script that is not read for other releases as well


def _dated(subject: Subject, found: list[Finding]) -> list[Finding]:
    """The findings; what a later release alone refuses is a warning where nobody has named the release."""
    lines = {one.place.line for one in found if one.severity == "error" and one.rule in _OF_SBATCH}
    if not subject.assumed or not lines or len(subject.text) > LONG:
        return found
    old = subject.read_by(OLD)
    if (old.script.returncode, old.script.messages) == (subject.script.returncode, subject.script.messages):
        return found
    takes = dict.fromkeys(lines - _refused(old), OLD)  # a line -> the newest release that takes it
    for release in RELEASES[RELEASES.index(OLD) + 1 : RELEASES.index(subject.release)] if takes else ():
        takes |= dict.fromkeys(takes.keys() - _refused(subject.read_by(release)), release)
    return [_dated_finding(one, takes.get(one.place.line, "")) for one in found]


_OF_SBATCH = frozenset(rule.id for rules_of in (directives.RULES, judge.ALL) for rule in rules_of)


def _refused(subject: Subject) -> set[int]:
    """The lines of the errors that rules about directives and options have."""
    failures = _Failures(subject)
    checks = chain(_of_script(subject), _of_job(subject))
    found = (one for rule, check in checks if rule in _OF_SBATCH for one in failures.kept(rule, check))
    return {one.place.line for one in found if one.severity == "error"}


def _dated_finding(finding: Finding, release: str) -> Finding:
    if not release or finding.severity != "error":
        return finding
    what = f"{finding.problem.what} (Slurm {release} and older take it)"
    return replace(finding, severity="warning", problem=replace(finding.problem, what=what))


# What follows from a placeholder in another line: the script as a whole is not read as it will be.
_OF_WHOLE = frozenset(("SB104", "SB135", "SB814"))
_OF_PLACEHOLDERS = frozenset(("SB129", "SB136", "SB812"))


def _without_template(subject: Subject, found: list[Finding]) -> list[Finding]:
    """The findings without those about lines that a program has yet to fill in."""
    lines = subject.placeholders if found else {}
    if not lines:
        return found
    return [
        one
        for one in found
        if one.rule in _OF_PLACEHOLDERS or (one.place.line not in lines and one.rule not in _OF_WHOLE)
    ]


def read_closely(subject: Subject) -> list[Finding]:
    """The findings of a script, without those about what its options ask for."""
    found = (finding for _, check in _of_script(subject) for finding in check())
    return _sorted(finding for finding in found if not finding.pedantic)


_Check = Callable[[], Iterable[Finding]]


def _of_script(subject: Subject) -> Iterator[tuple[str, _Check]]:
    """Each rule about a script's text, and what gives its findings."""
    policies = (subject.profile or NO_CLUSTER).policies
    for rule in judge.wanted((rule for group in GROUPS for rule in group.RULES), policies):
        yield rule.id, partial(judge.findings, rule, subject, subject.at_option, policies)


def _of_job(subject: Subject) -> Iterator[tuple[str, _Check]]:
    """The same of the rules about what its options ask for."""
    profile = subject.profile or NO_CLUSTER

    @cache
    def ask() -> Ask:
        return Ask(
            job=subject.job,
            profile=profile,
            slurm=subject.slurm,
            assumed=subject.assumed,
            known=subject.profile is not None,
            script=True,
            folder=subject.folder,
            makes_log_folders=subject.makes_log_folders,
        )

    def check(rule: Rule[Ask]) -> Iterable[Finding]:
        return judge.findings(rule, ask(), ask().job.place, profile.policies)

    for rule in judge.wanted(judge.ALL, profile.policies):
        yield rule.id, partial(check, rule)


class _Failures:
    """Rules that raised, as no rule should: the other rules and the other files are judged all the same."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.rules: dict[str, list[str]] = {}  # by what happened: one mistake in a reader ends many rules

    def kept(self, rule: str, check: _Check) -> Iterator[Finding]:
        """What a rule finds, up to where it raises."""
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - any of them is a bug of ours
            import traceback

            last = traceback.extract_tb(error.__traceback__)[-1]
            cause = f"{type(error).__name__}: {str(error)[:_LONGEST]}"
            where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            self.rules.setdefault(f"{cause}, {where}", []).append(rule)

    def findings(self) -> Iterator[Finding]:
        """One for each cause, of the first rule that it ended."""
        place = self.subject.at(1)
        for cause, rules in self.rules.items():
            who = f"rule {rules[0]}" if len(rules) == 1 else f"rule {rules[0]} and {len(rules) - 1} more"
            what = f"{who} failed on this script ({cause}): please report it"
            yield Finding("warning", Problem(what, place.text), rule=rules[0], place=place)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (one.place.line, one.place.column, one.rule))
