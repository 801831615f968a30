"""All rules over one script."""

from __future__ import annotations

from collections.abc import Iterable

from sbatchgen.finding import Finding
from sbatchgen.profile import Profile
from sbatchgen.rules import (
    containers,
    directives,
    environment,
    launch,
    rendezvous,
    safety,
    steps,
    submission,
    survival,
)
from sbatchgen.rules.ask import Ask
from sbatchgen.rules.judge import judge, with_policy
from sbatchgen.rules.subject import Subject
from sbatchgen.units import Text

GROUPS = (directives, launch, rendezvous, steps, environment, containers, survival, safety, submission)
NO_CLUSTER = Profile(name=Text("unknown"), url=Text(""), checked=Text(""))


def lint(subject: Subject) -> list[Finding]:
    """The findings of a script, in the order of its lines."""
    cluster = Ask(
        job=subject.job,
        profile=subject.profile or NO_CLUSTER,
        slurm=subject.slurm,
        known=subject.profile is not None,
        script=True,
        folder=subject.folder,
        makes_log_folders=subject.makes_log_folders,
    )
    return _sorted([*read_closely(subject), *judge(cluster)])


def read_closely(subject: Subject) -> list[Finding]:
    """The findings of a script, without those about what its options ask for."""
    policies = subject.profile.policies if subject.profile else {}
    found = [
        finding
        for group in GROUPS
        for rule in group.RULES
        for finding in rule.findings(subject, subject.at_option)
    ]
    return _sorted(with_policy(finding, policies) for finding in found if policies.get(finding.rule) != "off")


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (one.place.line, one.place.column, one.rule))
