"""Finds why a script can't run: sbatch refuses the script, or the cluster can't meet its requests."""

from __future__ import annotations

import re
from dataclasses import replace

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding
from sbatchgen.check.rules import judge
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript

REFUSED = "sbatch refuses this script: "  # the start of a message, before the reason
# Parts of a rule's message that repeat REFUSED, such as ": sbatch refuses it" at the end of the message.
_REFUSAL_CLAUSE = re.compile(
    r"^sbatch refuses the (?:script|job): |: (?:sbatch|Slurm|it) refuses (?:the script|the job|it)(?=,|$)"
)
_FILE_RULES = ("SB101", "SB102")  # rules about the whole file, which sbatch checks first
# The rule about combinations of options. A warning of this rule also explains a refusal: it is only a warning
# because users may give the missing option on the command line of sbatch.
_COMBINATION_RULE = "SB135"


def refusal(script: JobScript) -> Finding | None:
    """Return the finding that says why sbatch refuses a script; None if sbatch may accept the script.

    If the release of Slurm is not known, the result is None unless an old release also refuses the script.
    """
    message = script.sbatch.refusal
    if message is None or (script.is_release_assumed and not script.read_by(OLD_SLURM).sbatch.refusal):
        return None
    # Findings at the line that sbatch refuses. Line 0 stands for several lines, for example of a combination.
    # A refusal at line 1 is about the whole file, so only _FILE_RULES explain it.
    candidates = (
        finding
        for rule in judge.rules((*judge.SCRIPTS, *judge.JOBS))
        for finding in judge.findings(rule, script)
        if finding.rule in _FILE_RULES or (message.line != 1 and message.line in (0, finding.place.line))
    )
    refusing = [
        finding for finding in candidates if finding.severity == "error" or finding.rule == _COMBINATION_RULE
    ]
    # If no rule explains the refusal, the finding shows the message of sbatch, as a finding of the rule about
    # unknown options (SB113) or about other refusals (SB126).
    fallback_rule = "SB113" if "unrecognized" in message.text else "SB126"
    at = script.at(message.line or 1)
    problem = Problem(f'"{message.text}"', at.text, "see sbatch(1)")
    fallback = Finding("error", problem, rule=fallback_rule, place=at)
    reason = min(refusing, key=lambda finding: finding.rule, default=fallback)
    what = REFUSED + _REFUSAL_CLAUSE.sub("", reason.problem.what)
    return reason._replace(severity="error", problem=reason.problem._replace(what=what))


def misfits(script: JobScript, *, nodes: int | None = None) -> list[Finding]:
    """Return the findings about requests that the cluster can't meet.

    With `nodes`, the script is judged as a job with this number of nodes in place of its --nodes.
    """
    if nodes:
        resources = replace(script.resources, nodes_min=nodes, nodes_max=nodes)
        script = replace(script)  # a copy, so that the caller's script keeps its own resources
        vars(script)["resources"] = resources  # `resources` is a cached property, so this sets its value
    findings = (finding for rule in judge.rules(judge.FIT) for finding in judge.findings(rule, script))
    return [finding for finding in findings if finding.about_fit and finding.severity == "error"]
