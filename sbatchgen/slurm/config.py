"""The settings of a live cluster: `scontrol show config`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sbatchgen.errors import SlurmError
from sbatchgen.slurm.command import answer, of_cluster
from sbatchgen.slurm.printed import limit, text

_LINE = re.compile(r"^(\w+)\s*= (.*?)\s*$", re.MULTILINE)


def config(environment: Mapping[str, str], cluster: str = "") -> dict[str, str]:
    """Names and values; none if the controller does not answer."""
    try:
        return settings_in(answer(["scontrol", *of_cluster(cluster), "show", "config"], environment))
    except SlurmError:
        return {}


def settings_in(printed: str) -> dict[str, str]:
    """Names and values in what scontrol printed; "" for one that is not set."""
    return {name: text(value) for name, value in _LINE.findall(printed)}


def array_limits(settings: Mapping[str, str]) -> dict[str, int]:
    """How many elements an array may have, by the keys of profiles."""
    tasks = re.search(r"\bmax_array_tasks=([0-9]+)", settings.get("SchedulerParameters", ""))
    told = {"max_array_size": settings.get("MaxArraySize", ""), "max_array_tasks": tasks[1] if tasks else ""}
    return {key: most for key, value in told.items() if (most := limit(value)) is not None}
