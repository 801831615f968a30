"""The document that `plan --format json` prints, as a type, and the function that makes it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from sbatchgen.base.finding import Finding
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.missing import Need
from sbatchgen.lab.plan.started import Step


class PlanOutput(TypedDict):
    """The document that `plan --format json` prints."""

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


def plan_output(
    plan: DryRun, findings: Sequence[Finding], refusal: Finding | None = None, *, brief: bool = False
) -> PlanOutput:
    """Return a plan as the document that `plan --format json` prints.

    `refusal` is the finding that sbatch refuses the script; None if sbatch takes it. With `brief`, each step
    has only its first process.
    """
    steps = [replace(step, processes=step.processes[:1]) if brief else step for step in plan.steps]
    return {
        "script": plan.script.file,
        "refusal": refusal.problem.what if refusal else "",
        "nodes": plan.grant.nodes,
        "gpus_per_node": max(plan.grant.gpus),
        "gpus_on_nodes": plan.grant.gpus,
        "cpus_per_node": plan.grant.cpus,
        "steps": steps,
        "needed": plan.needed,
        "not_shown": plan.not_shown,
        "steps_not_shown": plan.steps_not_shown,
        "findings": findings,
        "exit": plan.result.status,
        "limit": plan.result.limit,
    }
