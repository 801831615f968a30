"""All rules over one script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

from sbatchgen.finding import Finding
from sbatchgen.lint import suppression
from sbatchgen.profile import Profile
from sbatchgen.rules import (
    containers,
    directives,
    environment,
    judge,
    launch,
    rendezvous,
    safety,
    steps,
    submission,
    survival,
)
from sbatchgen.rules.ask import Ask
from sbatchgen.rules.rule import Rule
from sbatchgen.rules.subject import Subject
from sbatchgen.units import Text

GROUPS = (directives, launch, rendezvous, steps, environment, containers, survival, safety, submission)
NO_CLUSTER = Profile(name=Text("unknown"), url=Text(""), checked=Text(""))


@cache
def rules() -> dict[str, Rule[Any]]:
    """Every rule by its id, in the order of the ids."""
    groups: list[Iterable[Rule[Any]]] = [
        suppression.RULES,
        *(group.RULES for group in judge.GROUPS),
        *(group.RULES for group in GROUPS),
    ]
    return {rule.id: rule for rule in sorted(chain.from_iterable(groups), key=lambda rule: rule.id)}


def lint(subject: Subject, others: Sequence[Finding] = ()) -> list[Finding]:
    """The findings of a script that no comment in it turns off, in the order of its lines.

    Args:
        subject: The script.
        others: Findings of other tools in it, which comments turn off as well.
    """
    cluster = Ask(
        job=subject.job,
        profile=subject.profile or NO_CLUSTER,
        slurm=subject.slurm,
        known=subject.profile is not None,
        script=True,
        folder=subject.folder,
        makes_log_folders=subject.makes_log_folders,
    )
    found = [*read_closely(subject), *judge.judge(cluster), *others]
    if "sbatchgen:" in subject.text:
        known = subject.profile is not None
        found = suppression.settled(found, subject.file, subject.lines, rules=[*rules()], certain=known)
    return _sorted(found)


def read_closely(subject: Subject) -> list[Finding]:
    """The findings of a script, without those about what its options ask for."""
    policies = subject.profile.policies if subject.profile else {}
    found = [
        finding
        for group in GROUPS
        for rule in group.RULES
        for finding in rule.findings(subject, subject.at_option)
    ]
    return _sorted(
        judge.with_policy(finding, policies) for finding in found if policies.get(finding.rule) != "off"
    )


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (one.place.line, one.place.column, one.rule))
