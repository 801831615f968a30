"""Options of srun that a step of a job can't have, or that do nothing there. SB351.

Sources: srun(1), "applies to job allocations"; steps on Slurm 22.05 and 26.05 (docs/design/slurm.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.job.script import JobScript
from sbatchgen.rules.rule import Hit, Rules

RULES: Rules[JobScript] = Rules()

_OF_JOBS = ("dependency", "begin")  # the others of a job are repeated in steps, without harm
_REFUSES_BOTH = "26.05"


@RULES.add("SB351", "warning", "an option of srun that a step can't have", source="srun(1)")
def _of_another_job(script: JobScript) -> Iterator[Hit]:
    """Not in a script without directives, whose srun may make a job of its own."""
    for launch in script.steps if script.directive_lines else ():
        step = launch.step
        if step is None or "jobid" in step.options:
            continue
        for name in _OF_JOBS:
            if option := step.option(name):
                what = f"srun --{name} is about new jobs: in a job the step starts at once"
                fix = f"sbatch --{name}=... another script, or sbatch --wait"
                yield Hit(script.at_option_of(option), what, fix)
        gres = step.option("gres")
        asks = gres is not None and (gres.value or "").startswith("gpu")
        if gres and asks and "gpus-per-node" in script.options and script.slurm >= _REFUSES_BOTH:
            what = f"Slurm {_REFUSES_BOTH} refuses this step: srun inherits --gpus-per-node, which excludes "
            what += "--gres=gpu"
            fix = f"srun --gpus-per-node={(gres.value or '').partition(':')[2] or 1}"
            yield Hit(script.at_option_of(gres), what, fix, "info" if script.assumed else None)
