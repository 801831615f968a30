"""All rules over one script."""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.finding import Finding
from sbatchgen.rules import (
    containers,
    directives,
    environment,
    launch,
    logs,
    resources,
    safety,
    submission,
    survival,
)
from sbatchgen.rules.subject import Subject

GROUPS = (directives, launch, environment, containers, survival, logs, safety, submission)


def lint(subject: Subject) -> list[Finding]:
    """The findings of a script, in the order of its lines."""
    return sorted(_findings(subject), key=lambda one: (one.place.line, one.place.column, one.rule))


def _findings(subject: Subject) -> Iterator[Finding]:
    for group in GROUPS:
        for rule in group.RULES:
            yield from rule.findings(subject, subject.at_option)
    if subject.profile:
        yield from resources.judge(subject.job, subject.profile)
