"""What the directives of a script ask Slurm for; a value that sbatch can't read counts as not given."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sbatchgen.finding import Place
from sbatchgen.resolved.resource_request import UNLIMITED, ResourceRequest
from sbatchgen.sbatch import gres
from sbatchgen.sbatch.getopt import Option
from sbatchgen.sbatch.values import INFINITE, RefusedError, count, mebibytes, minutes, node_range


def resources(
    options: Mapping[str, Option],
    *,
    slurm: str,
    at: Callable[[Option], Place],
    nowhere: Place,
    default_partition: str | None,
) -> ResourceRequest:
    """The resources of a script, from the use that counts of each option."""
    text = {name: use.value or "" for name, use in options.items()}
    least, most = _nodes(text.get("nodes"), slurm)
    return ResourceRequest(
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
        gpus_per_task=gres.requested_gpus(text.get("gpus-per-task"), slurm=slurm),
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
        return count(name, text[name], slurm=slurm) if name in text else None
    except RefusedError:
        return None


def _memory(name: str, text: Mapping[str, str]) -> int | None:
    return mebibytes(text[name]) if name in text else None


def _nodes(text: str | None, slurm: str) -> tuple[int | None, int | None]:
    try:
        return (None, None) if text is None else node_range(text, slurm=slurm)
    except RefusedError:
        return None, None


def _time(text: str | None) -> int | None:
    """Seconds, in whole minutes as Slurm counts them; UNLIMITED for no limit."""
    limit = None if text is None else minutes(text)
    return None if limit is None else UNLIMITED if limit in (0, INFINITE) else 60 * limit
