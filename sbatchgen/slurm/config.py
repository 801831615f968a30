"""The settings of a live cluster: `scontrol show config`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sbatchgen.errors import SlurmError
from sbatchgen.slurm.command import of_cluster, query

ARRAY_SIZE = 1001  # MaxArraySize where slurm.conf sets none: slurm.conf(5)
_LINE = re.compile(r"^(\w+)\s*= (.*?)\s*$", re.MULTILINE)


def config(environment: Mapping[str, str], cluster: str = "") -> dict[str, str]:
    """Names and values; none if the controller does not answer."""
    try:
        answer = query(["scontrol", *of_cluster(cluster), "show", "config"], environment)
    except SlurmError:
        return {}
    return {} if answer.failure else settings_in(answer.out)


def settings_in(printed: str) -> dict[str, str]:
    """Names and values in what scontrol printed."""
    return dict(_LINE.findall(printed))


def most_array_tasks(settings: Mapping[str, str]) -> int | None:
    """How many elements an array may have; None if that is not known."""
    parameters = re.search(r"\bmax_array_tasks=(\d+)", settings.get("SchedulerParameters", ""))
    texts = (settings.get("MaxArraySize", ""), parameters[1] if parameters else "")
    return min((int(text) for text in texts if text.isascii() and text.isdecimal()), default=None)
