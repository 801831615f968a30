"""What the rules find in a resolved job, in its trainer and in its script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbatchgen.base.finding import Finding, in_order
from sbatchgen.check.rules import judge
from sbatchgen.check.rules.rule import Applies
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.jobs.judge.judged_job import JudgedJob
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

if TYPE_CHECKING:
    from sbatchgen.jobs.judge.trainer import TrainerJob


def check(resolved: ResolvedJob, *, log_folders_made: bool = False) -> list[Finding]:
    """Return all findings of a resolved job, errors first.

    `log_folders_made`: its logs' folders will be created.
    """
    job = JudgedJob(resolved, makes_log_folders=log_folders_made)
    wanted = judge.rules((*judge.RESOLVED, *judge.JOBS) if resolved.slurm else judge.RESOLVED)
    every = [finding for rule in wanted for finding in judge.findings(rule, job) if not finding.pedantic]
    # that no partition fits follows from the others
    return sorted(every, key=lambda finding: (finding.severity != "error", finding.rule == "SB203"))


def check_trainer(job: TrainerJob) -> list[Finding]:
    """Return what the folder and the environment of submission say of a resolved job's trainer."""
    return [finding for rule in judge.rules(judge.TRAINERS) for finding in judge.findings(rule, job)]


def lint_rendered(resolved: ResolvedJob, text: str) -> list[Finding]:
    """Return what the script adds to the resolved job's findings: of templates, `setup` and extra options."""
    from sbatchgen.check.script.script import JobScript  # what renders a script need not load the readers

    script = JobScript(
        file="job.slurm",
        text=text,
        slurm=resolved.profile.slurm or DEFAULT_SLURM,
        profile=resolved.profile,
        known_options=tuple(f"{name}{'=' * (to != 'true')}" for name, to in resolved.extra_options.items()),
    )
    wanted = (rule for rule in judge.rules(judge.SCRIPTS) if Applies.RENDERED in rule.applies)
    findings = (finding for rule in wanted for finding in judge.findings(rule, script))
    return in_order(finding for finding in findings if not finding.pedantic)
