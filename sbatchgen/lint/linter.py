"""All rules over one script."""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.finding import Finding
from sbatchgen.profile import Profile
from sbatchgen.rules import containers, directives, environment, launch, safety, submission, survival
from sbatchgen.rules.ask import Ask
from sbatchgen.rules.judge import judge
from sbatchgen.rules.subject import Subject
from sbatchgen.units import Text

GROUPS = (directives, launch, environment, containers, survival, safety, submission)
NO_CLUSTER = Profile(name=Text("unknown"), url=Text(""), checked=Text(""))


def lint(subject: Subject) -> list[Finding]:
    """The findings of a script, in the order of its lines."""
    return sorted(_findings(subject), key=lambda one: (one.place.line, one.place.column, one.rule))


def _findings(subject: Subject) -> Iterator[Finding]:
    for group in GROUPS:
        for rule in group.RULES:
            yield from rule.findings(subject, subject.at_option)
    yield from judge(
        Ask(
            job=subject.job,
            profile=subject.profile or NO_CLUSTER,
            slurm=subject.slurm,
            known=subject.profile is not None,
            script=True,
            folder=subject.folder,
            makes_log_folders=subject.makes_log_folders,
        )
    )
