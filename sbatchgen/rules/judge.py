"""The rules about what a job asks for, over a plan or a script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sbatchgen.finding import Finding
from sbatchgen.rules import options, placement, resources
from sbatchgen.rules.ask import Ask

GROUPS = (placement, resources, options)


def judge(ask: Ask) -> Iterator[Finding]:
    """What they say, with the severities that the cluster's policies give them."""
    for group in GROUPS:
        for rule in group.RULES:
            policy = ask.profile.policies.get(rule.id) if ask.profile.policies else None
            if policy == "off":
                continue
            for finding in rule.findings(ask, ask.job.place):
                yield replace(finding, severity=policy) if policy else finding
