"""All rules over one script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from sbatchgen.errors import Problem
from sbatchgen.finding import Finding
from sbatchgen.job.job import DEFAULT_SLURM, OLD_SLURM
from sbatchgen.job.script import JobScript
from sbatchgen.lint import suppression
from sbatchgen.plan.plan import Plan
from sbatchgen.rules import judge
from sbatchgen.rules.rule import Rule
from sbatchgen.units import RELEASES

_LONGEST = 200  # characters of what an exception says


_Check = Callable[[], Iterable[Finding]]


@cache
def rules() -> dict[str, Rule[Any]]:
    """Every rule by its id, in the order of the ids."""
    found = (*suppression.RULES, *judge.rules((*judge.PLANS, *judge.SCRIPTS, *judge.JOBS)))
    return {rule.id: rule for rule in sorted(found, key=lambda rule: rule.id)}


def lint(script: JobScript, others: Sequence[Finding] = ()) -> list[Finding]:
    """The findings of a script that no comment in it turns off, in the order of its lines.

    Args:
        script: The script.
        others: Findings of other tools in it, which comments turn off as well.
    """
    failures = _Failures(script)
    found = failures.findings_of(judge.rules((*judge.SCRIPTS, *judge.JOBS)))
    found = _without_template(script, _dated(script, _without_consequences(script, found)))
    found += others
    if "sbatchgen:" in script.text:
        found = suppression.settled(
            found, script.file, script.lines, rules=[*rules()], certain=script.known, kept=failures.kept
        )
    return _sorted([*found, *failures.findings()])


# Rules of scripts that the rules of plans say as well, with the job's own places: SB014 and SB021.
_SAID_OF_PLANS = ("SB304", "SB506")


def lint_rendered(plan: Plan, text: str) -> list[Finding]:
    """The findings of a plan's script besides those of the plan: of templates, `setup` and extra options."""
    script = JobScript(
        file="job.slurm",
        text=text,
        slurm=plan.profile.slurm or DEFAULT_SLURM,
        profile=plan.profile,
        known_options=tuple(f"{name}{'=' * (to != 'true')}" for name, to in plan.extra_options.items()),
    )
    wanted = (rule for rule in judge.rules(judge.SCRIPTS) if rule.id not in _SAID_OF_PLANS)
    found = (finding for rule in wanted for finding in judge.findings(rule, script))
    return _sorted(finding for finding in found if not finding.pedantic)


_NAMES_A_TIME = re.compile(r"--?(?:wall)?time\b|[ \t]-t[ \t=]?\d")


def _without_consequences(script: JobScript, found: list[Finding]) -> list[Finding]:
    """The findings, without "no time limit" if an ignored directive gives one."""
    lines = {one.place.line for one in found if one.rule in ("SB104", "SB105", "SB113")}
    if not any(_NAMES_A_TIME.search(script.lines[line - 1]) for line in lines):
        return found
    return [one for one in found if one.rule != "SB205"]


_ABOUT_OPTIONS = ("directives", "words", "meanings", *judge.JOBS)
LONG = 1 << 17  # characters of a script that is not read for other releases as well


def _dated(script: JobScript, found: list[Finding]) -> list[Finding]:
    """The findings; if nobody has named the release, what only later releases refuse is a warning."""
    about = {rule.id for rule in judge.rules(_ABOUT_OPTIONS)}
    lines = {one.place.line for one in found if one.severity == "error" and one.rule in about}
    if not script.assumed or not lines or len(script.text) > LONG:
        return found
    old = script.read_by(OLD_SLURM)
    if old.sbatch.refusal == script.sbatch.refusal:
        return found
    takes = dict.fromkeys(lines - _refused(old), OLD_SLURM)  # a line -> the newest release that takes it
    for release in RELEASES[RELEASES.index(OLD_SLURM) + 1 : RELEASES.index(script.release)] if takes else ():
        takes |= dict.fromkeys(takes.keys() - _refused(script.read_by(release)), release)
    return [_dated_finding(one, takes.get(one.place.line, "")) for one in found]


def _refused(script: JobScript) -> set[int]:
    """The lines with errors of rules about directives and options."""
    found = _Failures(script).findings_of(judge.rules(_ABOUT_OPTIONS))
    return {one.place.line for one in found if one.severity == "error"}


def _dated_finding(finding: Finding, release: str) -> Finding:
    if not release or finding.severity != "error":
        return finding
    what = f"{finding.problem.what} (Slurm {release} and older take it)"
    return finding._replace(severity="warning", problem=finding.problem._replace(what=what))


# What follows from a placeholder in another line: the script as a whole is not read as it will be.
_OF_WHOLE = frozenset(("SB104", "SB135", "SB814"))
_OF_PLACEHOLDERS = frozenset(("SB129", "SB136", "SB812"))


def _without_template(script: JobScript, found: list[Finding]) -> list[Finding]:
    """The findings without those about lines that a program has yet to fill in."""
    lines = script.placeholders if found else {}
    if not lines:
        return found
    return [
        one
        for one in found
        if one.rule in _OF_PLACEHOLDERS or (one.place.line not in lines and one.rule not in _OF_WHOLE)
    ]


class _Failures:
    """Rules that raised, as no rule should: the other rules and the other files are judged all the same."""

    def __init__(self, script: JobScript) -> None:
        self.script = script
        self.rules: dict[str, list[str]] = {}  # by what happened: one mistake in a reader ends many rules

    def findings_of(self, wanted: Iterable[Rule[Any]]) -> list[Finding]:
        """What rules find, each up to where it raises."""
        found: list[Finding] = []
        for rule in wanted:
            found += self.kept(rule.id, partial(judge.findings, rule, self.script))
        return found

    def kept(self, rule: str, check: _Check) -> list[Finding]:
        """What a rule finds, up to where it raises."""
        found: list[Finding] = []
        try:
            found.extend(check())
        except Exception as error:  # noqa: BLE001 - any of them is a bug of ours
            import traceback

            last = traceback.extract_tb(error.__traceback__)[-1]
            cause = f"{type(error).__name__}: {str(error)[:_LONGEST]}"
            where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            self.rules.setdefault(f"{cause}, {where}", []).append(rule)
        return found

    def findings(self) -> Iterator[Finding]:
        """One for each cause, of the first rule that it ended."""
        place = self.script.at(1)
        for cause, rules in self.rules.items():
            who = f"rule {rules[0]}" if len(rules) == 1 else f"rule {rules[0]} and {len(rules) - 1} more"
            what = f"{who} failed on this script ({cause}): please report it"
            yield Finding("warning", Problem(what, place.text), rule=rules[0], place=place)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (one.place.line, one.place.column, one.rule))
