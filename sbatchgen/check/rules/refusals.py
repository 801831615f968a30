"""Why Slurm would not take a script at all: what sbatch says of it, and what its cluster does not have."""

from __future__ import annotations

import re
from dataclasses import replace

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding
from sbatchgen.check.rules import judge
from sbatchgen.check.script.job import OLD_SLURM
from sbatchgen.check.script.script import JobScript

REFUSED = "sbatch refuses this script: "
_SAID = re.compile(
    r"^sbatch refuses the (?:script|job): |: (?:sbatch|Slurm|it) refuses (?:the script|the job|it)(?=,|$)"
)
_OF_FILE = ("SB101", "SB102")  # about the whole of it, which sbatch looks at first
_OF_COMBINATION = "SB135"  # a warning where the command line of sbatch may give what is missing
_FIT = ("limits", "demands")


def refusal(script: JobScript) -> Finding | None:
    """Return why sbatch refuses a script, in the words of the rule of lint, where that is certain.

    Where no release is named, it is certain of what an old one refuses too.
    """
    message = script.sbatch.refusal
    if message is None or (script.assumed and not script.read_by(OLD_SLURM).sbatch.refusal):
        return None
    every = (
        finding
        for rule in judge.rules((*judge.SCRIPTS, *judge.JOBS))
        for finding in judge.findings(rule, script)
        if finding.rule in _OF_FILE or (message.line != 1 and message.line in (0, finding.place.line))
    )
    telling = [each for each in every if each.severity == "error" or each.rule == _OF_COMBINATION]
    unknown = "SB113" if "unrecognized" in message.text else "SB126"
    at = script.at(message.line or 1)
    problem = Problem(f'"{message.text}"', at.text, "see sbatch(1)")
    fallback = Finding("error", problem, rule=unknown, place=at)
    first = min(telling, key=lambda finding: finding.rule, default=fallback)
    what = REFUSED + _SAID.sub("", first.problem.what)
    return first._replace(severity="error", problem=first.problem._replace(what=what))


def misfits(script: JobScript, *, nodes: int | None = None) -> list[Finding]:
    """Return what a script asks for and its cluster does not have; `nodes`: in place of its own --nodes."""
    if nodes:
        asked = replace(script.resources, nodes_min=nodes, nodes_max=nodes)
        script = replace(script)
        vars(script)["resources"] = asked
    findings = (finding for rule in judge.rules(_FIT) for finding in judge.findings(rule, script))
    return [finding for finding in findings if finding.about_fit and finding.severity == "error"]
