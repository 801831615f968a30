"""What the rules of scripts find in the script that is rendered of a job."""

from sbatchgen.base.finding import Finding, in_order
from sbatchgen.check.rules import judge
from sbatchgen.check.rules.rule import Applies
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob


def lint_rendered(resolved: ResolvedJob, text: str) -> list[Finding]:
    """Return what the script adds to the resolved job's findings: of templates, `setup` and extra options."""
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
