"""A profile compared with its cluster: what is stale, and what is new."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding, Severity
from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import first_names
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.inputs.document import Document, decode
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.lab.discover.entries import Entry, lines
from sbatchgen.lab.discover.facts import facts
from sbatchgen.lab.discover.slurm_answers import LiveCluster

KeyPath = tuple[str, ...]
_PROFILE_HEAD = 'name: x\nurl: ""\nchecked: x\n'
# How deep keys are that have values; other mappings are values.
_DEPTHS = {"limits": 2, "partitions": 3, "qos": 3, "reservations": 3}
# scontrol shows these of every partition: if the cluster has no value, there is no limit.
_ALWAYS_SHOWN = (
    "time_max time_default nodes_min mem_per_cpu_max mem_per_node_max cpus_per_node_max mem_per_gpu_default "
    "mem_per_node_default accounts accounts_denied qos qos_denied groups submit_hosts partition_qos hidden "
    "preemption billing state exclusive oversubscribed reservation_only"
)
_STAFF_CHOICES = ("default_partition", "cpus_per_gpu")  # the staff choose these, whatever slurm.conf says
# Staff may promise less than there is, to leave room for the system, and allow less than Slurm: NAME_max.
_LOWERED_KEYS = ("cpus_per_node", "mem_per_node", "max_array_tasks")


@frozen()
class Difference:
    """A key with another value than the cluster has."""

    path: KeyPath  # the key and those above it
    at: str  # its place in the file; "" if the profile lacks it
    # Its value in the profile, as text; "" if it has none; of a partition that is gone, its new name
    written: str
    live: Entry | None  # the cluster's entry; None if it has none, or the cluster has no such partition
    # "info" for what is new, or less than there is; "warning" for what changes often
    severity: Severity = "error"

    @property
    def key(self) -> str:
        """The keys joined with dots."""
        return ".".join(self.path)


def differences(profile: Document[Profile], cluster: LiveCluster) -> list[Difference]:
    """Return what the cluster contradicts or has in addition; only what Slurm shows is compared."""
    entries = facts(cluster)
    live = decode(_PROFILE_HEAD + "\n".join(lines(entries)) + "\n", Profile, name="cluster").value
    comparison = _Comparison(profile, live, cluster)
    of_slurm = "partition" not in profile.value.omit  # else names of partitions are not the cluster's
    left_out = {""} if of_slurm else {"", "partitions", "default_partition"}
    left_out |= {"user"} - {*profile.places}  # a profile for others is without it
    compared = [entry for entry in entries if entry.key not in left_out]
    rows = [row for entry in compared for row in comparison.stale(entry, (entry.key,))]
    hidden = {("partitions", partition.name) for partition in cluster.partitions if partition.hidden}
    gone = [*comparison.ended(), *(comparison.gone() if of_slurm else ())]
    return [row for row in [*rows, *gone] if row.at or row.path not in hidden]


@frozen()
class _Comparison:
    profile: Document[Profile]
    live: Profile
    cluster: LiveCluster

    def stale(self, entry: Entry, path: KeyPath) -> Iterator[Difference]:
        """Yield differences at a key that the cluster has, or below it."""
        at = self.profile.places.get(".".join(path), "")
        if at and len(path) < _DEPTHS.get(path[0], 1):
            for below in entry.entries:
                if below.key:
                    yield from self.stale(below, (*path, below.key))
            return
        ours, theirs = _get(self.profile.value, path), _get(self.live, path)
        if not at and path[0] == "partitions" and _get(self.profile.value, (*path[:2], "shapes")):
            return  # it follows from the kinds of nodes
        if at and (path[-1] in _STAFF_CHOICES or _is_alike(path[-1], ours, theirs)):
            return
        less = _is_less(ours, theirs)
        severity: Severity = "warning" if less or path[-1] == "state" else "error"
        if not at or (less and path[-1].endswith((*_LOWERED_KEYS, "_max")) and not self._follows(path)):
            severity = "info"
        yield Difference(path, at, _shown(ours), entry, severity)

    def _follows(self, path: KeyPath) -> bool:
        """Return whether a value is the number of the partition's nodes, not a limit of the staff."""
        listed = _get(self.profile.value, (*path[:-1], "nodes"))
        known = {*hosts(str(listed))} if path[-1] == "nodes_max" and listed else ()
        return bool(known) and len(known) == _get(self.profile.value, path)

    def _renamed(self, gone: Partition) -> str:
        """Return the new partition that has the nodes of one that is gone; "" if there is no such one."""
        had = {*hosts(str(gone.nodes or ""))}
        for name, partition in self.live.partitions.items():
            is_new = name not in self.profile.value.partitions
            if had and is_new and had == {*hosts(str(partition.nodes or ""))}:
                return str(name)
        return ""

    def ended(self) -> Iterator[Difference]:
        """Yield reservations that the cluster does not have."""
        for name in self.profile.value.reservations if self.cluster.reservations is not None else ():
            path = ("reservations", str(name))
            if name not in self.live.reservations:
                yield Difference(path, self.profile.places.get(".".join(path), ""), "", None, "warning")

    def gone(self) -> Iterator[Difference]:
        """Yield partitions that the cluster does not have, and keys of others that it has no value for."""
        shown = {partition.name for partition in self.cluster.partitions}
        for name, ours in self.profile.value.partitions.items():
            path = ("partitions", str(name))
            if name not in shown and "partitions" not in self.cluster.setting("PrivateData"):
                yield Difference(path, self.profile.places.get(".".join(path), ""), self._renamed(ours), None)
            theirs = self.live.partitions.get(name)
            for key, value in _without_entry(ours, theirs) if theirs else ():
                at, written = self.profile.places.get(".".join((*path, key)), ""), getattr(ours, key)
                if at and written != value:
                    entry = None if value in (None, ()) else Entry(key, _shown(value))
                    severity: Severity = "warning" if key == "state" else "error"
                    yield Difference((*path, key), at, _shown(written), entry, severity)


