"""The findings of `plan` and of `lint --plan`: rules that a dry run breaks."""

from __future__ import annotations

from collections.abc import Mapping

from sbatchgen.base.finding import Finding
from sbatchgen.check.lint.lint_settings import Settings
from sbatchgen.check.lint.source import Source
from sbatchgen.check.lint.suppression import drop_suppressed, find_suppressions
from sbatchgen.check.rules import judge
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.planning import is_planned, plan_of, script_of


def check_started(plan: DryRun) -> list[Finding]:
    """Return the findings of a plan in the order of the script's lines; equal messages are returned once."""
    findings = [finding for rule in judge.rules(judge.STARTED) for finding in judge.findings(rule, plan)]
    unique = {finding.problem.what: finding for finding in reversed(findings)}
    return sorted(unique.values(), key=lambda finding: (finding.place.line, finding.rule))


def lint_started(plan: DryRun) -> list[Finding]:
    """Return the findings of a plan, without those that a comment in the script turns off."""
    suppressions = list(find_suppressions(plan.script.file, plan.script.lines))
    return drop_suppressed(check_started(plan), suppressions)[0]


def found_by_plan(source: Source, settings: Settings, *, environment: Mapping[str, str]) -> list[Finding]:
    """Plan a linted script, and return the findings of the plan; [] for a script that can't be planned."""
    script = script_of(source.file, source.text, profile=settings.profile, slurm=settings.slurm)
    return check_started(plan_of(script, environment, settings.folder)) if is_planned(script) else []
