"""A finding of a plan, and what several kinds of them ask."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from sbatchgen.dryrun.missing import option_of
from sbatchgen.dryrun.run import DryRun, syntax
from sbatchgen.dryrun.starts import Step
from sbatchgen.dryrun.step import parsed
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
    """Yield each two steps that surely run at the same time on some nodes, and these nodes.

    A plan starts each step on the first nodes. Slurm prefers nodes on which no other step runs.
    """
    elsewhere = {id(step) for number, step in enumerate(done.steps) if _finds_idle_nodes(done, number)}
    for first, second in combinations(done.steps, 2):
        if (
            at_once(first, second)
            and id(second) not in elsewhere
            and (shared := _nodes(first) & _nodes(second))
        ):
            yield first, second, shared


def _finds_idle_nodes(done: DryRun, number: int) -> bool:
    """Whether a step of srun that names no nodes has room beside the steps that run already."""
    step = done.steps[number]
    if not step.is_srun or any(_NAMES_NODES.match(word) for word in own_words(step)):
        return False
    others = [other for other in done.steps[:number] if other.is_srun and at_once(other, step)]
    return sum(len(_nodes(each)) for each in (*others, step)) <= len(done.grant.nodes)


def own_words(step: Step) -> list[str]:
    """Return the options of srun, with their values; without the program that it starts."""
    words = list(step.command[1:])
    _, program = parsed(words, syntax()["srun"])
    return words[: len(words) - len(program)]


def _nodes(step: Step) -> set[str]:
    return {process.node for process in step.processes}


_NAMES_NODES = re.compile(r"-[wrx]|--(nodelist|relative|exclude)\b")
