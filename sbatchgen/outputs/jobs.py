"""What `explain`, `plan` and `rehearse` print; `review` prints a Review."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from sbatchgen.dryrun.missing import Need
from sbatchgen.dryrun.run import DryRun
from sbatchgen.dryrun.starts import Step
from sbatchgen.finding import Finding
from sbatchgen.plan.origins import Setting
from sbatchgen.rehearsal.outcome import Row
from sbatchgen.render.trace import TemplateLine
from sbatchgen.review.review import lines_of


class _Line(TypedDict):
    text: str
    file: str
    line: int
    block: str
    value: bool


class _Explained(TypedDict):
    settings: Sequence[Setting]


class ExplainOutput(_Explained, total=False):
    """What `explain` prints; `lines`: with --lines."""

    lines: Sequence[_Line]


class PlanOutput(TypedDict):
    """What `plan` prints."""

    script: str
    refusal: str
    nodes: Sequence[str]
    gpus_per_node: int
    cpus_per_node: Sequence[int]
    steps: Sequence[Step]
    needed: Sequence[Need]
    findings: Sequence[Finding]
    exit: int
    limit: str


class _Rehearsed(TypedDict):
    rows: Sequence[Row]


class RehearseOutput(_Rehearsed, total=False):
    """What `rehearse` prints; all but `rows`: on this machine."""

    unproven: Mapping[str, str]
    seconds: float
    memory_bytes: int


def explain_output(
    settings: Iterable[Setting], script: str | None, places: Sequence[TemplateLine]
) -> ExplainOutput:
    """Return the settings of a job and, if there is a script, the place of each line."""
    output: ExplainOutput = {"settings": [*settings]}
    if script is not None:
        output["lines"] = [
            {"text": text, "file": str(at.file), "line": at.line, "block": at.block, "value": at.value}
            for text, at in zip(lines_of(script), places, strict=True)
        ]
    return output


def plan_output(done: DryRun, findings: Sequence[Finding], refusal: Finding | None = None) -> PlanOutput:
    """Return a plan; `refusal`: why sbatch refuses the script."""
    return {
        "script": done.script.file,
        "refusal": refusal.problem.what if refusal else "",
        "nodes": done.grant.nodes,
        "gpus_per_node": done.grant.gpus,
        "cpus_per_node": done.grant.cpus,
        "steps": done.steps,
        "needed": done.needed,
        "findings": findings,
        "exit": done.ended.status,
        "limit": done.ended.limit,
    }
