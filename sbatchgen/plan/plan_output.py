"""What `plan` prints for programs."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from sbatchgen.finding import Finding
from sbatchgen.plan.dry_run import DryRun
from sbatchgen.plan.missing import Need
from sbatchgen.plan.started import Step


class PlanOutput(TypedDict):
    """What `plan` prints."""

    script: str
    refusal: str
    nodes: Sequence[str]
    gpus_per_node: int
    gpus_on_nodes: Sequence[int]
    cpus_per_node: Sequence[int]
    steps: Sequence[Step]
    needed: Sequence[Need]
    not_shown: Mapping[str, str]
    steps_not_shown: int
    findings: Sequence[Finding]
    exit: int
    limit: str


def plan_output(done: DryRun, findings: Sequence[Finding], refusal: Finding | None = None) -> PlanOutput:
    """Return a plan; `refusal`: why sbatch refuses the script."""
    return {
        "script": done.script.file,
        "refusal": refusal.problem.what if refusal else "",
        "nodes": done.grant.nodes,
        "gpus_per_node": max(done.grant.gpus),
        "gpus_on_nodes": done.grant.gpus,
        "cpus_per_node": done.grant.cpus,
        "steps": done.steps,
        "needed": done.needed,
        "not_shown": done.not_shown,
        "steps_not_shown": done.steps_not_shown,
        "findings": findings,
        "exit": done.ended.status,
        "limit": done.ended.limit,
    }
