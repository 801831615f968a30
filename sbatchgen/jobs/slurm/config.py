"""The settings of a live cluster, `scontrol show config`, and how other records of scontrol are read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm.client import answer_if_any, of_cluster
from sbatchgen.jobs.slurm.fields import limit, text

Record = TypeVar("Record")
_LICENSE = re.compile(r"^LicenseName=(\S+) +Total=([0-9]{1,9})\b", re.MULTILINE)
_LEAF = re.compile(r"^SwitchName=\S+ Level=0 .*?\bNodes=(\S+)", re.MULTILINE)
_LINE = re.compile(r"^(\w+)\s*= (.*?)\s*$", re.MULTILINE)


def config(environment: Mapping[str, str], cluster: str = "") -> dict[str, str]:
    """Return names and values; nothing if the controller does not answer."""
    shown = answer_if_any(["scontrol", *of_cluster(cluster), "show", "config"], environment)
    return settings_in(shown or "")


def settings_in(printed: str) -> dict[str, str]:
    """Return names and values in the output of scontrol; "" for a setting that is not set."""
    return {name: text(value) for name, value in _LINE.findall(printed)}


def licenses(environment: Mapping[str, str]) -> dict[str, int] | None:
    """Return all licences with their numbers; None if the controller does not answer."""
    shown = answer_if_any(["scontrol", "-o", "show", "licenses"], environment)
    return None if shown is None else {name: int(total) for name, total in _LICENSE.findall(shown)}


def topology(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the kind of topology and the nodes of its largest leaf switch, by the keys of profiles.

    The setting is "flat" where topology.yaml has another kind.
    """
    shown = answer_if_any(["scontrol", "-o", "show", "topology"], environment)
    if shown is None:
        return {}
    if leaves := _LEAF.findall(shown):
        return {"topology": "tree", "switch_nodes": str(max(len(hosts(nodes)) for nodes in leaves) or "")}
    if shown.startswith("BlockName="):
        return {"topology": "block"}
    plain = settings.get("TopologyPlugin") in ("topology/none", "topology/default", "topology/flat")
    return {"topology": "flat"} if plain and not shown.strip() else {}


def array_limits(settings: Mapping[str, str]) -> dict[str, int]:
    """Return how many elements an array may have, by the keys of profiles."""
    tasks = re.search(r"\bmax_array_tasks=([0-9]+)", settings.get("SchedulerParameters", ""))
    size = settings.get("MaxArraySize", "")
    limits = {"max_array_size": size, "max_array_tasks": tasks[1] if tasks else ""}
    return {key: number for key, value in limits.items() if (number := limit(value)) is not None}


def printed(key: str, read: Callable[[str], Any] = str) -> Any:
    """Return a field of a dataclass: the key that scontrol prints, and what reads its value."""
    return field(metadata={"key": key, "read": read})


def record_of(kind: type[Record], values: Mapping[str, str]) -> Record:
    """Return a record of the fields in the output of scontrol."""
    known = {each.name: each.metadata for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: about["read"](values[about["key"]]) for name, about in known.items()})
