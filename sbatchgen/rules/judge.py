"""The rules about what a job asks for, over a plan or a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sbatchgen.finding import Finding, Place
from sbatchgen.rules import options, placement, resources, values
from sbatchgen.rules.rule import Rule, S
from sbatchgen.subject.ask import Ask

ALL = (*placement.RULES, *resources.RULES, *options.RULES, *values.RULES)


def judge(ask: Ask) -> Iterator[Finding]:
    """What they say, with the severities that the cluster's policies give them."""
    policies = ask.profile.policies
    for rule in wanted(ALL, policies) if policies else ALL:
        for hit in rule.check(
            ask
        ):  # not by `findings`: a plan is judged in each render, and most rules say nothing
            finding = rule.finding(hit, ask.job.place)
            if not finding.pedantic or rule.id in policies:
                yield with_policy(finding, policies)


def wanted(rules: Iterable[Rule[S]], policies: Mapping[Any, Any]) -> Iterator[Rule[S]]:
    """The rules that the cluster has not turned off."""
    return (rule for rule in rules if policies.get(rule.id) != "off")


def findings(
    rule: Rule[S], subject: S, place: Callable[[str], Place], policies: Mapping[Any, Any]
) -> Iterator[Finding]:
    """What a rule says, with the severity that the cluster gives it."""
    return (with_policy(finding, policies) for finding in rule.findings(subject, place))


def with_policy(finding: Finding, policies: Mapping[Any, Any]) -> Finding:
    """The finding with the severity that a cluster gives its rule."""
    severity = policies.get(finding.rule)
    return replace(finding, severity=severity, pedantic=False) if severity else finding
