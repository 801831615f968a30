"""What `plan` and `rehearse` print; `review` prints a Review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from sbatchgen.dryrun.missing import Need
from sbatchgen.dryrun.run import DryRun
from sbatchgen.dryrun.starts import Step
from sbatchgen.finding import Finding
from sbatchgen.rehearsal.outcome import Row


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
