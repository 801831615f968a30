"""Where a job is submitted from.

Sources: sbatch(1), INPUT ENVIRONMENT VARIABLES; srun(1), the same; args.c of pyxis 0.24.
"""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.job.script import JobScript
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.sbatch.option_table import HasArgument, specs, variables

RULES: Rules[JobScript] = Rules()


@RULES.add("SB901", "warning", "a variable that overrides the script")
def _overrides(script: JobScript) -> Iterator[Hit]:
    known = specs(script.slurm)
    for variable, name in variables(script.slurm) if script.environment else ():
        new = script.environment.get(variable)
        is_flag = name in known and known[name].argument is HasArgument.NONE
        if new is None or (is_flag and new not in ("", "1", "yes")):  # else it takes the flag back
            continue
        if name not in script.options:
            what = f"{variable}={new} in the environment sets --{name}, which the script does not set"
            yield Hit(script.at(1), what, f"unset {variable}, or write it into the script", "info")
        elif not is_flag and (old := script.option(name)) != new:
            what = f"{variable} in the environment wins over the script: --{name} is '{new}', not '{old}'"
            yield Hit(name, what, f"env -u {variable} sbatch {script.file}")


@RULES.add("SB902", "warning", "a job submitted from inside another job")
def _inside(script: JobScript) -> Iterator[Hit]:
    job = script.environment.get("SLURM_JOB_ID")
    if job:
        what = f"submitted from inside job {job}: its SLURM_ variables are inherited, and srun takes some of "
        what += "them as options"
        yield Hit(script.at(1), what, "submit it from a login node; sbatchgen submit leaves them out")
