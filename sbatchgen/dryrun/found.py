"""A finding of a plan, and what several kinds of them ask."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from sbatchgen.dryrun.missing import option_of
from sbatchgen.dryrun.run import DryRun
from sbatchgen.dryrun.starts import Step, options_of_srun
from sbatchgen.errors import Problem
from sbatchgen.finding import Finding, Place, Severity
from sbatchgen.job.launches import sourcing

RULE = "plan"


def found(
    done: DryRun, line: int, what: str, fix: str = "", *, severity: Severity = "warning", rule: str = RULE
) -> Finding:
    """Return what is wrong with a line of a script.

    Args:
        done: The dry run of the script.
        line: The line; 0 if it is not known.
        what: What is wrong.
        fix: What to type.
        severity: How bad it is.
        rule: The rule of lint that finds the same mistake in the text, if there is one.
    """
    place = Place(f"{done.script.file}:{line}" if line else done.script.file, line, 1 if line else 0)
    return Finding(severity, Problem(what, place.text, fix), rule=rule, place=place)


def may_follow(done: DryRun, *, variables: bool = True) -> bool:
    """Whether an empty value may follow from what the script lacks: arguments, files, `variables`."""
    of_user = ("", "array")  # which sbatch gets on its command line
    sourced = {line for command in sourcing(done.script.body) for line in (command.line, command.end_line)}
    return any(
        need.kind == "arguments"
        or (variables and need.kind == "variable" and option_of(need.name) in of_user)
        or (need.kind == "file" and need.line in sourced)
        for need in done.needed
    )


def at_once(first: Step, second: Step) -> bool:
    """Whether the second of two steps starts while the first may run."""
    return first.background and first.waits == second.waits and not (first.refusal or second.refusal)


def meetings(done: DryRun) -> Iterator[tuple[Step, Step, set[str]]]:
    """Yield each two steps that are started at the same time on some nodes, and these nodes."""
    for first, second in combinations(done.steps, 2):
        if done.ended.limit and second.is_srun:  # its place is not known: see `dry_run`
            continue
        if at_once(first, second) and (shared := _nodes(first) & _nodes(second)):
            yield first, second, shared


def own_options(step: Step) -> dict[str, str]:
    """Return the options of srun by their long names."""
    return {name: value for name, value, *_ in options_of_srun(step.command)}


def _nodes(step: Step) -> set[str]:
    return {process.node for process in step.processes}
