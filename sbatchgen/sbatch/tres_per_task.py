"""--tres-per-task, and the options for one of its resources: sbatch keeps them in step.

Source: Slurm's slurm_opt.c, 23.02 to 26.05, and the behaviour of sbatch 26.05.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.sbatch import gres
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import fatal, fold, leading_number, wrapped

_UNFIT = ("mem", "energy", "node", "billing", "fs", "vmem", "pages", "bb")
_GPU = "gres/gpu"


def settle(job: Fields) -> None:
    """Bring --tres-per-task, --gpus-per-task and --cpus-per-task in line with each other.

    Raises:
        RefusedError: sbatch refuses the job.
    """
    for name in _UNFIT:
        if re.match(f"(?:.*,)?{name}", fold(job["tres-per-task"] or ""), re.DOTALL):
            raise fatal(f"Invalid TRES for --tres-per-task: {name}")
    if job.slurm < "23.11":
        return
    if "gres:" in (job["tres-per-task"] or ""):
        items = filter(None, job["tres-per-task"].split(","))
        job["tres-per-task"] = ",".join(re.sub("^gres:", "gres/", item) for item in items)
    if job.slurm < "24.05":
        return
    for kind, amount in per_task(job["gpus-per-task"] or ""):
        _join(job, "gpus-per-task", _GPU if kind is None else f"{_GPU}:{kind}", amount)
    _join(job, "cpus-per-task", "cpu", job["cpus-per-task"] if job["cpus_set"] else None)
    count = _cpus(job["tres-per-task"] or "")
    if count is not None:
        job["cpus-per-task"], job["cpus_set"] = count, True


def check_cpus(job: Fields) -> None:
    """End where --cpus-per-gpu meets another count of CPUs; one in the environment gives way.

    Raises:
        RefusedError: sbatch refuses the job.
    """
    options = ["cpus-per-task"]
    if job.slurm >= "24.05" and "cpu" in fold(job["tres-per-task"] or ""):
        options.append("tres-per-task")
    gpu = "cpus-per-gpu"
    if (job.given(*options) and job.given(gpu)) or (job.exported(*options) and job.exported(gpu)):
        text = "--cpus-per-task, --tres-per-task=cpu:#, and --cpus-per-gpu are mutually exclusive"
        raise fatal(text)
    if job.given(*options) and job.exported(gpu):
        job.reset(gpu)
    elif job.given(gpu) and job.exported(*options):
        job.reset("cpus-per-task")
        job["tres-per-task"] = _with_count(job["tres-per-task"], "cpu", 0)


def per_task(text: str) -> Iterator[tuple[str | None, int]]:
    """Type and count of each item of --gpus-per-task, as sbatch since 24.05 reads them; no number is 0."""
    while text:
        kind, found, count = text.partition(":" if ":" in text else "=")
        number = wrapped(leading_number(count if found else text)[0] or 0)
        yield (kind if found else None), number
        text = text.partition(",")[2] if found else ""


def _cpus(text: str) -> int | None:
    """The CPUs of a list."""
    _, found, rest = text.partition("cpu")
    while found:
        item, _, rest = rest.removeprefix("/").partition(",")
        mark = "=" if "=" in item else ":"
        count = gres.number(item.rpartition(mark)[2])
        if item and (count is None or item.rpartition(mark)[0].count(":")):
            return None
        if item and count:
            return wrapped(count)
        _, found, rest = rest.partition("cpu")
    return None


def _join(job: Fields, option: str, name: str, count: int | None) -> None:
    """Enter an option's count into --tres-per-task, unless that has one."""
    text = job["tres-per-task"] or ""
    at = fold(text).find(fold(name))
    if at < 0:
        if count is not None:
            job["tres-per-task"] = _with_count(job["tres-per-task"], name, count)
        return
    if job.given(option) and job.given("tres-per-task"):
        raise fatal(f"You can not have --tres-per-task={name}= and --{option} please use one or the other")
    if job.given(option) and job.exported("tres-per-task"):
        job["tres-per-task"] = _with_count(text, name, count or 0)
        return
    own = wrapped(leading_number(text[at + len(name) + 1 :])[0] or 0)
    if own <= 0:
        raise fatal(f"Invalid --tres-per-task={name}={own}")


def _with_count(text: str | None, name: str, count: int) -> str | None:
    """The list with another count for a resource; without it for a count of 0."""
    at = fold(text or "").find(fold(name))
    if at < 0:
        return ",".join(filter(None, (f"{name}={count}", text))) if count else text
    text = text or ""
    if wrapped(leading_number(text[at + len(name) + 1 :])[0] or 0) == count:
        return text
    before = text[:at].removesuffix(",")
    after = text[at:].partition(",")[2]
    return ",".join(filter(None, (before, f"{name}={count}" if count else "", after))) or None
