"""A finding of a plan, and what several kinds of them ask."""

from __future__ import annotations

from sbatchgen.dryrun.run import DryRun
from sbatchgen.dryrun.starts import Step
from sbatchgen.errors import Problem
from sbatchgen.finding import Finding, Place, Severity

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


def at_once(first: Step, second: Step) -> bool:
    """Whether the second of two steps starts while the first may run."""
    return first.background and first.waits == second.waits and not (first.refusal or second.refusal)
