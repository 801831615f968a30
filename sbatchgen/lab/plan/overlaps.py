"""Questions about a dry run that several rules ask, for example which steps run at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from sbatchgen.check.script.launches import sourcing_commands
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.missing import option_of
from sbatchgen.lab.plan.started import Step, options_of_srun


def may_lack_values(done: DryRun, *, with_variables: bool = True) -> bool:
    """Return whether an empty value may follow from arguments or files that the script lacks.

    With `with_variables`, a variable that only the user knows counts too.
    """
    user_options = ("", "array")  # "" for no option of Slurm; users often give --array to sbatch
    sourced = {
        line for command in sourcing_commands(done.script.body) for line in (command.line, command.end_line)
    }
    return any(
        need.kind == "arguments"
        or (with_variables and need.kind == "variable" and option_of(need.name) in user_options)
        or (need.kind == "file" and need.line in sourced)
        for need in done.needed
    )


def run_at_once(first: Step, second: Step) -> bool:
    """Return whether the second step starts while the first may still run."""
    return first.background and first.waits == second.waits and not (first.refusal or second.refusal)


def overlaps(done: DryRun) -> Iterator[tuple[Step, Step, set[str]]]:
    """Yield each pair of steps that run at the same time on the same nodes, and these nodes."""
    for first, second in combinations(done.steps, 2):
        # After a limit, `dry_run` does not find out on which nodes Slurm would place a step of srun.
        if done.ended.limit and second.is_srun:
            continue
        if run_at_once(first, second) and (shared := _nodes_of(first) & _nodes_of(second)):
            yield first, second, shared


def srun_options(step: Step) -> dict[str, str]:
    """Return the options of a step's srun by their long names."""
    return {name: value for name, value, *_ in options_of_srun(step.command)}


def _nodes_of(step: Step) -> set[str]:
    return {process.node for process in step.processes}
