"""--tres-per-task, and the options for one of its resources: sbatch keeps them in step.

Source: Slurm's slurm_opt.c, 23.02 to 26.05, and the behaviour of sbatch 26.05.5.
"""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.sbatch import gres
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import RefusedError, fold, leading_number, wrapped

_UNFIT = ("mem", "energy", "node", "billing", "fs", "vmem", "pages", "bb")


def settle(job: Fields) -> None:
    """Bring --tres-per-task, --gpus-per-task and --cpus-per-task in line with each other.

    Raises:
        RefusedError: sbatch refuses the job.
    """
    text = job["tres-per-task"] or ""
    items = fold(text).split(",")
    for name in _UNFIT:
        if any(item.startswith(name) for item in items):
            raise RefusedError(f"Invalid TRES for --tres-per-task: {name}")
    if job.slurm < "24.05":
        return
    if "gres:" in text:
        named = (f"gres/{item[5:]}" if item.startswith("gres:") else item for item in text.split(","))
        text = ",".join(filter(None, named))
    for kind, amount in per_task(job["gpus-per-task"] or ""):
        name = "gres/gpu" if kind is None else f"gres/gpu:{kind}"
        if not _check(job, text, name, "gpus-per-task") and amount:
            text = ",".join(filter(None, (f"{name}={amount}", text)))
    _check(job, text, "cpu", "cpus-per-task")
    job["tres-per-task"] = text or None
    for item in text.split(","):
        count = gres.number(item[4:]) if item.startswith(("cpu=", "cpu:")) else None
        if count:
            job["cpus-per-task"], job["cpus_set"] = wrapped(count), True
            break


def check_cpus(job: Fields) -> None:
    """End where --cpus-per-gpu meets another count of CPUs.

    Raises:
        RefusedError: sbatch refuses the job.
    """
    options = ["cpus-per-task"]
    if job.slurm >= "24.05" and "cpu" in fold(job["tres-per-task"] or ""):
        options.append("tres-per-task")
    if job.given(*options) and job.given("cpus-per-gpu"):
        text = "--cpus-per-task, --tres-per-task=cpu:#, and --cpus-per-gpu are mutually exclusive"
        raise RefusedError(text)


def per_task(text: str) -> Iterator[tuple[str | None, int]]:
    """Type and count of each item of --gpus-per-task, as sbatch since 24.05 reads them; no number is 0."""
    while text:
        kind, found, count = text.partition(":" if ":" in text else "=")
        number = wrapped(leading_number(count if found else text)[0] or 0)
        yield (kind if found else None), number
        text = text.partition(",")[2] if found else ""


def _check(job: Fields, text: str, name: str, option: str) -> bool:
    """Whether --tres-per-task has a resource; then it must have a count, and no other option may."""
    at = fold(text).find(fold(name))
    if at < 0:
        return False
    if job.given(option) and job.given("tres-per-task"):
        raise RefusedError(
            f"You can not have --tres-per-task={name}= and --{option} please use one or the other"
        )
    own = wrapped(leading_number(text[at + len(name) + 1 :])[0] or 0)
    if own <= 0:
        raise RefusedError(f"Invalid --tres-per-task={name}={own}")
    return True
