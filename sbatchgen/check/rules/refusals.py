"""The findings that say why a script can't run: sbatch refuses it, or the cluster lacks what it asks for."""

from __future__ import annotations

import re
from dataclasses import replace

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding
from sbatchgen.check.rules import judge
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript

REFUSED = "sbatch refuses this script: "  # the start of a message, before the reason
# The parts of a rule's message that name who refuses the script. REFUSED says this already.
_REFUSAL_CLAUSE = re.compile(
    r"^sbatch refuses the (?:script|job): |: (?:sbatch|Slurm|it) refuses (?:the script|the job|it)(?=,|$)"
)
_FILE_RULES = ("SB101", "SB102")  # rules about the whole file, which sbatch checks first
# The rule about combinations of options. It is only a warning if an option may be missing that users can give
# on the command line of sbatch.
_COMBINATION_RULE = "SB135"


def refusal(script: JobScript) -> Finding | None:
    """Return the finding that says why sbatch certainly refuses a script; None if sbatch may take it.

    If the release of Slurm is not known, a refusal is certain only if an old release refuses the script too.
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
    # If no rule explains the refusal, the finding shows the message of sbatch.
    fallback_rule = "SB113" if "unrecognized" in message.text else "SB126"
    at = script.at(message.line or 1)
    problem = Problem(f'"{message.text}"', at.text, "see sbatch(1)")
    fallback = Finding("error", problem, rule=fallback_rule, place=at)
    reason = min(refusing, key=lambda finding: finding.rule, default=fallback)
    what = REFUSED + _REFUSAL_CLAUSE.sub("", reason.problem.what)
    return reason._replace(severity="error", problem=reason.problem._replace(what=what))


def misfits(script: JobScript, *, nodes: int | None = None) -> list[Finding]:
    """Return the findings about requests that the cluster can't meet.

    With `nodes`, they are about a job with this number of nodes in place of --nodes.
    """
    if nodes:
        resources = replace(script.resources, nodes_min=nodes, nodes_max=nodes)
        script = replace(script)  # a copy, as the caller keeps the script
        vars(script)["resources"] = resources  # in place of the cached value
    findings = (finding for rule in judge.rules(judge.FIT) for finding in judge.findings(rule, script))
    return [finding for finding in findings if finding.about_fit and finding.severity == "error"]
