"""What the directives of a script ask Slurm for; a value that sbatch can't read counts as not given."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sbatchgen.finding import Place
from sbatchgen.plan.resources import UNLIMITED, Amounts, Resources
from sbatchgen.sbatch import gres, tres_per_task
from sbatchgen.sbatch.grammar import INFINITE, RefusedError, integer, mebibytes, minutes, node_range
from sbatchgen.sbatch.options import Option


def resources(
    options: Mapping[str, Option],
    *,
    slurm: str,
    at: Callable[[Option], Place],
    nowhere: Place,
    default_partition: str | None,
) -> Resources:
    """The resources of a script.

    Args:
        options: The use that counts of each option, by long name.
        slurm: The release of Slurm that reads it.
        at: Tells where an option stands.
        nowhere: The place of what is not given.
        default_partition: The partition of a job that names none.
    """
    text = {name: use.value or "" for name, use in options.items()}
    least, most = _nodes(text.get("nodes"), slurm)
    return Resources(
        options=text,
        places={name: at(use) for name, use in options.items()},
        nowhere=nowhere,
        nodes_min=least,
        nodes_max=most,
        ntasks=_count("ntasks", text, slurm),
        ntasks_per_node=_count("ntasks-per-node", text, slurm),
        cpus_per_task=_count("cpus-per-task", text, slurm),
        cpus_per_gpu=_count("cpus-per-gpu", text, slurm),
        gpus=gres.requested_gpus(text.get("gpus"), slurm=slurm),
        gpus_per_node=gres.requested_gpus(text.get("gpus-per-node"), slurm=slurm),
        gpus_per_task=_gpus_per_task(text.get("gpus-per-task"), slurm),
        gres=gres.requested(text.get("gres", ""), slurm=slurm),
        mem=_memory("mem", text),
        mem_per_cpu=_memory("mem-per-cpu", text),
        mem_per_gpu=_memory("mem-per-gpu", text),
        time=_time(text.get("time")),
        time_min=_time(text.get("time-min")),
        default_partition=default_partition,
    )


def _count(name: str, text: Mapping[str, str], slurm: str) -> int | None:
    try:
        return integer(f"--{name}", text[name], positive=True, slurm=slurm) if name in text else None
    except RefusedError:
        return None


def _memory(name: str, text: Mapping[str, str]) -> int | None:
    return mebibytes(text[name]) if name in text else None


def _gpus_per_task(text: str | None, slurm: str) -> Amounts | None:
    if text is not None and slurm >= "24.05":  # sbatch reads these on its own
        return tuple((kind or "", count) for kind, count in tres_per_task.per_task(text) if count > 0)
    return gres.requested_gpus(text, slurm=slurm)


def _nodes(text: str | None, slurm: str) -> tuple[int | None, int | None]:
    try:
        return (None, None) if text is None else node_range(text, slurm=slurm)
    except RefusedError:
        return None, None


def _time(text: str | None) -> int | None:
    """Seconds, in whole minutes as Slurm counts them; UNLIMITED for no limit."""
    found = None if text is None else minutes(text)
    if found is None:
        return None
    # Slurm takes a negative time for a very long one
    return UNLIMITED if found in (0, INFINITE) else 60 * (found % 2**32)
