"""Questions about a plan that several rules of `started/` ask, such as which steps run at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from sbatchgen.check.script.launches import sourcing_commands
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.missing import option_of
from sbatchgen.lab.plan.started import Step, options_of_srun


def may_lack_values(plan: DryRun, *, with_variables: bool = True) -> bool:
    """Return whether values may be empty only because this plan lacks arguments or files of the user.

    With `with_variables`, a missing variable that the user sets also counts.
    """
    # The options of sbatch whose variables a user may have to give: "" for a variable without an option, and
    # --array, which users often give to sbatch itself.
    user_options = ("", "array")
    sourcing_lines = {
        line for command in sourcing_commands(plan.script.body) for line in (command.line, command.end_line)
    }
    return any(
        need.kind == "arguments"
        or (with_variables and need.kind == "variable" and option_of(need.name) in user_options)
        or (need.kind == "file" and need.line in sourcing_lines)
        for need in plan.needed
    )


def run_at_once(first: Step, second: Step) -> bool:
    """Return whether the second step starts while the first may still run."""
    return first.background and first.waits == second.waits and not (first.refusal or second.refusal)


class Overlap(NamedTuple):
    """Two steps that run at the same time on the same nodes."""

    first: Step
    second: Step
    nodes: set[str]  # the nodes that both steps have


def overlaps(plan: DryRun) -> Iterator[Overlap]:
    """Yield each pair of steps that run at the same time and share nodes."""
    for first, second in combinations(plan.steps, 2):
        # A plan that ended at a limit does not know on which nodes Slurm would place a step of srun.
        if plan.result.limit and second.is_srun:
            continue
        if run_at_once(first, second) and (nodes := _nodes_of(first) & _nodes_of(second)):
            yield Overlap(first, second, nodes)


def srun_options(step: Step) -> dict[str, str]:
    """Return the options of a step's srun by their long names."""
    return {name: value for name, value, *_ in options_of_srun(step.command)}


def _nodes_of(step: Step) -> set[str]:
    return {process.node for process in step.processes}
