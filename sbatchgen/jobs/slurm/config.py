"""Asks scontrol(1) for the settings, licences and topology of a live cluster.

`from_key` and `record_of` make records of its nodes, partitions and reservations, for `node` and `partition`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm.client import answer_if_any, cluster_option
from sbatchgen.jobs.slurm.fields import read_limit, read_text

Record = TypeVar("Record")
# A licence: "LicenseName=ansys Total=4"
_LICENSE = re.compile(r"^LicenseName=(\S+) +Total=([0-9]{1,9})\b", re.MULTILINE)
# A switch of the lowest level, to which nodes are connected: "SwitchName=s1 Level=0 LinkSpeed=1
# Nodes=n[1-16]"
_LEAF_SWITCH = re.compile(r"^SwitchName=\S+ Level=0 .*?\bNodes=(\S+)", re.MULTILINE)
_SETTING = re.compile(r"^(\w+)\s*= (.*?)\s*$", re.MULTILINE)  # "ClusterName             = msu"


def config(environment: Mapping[str, str], cluster: str = "") -> dict[str, str]:
    """Return the settings of slurm.conf by their names; {} if the controller does not answer."""
    shown = answer_if_any(["scontrol", *cluster_option(cluster), "show", "config"], environment)
    return settings_in(shown or "")


def settings_in(printed: str) -> dict[str, str]:
    """Return the settings in the output of `scontrol show config`; "" for a setting without a value."""
    return {name: read_text(value) for name, value in _SETTING.findall(printed)}


def licenses(environment: Mapping[str, str]) -> dict[str, int] | None:
    """Return the total number of each licence by its name; None if the controller does not answer."""
    shown = answer_if_any(["scontrol", "-o", "show", "licenses"], environment)
    return None if shown is None else {name: int(total) for name, total in _LICENSE.findall(shown)}


def topology(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the profile keys `topology`, the kind, and `switch_nodes`, the nodes of the largest leaf switch.

    Return {} if the kind is not known. The output of `scontrol show topology` counts before the setting
    TopologyPlugin, which may be "flat" although topology.yaml has another kind.
    """
    shown = answer_if_any(["scontrol", "-o", "show", "topology"], environment)
    if shown is None:
        return {}
    if leaves := _LEAF_SWITCH.findall(shown):
        return {"topology": "tree", "switch_nodes": str(max(len(hosts(nodes)) for nodes in leaves) or "")}
    if shown.startswith("BlockName="):
        return {"topology": "block"}
    is_flat = settings.get("TopologyPlugin") in ("topology/none", "topology/default", "topology/flat")
    return {"topology": "flat"} if is_flat and not shown.strip() else {}


def array_limits(settings: Mapping[str, str]) -> dict[str, int]:
    """Return the cluster's limits of job arrays by the keys of profiles, such as `max_array_size`."""
    tasks = re.search(r"\bmax_array_tasks=([0-9]+)", settings.get("SchedulerParameters", ""))
    size = settings.get("MaxArraySize", "")
    limits = {"max_array_size": size, "max_array_tasks": tasks[1] if tasks else ""}
    return {key: number for key, value in limits.items() if (number := read_limit(value)) is not None}


def from_key(key: str, read: Callable[[str], Any] = str) -> Any:
    """Return a dataclass field whose value scontrol prints after `key`; `read` converts the printed text."""
    return field(metadata={"key": key, "read": read})


def record_of(kind: type[Record], values: Mapping[str, str]) -> Record:
    """Return a record of the class `kind`, whose fields `from_key` has made.

    `values` has the texts that scontrol has printed, by its keys.
    """
    metadata = {field_.name: field_.metadata for field_ in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: source["read"](values[source["key"]]) for name, source in metadata.items()})
