"""Refusals of a script: by sbatch itself, and by a cluster that lacks the requested resources."""

from __future__ import annotations

import re
from dataclasses import replace

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding
from sbatchgen.check.rules import judge
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript

REFUSED = "sbatch refuses this script: "
# The parts of a rule's message that say who refuses what: the line then begins with REFUSED.
_REFUSAL_MESSAGE = re.compile(
    r"^sbatch refuses the (?:script|job): |: (?:sbatch|Slurm|it) refuses (?:the script|the job|it)(?=,|$)"
)
_FILE_RULES = ("SB101", "SB102")  # rules about the whole file, which sbatch checks first
_COMBINATION_RULE = "SB135"  # a warning if sbatch's command line may give the missing option


def refusal(script: JobScript) -> Finding | None:
    """Return the finding that says why sbatch certainly refuses a script; None if sbatch may take it.

    If no release of Slurm is named, a refusal is certain only if an old release also refuses the script.
    """
    message = script.sbatch.refusal
    if message is None or (script.is_release_assumed and not script.read_by(OLD_SLURM).sbatch.refusal):
        return None
    candidates = (
        finding
        for rule in judge.rules((*judge.SCRIPTS, *judge.JOBS))
        for finding in judge.findings(rule, script)
        if finding.rule in _FILE_RULES or (message.line != 1 and message.line in (0, finding.place.line))
    )
    refusing = [
        finding for finding in candidates if finding.severity == "error" or finding.rule == _COMBINATION_RULE
    ]
    fallback_rule = "SB113" if "unrecognized" in message.text else "SB126"
    at = script.at(message.line or 1)
    problem = Problem(f'"{message.text}"', at.text, "see sbatch(1)")
    fallback = Finding("error", problem, rule=fallback_rule, place=at)
    reason = min(refusing, key=lambda finding: finding.rule, default=fallback)
    what = REFUSED + _REFUSAL_MESSAGE.sub("", reason.problem.what)
    return reason._replace(severity="error", problem=reason.problem._replace(what=what))


def misfits(script: JobScript, *, nodes: int | None = None) -> list[Finding]:
    """Return the findings on requests that the cluster can't meet; `nodes` replaces --nodes."""
    if nodes:
        resources = replace(script.resources, nodes_min=nodes, nodes_max=nodes)
        script = replace(script)  # a copy, as other callers keep the script
        vars(script)["resources"] = resources
    findings = (finding for rule in judge.rules(judge.FIT) for finding in judge.findings(rule, script))
    return [finding for finding in findings if finding.about_fit and finding.severity == "error"]
