"""Reads the request that a script's options make of Slurm, as a ResourceRequest."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from sbatchgen.base.finding import Place
from sbatchgen.check.sbatch import gres
from sbatchgen.check.sbatch.getopt import Option
from sbatchgen.check.sbatch.values import INFINITE, RefusedError, count, mebibytes, minutes, node_range
from sbatchgen.check.script.resource_request import UNLIMITED, ResourceRequest

T = TypeVar("T")


def read_request(
    options: Mapping[str, Option],
    *,
    slurm: str,
    at: Callable[[Option], Place],
    unset_place: Place,
    default_partition: str | None,
) -> ResourceRequest:
    """Return the request that a script's options make of Slurm.

    An option with a value that sbatch can't read counts as unset. `at` returns the place of an option.
    """
    text = {name: use.value or "" for name, use in options.items()}
    nodes_min, nodes_max = _read(partial(node_range, slurm=slurm), text.get("nodes")) or (None, None)

    def number_of(name: str) -> int | None:
        return _read(partial(count, name, slurm=slurm), text.get(name))

    return ResourceRequest(
        options=text,
        places={name: at(use) for name, use in options.items()},
        unset_place=unset_place,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        ntasks=number_of("ntasks"),
        ntasks_per_node=number_of("ntasks-per-node"),
        ntasks_per_gpu=number_of("ntasks-per-gpu"),
        cpus_per_task=number_of("cpus-per-task"),
        cpus_per_gpu=number_of("cpus-per-gpu"),
        gpus=gres.gpu_amounts(text.get("gpus"), slurm=slurm),
        gpus_per_node=gres.gpu_amounts(text.get("gpus-per-node"), slurm=slurm),
        gpus_per_task=gres.gpu_amounts(text.get("gpus-per-task"), slurm=slurm),
        gres=gres.gres_amounts(text.get("gres", ""), slurm=slurm),
        mem=_read(mebibytes, text.get("mem")),
        mem_per_cpu=_read(mebibytes, text.get("mem-per-cpu")),
        mem_per_gpu=_read(mebibytes, text.get("mem-per-gpu")),
        time=_read(_seconds, text.get("time")),
        time_min=_read(_seconds, text.get("time-min")),
        default_partition=default_partition,
    )


def _read(reader: Callable[[str], T], text: str | None) -> T | None:
    """Return the value that a reader finds in a text; None if the text is None or sbatch refuses it."""
    try:
        return None if text is None else reader(text)
    except RefusedError:
        return None


def _seconds(text: str) -> int | None:
    """Return the seconds of a time limit, in whole minutes; UNLIMITED for no limit, None if it is invalid."""
    limit = minutes(text)
    if limit is None:
        return None
    return UNLIMITED if limit in (0, INFINITE) else 60 * limit
