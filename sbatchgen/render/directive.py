"""Plan -> the #SBATCH lines, in one order, every value quoted the way sbatch reads it."""

from __future__ import annotations

from sbatchgen.plan.plan import Plan
from sbatchgen.quoting import directive


def directives(plan: Plan) -> tuple[str, ...]:
    """What follows `#SBATCH ` on each line; none where no Slurm reads them."""
    if not plan.slurm:
        return ()
    lines = [_line(name, value) for name, value in vars(plan.options).items() if value is not None]
    lines += [option_line(name, value) for name, value in plan.extra_options.items()]
    return tuple(line for line in lines if line)


def option_line(name: str, value: str) -> str:
    """An option by its long name, with its value; "true" for one that takes none."""
    return f"--{name}" if value == "true" else directive(name, value)


def _line(name: str, value: object) -> str:
    if name == "requeue":
        return "--requeue" if value else "--no-requeue"
    if name == "exclusive":
        return "--exclusive" if value else ""
    return directive(name.replace("_", "-"), str(value))
