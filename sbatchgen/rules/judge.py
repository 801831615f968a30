"""The rules about what a job asks for, over a plan or a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sbatchgen.finding import Finding
from sbatchgen.rules import options, placement, resources
from sbatchgen.rules.ask import Ask

GROUPS = (placement, resources, options)


def judge(ask: Ask) -> Iterator[Finding]:
    """What they say, with the severities that the cluster's policies give them."""
    policies = ask.profile.policies
    for group in GROUPS:
        for rule in group.RULES:
            if policies.get(rule.id) != "off":
                for hit in rule.check(ask):
                    yield with_policy(rule.finding(hit, ask.job.place), policies)


def with_policy(finding: Finding, policies: Mapping[Any, Any]) -> Finding:
    """The finding with the severity that a cluster gives its rule."""
    severity = policies.get(finding.rule)
    return replace(finding, severity=severity) if severity else finding
