"""A profile compared with its cluster: what is stale, and what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sbatchgen.discover.cluster import LiveCluster
from sbatchgen.discover.entries import Entry, lines
from sbatchgen.discover.profile import facts
from sbatchgen.errors import Problem
from sbatchgen.finding import Finding, Severity
from sbatchgen.inputs.document import Document, decode
from sbatchgen.inputs.profile import Partition, Profile
from sbatchgen.quoting import some
from sbatchgen.sbatch.hostlist import hosts
from sbatchgen.units import Text

Path = tuple[str, ...]
_HEAD = 'name: x\nurl: ""\nchecked: x\n'
# How deep keys are that have values; other mappings are values.
_NESTED = {"limits": 2, "partitions": 3, "qos": 3}
# What scontrol says of every partition: where the cluster has no value, there is none.
_ALWAYS_TOLD = (
    "time_max time_default nodes_min mem_per_cpu_max accounts qos state exclusive reservation_only".split()  # noqa: SIM905
)
# What is a choice of the staff, whatever slurm.conf says.
_CHOICES = ("default_partition", "cpus_per_gpu")
# Staff may promise less than there is, to leave room for the system.
_MAY_BE_LESS = ("cpus_per_node", "mem_per_node", "nodes_max", "max_array_tasks")


@dataclass(frozen=True)
class Difference:
    """A key whose value is not that of the cluster.

    Attributes:
        path: The key and those above it.
        at: Its place in the file; "" if the profile lacks it.
        own: Its value in the profile, as text; "" if it has none.
        live: The cluster's entry; None if it has none, or the cluster has no such partition.
        severity: "info" for what is new, or less than there is; "warning" for what changes often.
    """

    path: Path
    at: str
    own: str
    live: Entry | None
    severity: Severity = "error"

    @property
    def key(self) -> str:
        """The keys with dots between."""
        return ".".join(self.path)


def differences(own: Document[Profile], cluster: LiveCluster) -> list[Difference]:
    """What the cluster contradicts or has besides; what it does not tell is not compared."""
    found = facts(cluster)
    live = decode(_HEAD + "\n".join(lines(found)) + "\n", Profile, name="cluster").value
    real = "partition" not in own.value.omit  # else names of partitions are not the cluster's
    kept = [one for one in found if one.key and (real or one.key not in ("partitions", "default_partition"))]
    told = [one for entry in kept for one in _told(own, live, entry, (entry.key,))]
    hidden = {("partitions", one.name) for one in cluster.partitions if one.hidden}
    gone = _gone(own, live, cluster) if real else ()
    return [one for one in [*told, *gone] if one.at or one.path not in hidden]


def _told(own: Document[Profile], live: Profile, entry: Entry, path: Path) -> Iterator[Difference]:
    """What differs at a key that the cluster tells, or below it."""
    at = own.places.get(".".join(path), "")
    whole = path[0] in _NESTED and len(path) < _NESTED[path[0]]
    if at and whole:
        for one in entry.entries or ():
            if one.key:
                yield from _told(own, live, one, (*path, one.key))
        return
    ours, theirs = _get(own.value, path), _get(live, path)
    if not at and len(path) > 2 and path[0] == "partitions" and own.value.partitions[Text(path[1])].shapes:
        return  # what follows from the kinds of nodes
    if at and (path[-1] in _CHOICES or _alike(path[-1], ours, theirs)):
        return
    less = _less(ours, theirs)
    severity: Severity = "warning" if less or path[-1] == "state" else "error"
    if not at or (less and path[-1] in _MAY_BE_LESS):
        severity = "info"
    yield Difference(path, at, _shown(ours), entry, severity)


def _alike(key: str, ours: Any, theirs: Any) -> bool:
    """Whether two values mean the same."""
    if key == "slurm":
        return str(ours)[:5] == str(theirs)[:5]  # a patch release changes nothing here
    if key == "nodes" and ours and theirs:
        known = {*hosts(str(ours))}
        return known == {*hosts(str(theirs))} if known else ours == theirs
    return bool(_plain(ours) == _plain(theirs))


def _gone(own: Document[Profile], live: Profile, cluster: LiveCluster) -> Iterator[Difference]:
    """Partitions that the cluster does not have, and values that it does not tell."""
    shown = {one.name for one in cluster.partitions}
    for name, ours in own.value.partitions.items():
        path, theirs = ("partitions", str(name)), live.partitions.get(name)
        if name not in shown and "partitions" not in cluster.setting("PrivateData"):
            yield Difference(path, own.places.get(".".join(path), ""), "", None)
        for key, value in _untold(ours, theirs) if theirs else ():
            yield from _unlike(own, (*path, key), value)


def _untold(ours: Partition, theirs: Partition) -> Iterator[tuple[str, Any]]:
    """Keys of a partition that the cluster has no line for, and what they are there."""
    for key in _ALWAYS_TOLD:
        if getattr(theirs, key) in (None, (), "up", False):
            yield key, getattr(theirs, key)
    if theirs.shapes:
        for key in ("cpus_per_node", "mem_per_node", "gpus_per_node"):
            if _less(getattr(theirs, key), getattr(ours, key)):
                yield key, getattr(theirs, key)
    elif theirs.cpus_per_node:
        yield "shapes", ()
    if theirs.gpu_types:
        yield "gpus_typed", True
        if ours.gpu_type not in theirs.gpu_types:
            yield "gpu_type", next(iter(theirs.gpu_types))


def _unlike(own: Document[Profile], path: Path, theirs: Any) -> Iterator[Difference]:
    """A value that is written in the profile and is not that of the cluster, which may have none."""
    at, ours = own.places.get(".".join(path), ""), _get(own.value, path)
    if at and ours != theirs:
        entry = None if theirs in (None, ()) else Entry(path[-1], _shown(theirs))
        yield Difference(path, at, _shown(ours), entry, "warning" if path[-1] == "state" else "error")


def _get(value: Any, path: Path) -> Any:
    """The value below keys; None if one of them is not there."""
    for key in path:
        if value is None:
            return None
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def _plain(value: Any) -> Any:
    """Without classes, to be compared."""
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return sorted(map(_plain, value), key=repr) if isinstance(value, tuple) else value


def _less(ours: Any, theirs: Any) -> bool:
    return isinstance(ours, int) and isinstance(theirs, int) and ours < theirs


def _shown(value: Any) -> str:
    """A value as the profile has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return (
            f"[{', '.join(map(str, value))}]" if not any(map(is_dataclass, value)) else f"{len(value)} kinds"
        )
    return str(dict(value)) if isinstance(value, Mapping) else str(value)


def findings(found: Sequence[Difference], file: str) -> Iterator[Finding]:
    """What is stale, for people; what is new in one line."""
    for one in found:
        if one.live is None and len(one.path) == 2:
            what = f"the cluster shows no partition '{one.path[1]}'"
            yield Finding("error", Problem(what, one.at, "remove it, or ask an administrator"))
        elif one.live is None:
            what = f"{one.key} is {_cut(one.own)}, but the cluster has no such limit"
            if one.path[-1] == "shapes":
                what = f"{one.key}: all nodes are alike now"
            yield Finding(one.severity, Problem(what, one.at, f"remove {one.path[-1]}"))
        elif one.at:
            theirs = _cut(one.live.flow)
            what = f"{one.key} is {_cut(one.own)}, but the cluster has {theirs}"
            fix = f"write {one.path[-1]}: {theirs}" if one.severity != "info" else ""
            yield Finding(one.severity, Problem(what, one.at, fix))
    new = [one.key for one in found if not one.at]
    if new:
        what = f"the cluster tells what the profile lacks: {some(new, 5)}"
        yield Finding("info", Problem(what, file, f"sbatchgen profile discover --update {file}"))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