def _without_entry(ours: Partition, theirs: Partition) -> Iterator[tuple[str, Any]]:
    """Yield keys of a partition that the cluster has no entry for, with their values there."""
    for key in _ALWAYS_SHOWN.split():
        if getattr(theirs, key) in (None, (), "", "up", False):
            yield key, getattr(theirs, key)
    if theirs.shapes:
        for key in ("cpus_per_node", "mem_per_node", "gpus_per_node"):
            if _is_less(getattr(theirs, key), getattr(ours, key)):
                yield key, getattr(theirs, key)
    elif theirs.cpus_per_node:
        yield "shapes", ()
    if theirs.gpu_types:
        yield "gpus_typed", True
        if ours.gpu_type not in theirs.gpu_types:
            yield "gpu_type", next(iter(theirs.gpu_types))


def _is_alike(key: str, ours: Any, theirs: Any) -> bool:
    if key == "slurm":
        return str(ours)[:5] == str(theirs)[:5]  # a patch release changes nothing here
    if key == "nodes" and ours and theirs:
        known = {*hosts(str(ours))}
        return known == {*hosts(str(theirs))} if known else ours == theirs
    return bool(_plain(ours) == _plain(theirs))


def _is_less(ours: Any, theirs: Any) -> bool:
    return isinstance(ours, int) and isinstance(theirs, int) and ours < theirs


def _get(value: Any, path: KeyPath) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def _plain(value: Any) -> Any:
    """Return a value without classes and order, to be compared."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return sorted(map(_plain, value), key=repr) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        kinds = any(map(is_dataclass, value))
        return f"{len(value)} kinds" if kinds else f"[{', '.join(map(str, value))}]"
    return str(dict(value)) if isinstance(value, Mapping) else str(value)


def findings(rows: Sequence[Difference], file: str, fix_all: str = "") -> Iterator[Finding]:
    """Report each stale value, and all that is new in one finding.

    `fix_all` makes the user's own file of one that is not to be edited.
    """
    for row in rows:
        key, theirs = row.path[-1], _cut(row.live.flow) if row.live else ""
        if row.live is None and len(row.path) == 2:
            what = f"the cluster shows no {row.path[0][:-1]} '{key}'"
            fix = "remove it, or ask an administrator"
            if row.written:
                what = f"{what}, and '{row.written}' has its nodes"
                fix = f"if it was renamed, write {row.written}: for {key}:"
        elif row.live is None:
            what = f"{row.key} is {_cut(row.written)}, but the cluster has no such limit"
            fix = f"remove {key}"
            if key == "shapes":
                what = f"{row.key}: all nodes are alike now"
        else:
            what = f"{row.key} is {_cut(row.written)}, but the cluster has {theirs}"
            fix = f"write {key}: {theirs}" if row.severity != "info" else ""
        if row.at or row.live is None:
            yield Finding(row.severity, Problem(what, row.at, fix and (fix_all or fix)))
    if new := [row.key for row in rows if not row.at]:
        what = f"missing from the profile: {first_names(new, 5)}"
        yield Finding("info", Problem(what, file, fix_all or f"sbatchgen profile discover --update {file}"))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
