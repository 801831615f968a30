"""--tres-per-task, and the options for one of its resources: sbatch keeps them in step.

Source: Slurm's slurm_opt.c, 23.02 to 26.05, and the behaviour of sbatch 26.05.5.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from sbatchgen.sbatch import tres
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import RefusedError, fold, leading_number, wrapped

_UNFIT = ("mem", "energy", "node", "billing", "fs", "vmem", "pages", "bb")
_GPU = "gres/gpu"


def settle(job: Fields) -> None:
    """Settle --tres-per-task, --gpus-per-task, --cpus-per-task and --tres-bind.

    Raises:
        RefusedError: sbatch would end.
    """
    for name in _UNFIT:
        if re.match(f"(?:.*,)?{name}", fold(job["tres-per-task"] or ""), re.DOTALL):
            raise _fatal(f"Invalid TRES for --tres-per-task: {name}")
    if job.slurm < "23.11":
        return
    for kind in ("license", "gres"):
        job["tres-per-task"] = _with_slash(job["tres-per-task"], kind)
    if job.slurm < "24.05":
        return
    _settle_gpus(job)
    _settle_cpus(job)
    _bind(job)


def cpus_clash(job: Fields) -> None:
    """End where --cpus-per-gpu meets another count of CPUs; one in the environment gives way.

    Raises:
        RefusedError: sbatch would end.
    """
    options = ["cpus-per-task"]
    if job.slurm >= "24.05" and "cpu" in fold(job["tres-per-task"] or ""):
        options.append("tres-per-task")
    gpu = "cpus-per-gpu"
    if (job.given(*options) and job.given(gpu)) or (job.exported(*options) and job.exported(gpu)):
        text = "--cpus-per-task, --tres-per-task=cpu:#, and --cpus-per-gpu are mutually exclusive"
        raise _fatal(text)
    ignoring = "given as command line option"
    if job.given(*options) and job.exported(gpu):
        text = f"since --cpus-per-task or --tres-per-task=cpu:# {ignoring}"
        job.say(f"Ignoring SBATCH_CPUS_PER_GPU {text}", "verbose")
        job.reset(gpu)
    elif job.given(gpu) and job.exported(*options):
        text = f"since --cpus-per-gpu was {ignoring.replace('as', 'as a')}"
        job.say(f"Ignoring cpus_per_task from the environment {text}", "verbose")
        job.reset("cpus-per-task")
        job["tres-per-task"] = _with_count(job["tres-per-task"], "cpu", 0)


def _fatal(text: str) -> RefusedError:
    return RefusedError(text, status=1, level="fatal")


def _with_slash(text: str | None, kind: str) -> str | None:
    """The list with gres/gpu for gres:gpu."""
    if text is None or f"{kind}:" not in text:
        return text
    items = (re.sub(f"^{kind}:", f"{kind}/", item) for item in text.split(",") if item)
    return ",".join(items)


def _settle_gpus(job: Fields) -> None:
    for kind, count in per_task(job["gpus-per-task"] or ""):
        _join(job, "gpus-per-task", _GPU if kind is None else f"{_GPU}:{kind}", count)
    counts = (
        f"{item.type}:{item.count}" if item.type is not None else str(item.count) for item in _gres(job)
    )
    job["gpus-per-task"] = ",".join(counts) or None


def per_task(text: str) -> Iterator[tuple[str | None, int]]:
    """Type and count of each item of --gpus-per-task, as sbatch since 24.05 reads them; no number is 0."""
    while text:
        kind, found, count = text.partition(":" if ":" in text else "=")
        yield (
            (kind, wrapped(leading_number(count)[0] or 0))
            if found
            else (
                None,
                wrapped(leading_number(text)[0] or 0),
            )
        )
        text = text.partition(",")[2] if found else ""


def _settle_cpus(job: Fields) -> None:
    _join(job, "cpus-per-task", "cpu", job["cpus-per-task"] if job["cpus_set"] else None)
    count = _cpus(job["tres-per-task"] or "")
    if count is not None:
        job["cpus-per-task"], job["cpus_set"] = count, True


def _cpus(text: str) -> int | None:
    """The CPUs of a list."""
    _, found, rest = text.partition("cpu")
    while found:
        item, _, rest = rest.removeprefix("/").partition(",")
        mark = "=" if "=" in item else ":"
        count = tres.number(item.rpartition(mark)[2])
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
        raise _fatal(f"You can not have --tres-per-task={name}= and --{option} please use one or the other")
    if job.given(option) and job.exported("tres-per-task"):
        job["tres-per-task"] = text = _with_count(text, name, count or 0)
        precedence = f"as --{option} takes precedence over the environment variables."
        job.say(f"Updating SLURM_TRES_PER_TASK to {text or '(null)'} {precedence}", "verbose")
        return
    own = wrapped(leading_number(text[at + len(name) + 1 :])[0] or 0)
    if own <= 0:
        raise _fatal(f"Invalid --tres-per-task={name}={own}")
    if job.exported(option) and job.given("tres-per-task"):
        variable = f"SLURM_{option.replace('-', '_').upper()}"
        reason = f"--tres-per-task={name}= was given as a command line option."
        job.say(f"Ignoring {variable} since {reason}", "verbose")


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


def _gres(job: Fields) -> list[tres.Item]:
    """The generic resources of --tres-per-task, up to the first that is wrong."""
    found: list[tres.Item] = []
    with contextlib.suppress(tres.BadItemError):
        found.extend(tres.items(job["tres-per-task"] or "", slurm=job.slurm))
    return found


def _bind(job: Fields) -> None:
    """Bind the resources of a task to it, unless --tres-bind says how."""
    gpus = 0
    for item in _gres(job):
        if item.name and item.name in (job["tres-bind"] or ""):
            continue
        if item.name == "gpu":
            gpus += item.count
        else:
            _add_binding(job, item.name or "(null)", item.count)
    if gpus:
        _add_binding(job, "gpu", gpus)


def _add_binding(job: Fields, name: str, count: int) -> None:
    binding = f"gres/{name}:per_task:{count}"
    job["tres-bind"] = "+".join(filter(None, (job["tres-bind"], binding)))
