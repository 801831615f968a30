"""Compares a profile with its live cluster: finds stale values, and keys that the profile lacks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding, Severity
from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import first_names, word
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.inputs.document import Document, decode
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.lab.discover.entries import Entry, lines
from sbatchgen.lab.discover.facts import entries_from_slurm
from sbatchgen.lab.discover.slurm_answers import LiveCluster

KeyPath = tuple[str, ...]  # a key and the keys above it, outermost first
_PROFILE_HEAD = 'name: x\nurl: ""\nchecked: x\n'  # keys that each profile must have
# The length of the paths whose values are compared, such as partitions.gpu.time_max. A mapping at any other
# key is compared as one value.
_KEY_DEPTHS = {"limits": 2, "partitions": 3, "qos": 3, "reservations": 3}
# Keys of a partition that scontrol always shows. A cluster without a value has no such limit.
_ALWAYS_SHOWN = (
    "time_max time_default nodes_min mem_per_cpu_max mem_per_node_max cpus_per_node_max mem_per_gpu_default "
    "mem_per_node_default accounts accounts_denied qos qos_denied groups submit_hosts partition_qos hidden "
    "preemption billing state exclusive oversubscribed reservation_only"
)
# Keys whose values the author of a profile chooses. They need not be those of slurm.conf.
_STAFF_CHOICES = ("default_partition", "cpus_per_gpu")
# Keys whose values may be lower than Slurm's, to leave room for the system. Keys NAME_max may be lower too.
_LOWERED_KEYS = ("cpus_per_node", "mem_per_node", "max_array_tasks")


@frozen()
class Difference:
    """A key of a profile whose value is not the cluster's."""

    path: KeyPath
    at: str  # the place of the key in the file; "" if the profile lacks the key
    written: str  # the value in the profile as text; "" without one
    live: Entry | None  # the cluster's entry; None if the cluster has no such key or partition
    # "info" for a key that is new or may be lower; "warning" for a value that changes often
    severity: Severity = "error"
    # the name of the cluster's new partition with the nodes of a partition that it lacks; "" without one
    new_name: str = ""

    @property
    def key(self) -> str:
        """The keys joined with dots."""
        return ".".join(self.path)


def differences(profile: Document[Profile], cluster: LiveCluster) -> list[Difference]:
    """Return the keys of a profile that differ from the cluster's, or that the profile lacks.

    Only keys that Slurm shows are compared.
    """
    entries = entries_from_slurm(cluster)
    live = decode(_PROFILE_HEAD + "\n".join(lines(entries)) + "\n", Profile, name="cluster").value
    comparison = _Comparison(profile, live, cluster)
    # A profile whose jobs have no --partition may call partitions by names of its own.
    has_names_of_slurm = "partition" not in profile.value.omit
    excluded = {""} if has_names_of_slurm else {"", "partitions", "default_partition"}
    if "user" not in profile.places:  # the profile is for other users too
        excluded.add("user")
    compared = [entry for entry in entries if entry.key not in excluded]
    rows = [row for entry in compared for row in comparison.differences_at(entry, (entry.key,))]
    hidden = {("partitions", partition.name) for partition in cluster.partitions if partition.hidden}
    rows += comparison.missing_reservations()
    rows += comparison.missing_in_partitions() if has_names_of_slurm else ()
    # A hidden partition may be missing from a profile.
    return [row for row in rows if row.at or row.path not in hidden]


@frozen()
class _Comparison:
    """The comparison of a profile with `live`, the profile that `discover` makes of its cluster."""

    profile: Document[Profile]
    live: Profile
    cluster: LiveCluster

    def differences_at(self, entry: Entry, path: KeyPath) -> Iterator[Difference]:
        """Yield the differences at an entry of the cluster, or at the entries below it."""
        at = self.profile.places.get(".".join(path), "")
        if at and len(path) < _KEY_DEPTHS.get(path[0], 1):
            for inner_entry in entry.entries:
                if inner_entry.key:
                    yield from self.differences_at(inner_entry, (*path, inner_entry.key))
            return
        ours, theirs = _value_at(self.profile.value, path), _value_at(self.live, path)
        if not at and path[0] == "partitions" and _value_at(self.profile.value, (*path[:2], "shapes")):
            return  # the profile has the key in its `shapes`
        if at and (path[-1] in _STAFF_CHOICES or _is_alike(path[-1], ours, theirs)):
            return
        is_less = _is_less(ours, theirs)
        severity: Severity = "warning" if is_less or path[-1] == "state" else "error"
        may_be_lower = path[-1].endswith((*_LOWERED_KEYS, "_max")) and not self._is_node_count(path)
        if not at or (is_less and may_be_lower):
            severity = "info"
        yield Difference(path, at, _value_text(ours), entry, severity)

    def _is_node_count(self, path: KeyPath) -> bool:
        """Return whether a key is a `nodes_max` with the number of all nodes of the partition.

        Such a value is a fact, not a limit that the author of the profile lowered.
        """
        node_list = _value_at(self.profile.value, (*path[:-1], "nodes"))
        nodes = {*hosts(str(node_list))} if path[-1] == "nodes_max" and node_list else ()
        return bool(nodes) and len(nodes) == _value_at(self.profile.value, path)

    def _new_name(self, missing: Partition) -> str:
        """Return the name of the cluster's new partition with a missing partition's nodes; "" without one."""
        nodes = {*hosts(str(missing.nodes or ""))}
        for name, partition in self.live.partitions.items():
            is_new = name not in self.profile.value.partitions
            if nodes and is_new and nodes == {*hosts(str(partition.nodes or ""))}:
                return str(name)
        return ""

    def missing_reservations(self) -> Iterator[Difference]:
        """Yield the reservations of the profile that the cluster lacks."""
        if self.cluster.reservations is None:
            return
        for name in self.profile.value.reservations:
            path = ("reservations", str(name))
            if name not in self.live.reservations:
                yield Difference(path, self.profile.places.get(".".join(path), ""), "", None, "warning")

    def missing_in_partitions(self) -> Iterator[Difference]:
        """Yield the partitions that the cluster lacks, and keys for which its partitions have no entry."""
        shown = {partition.name for partition in self.cluster.partitions}
        for name, ours in self.profile.value.partitions.items():
            path = ("partitions", str(name))
            if name not in shown and "partitions" not in self.cluster.setting("PrivateData"):
                at = self.profile.places.get(".".join(path), "")
                yield Difference(path, at, "", None, new_name=self._new_name(ours))
            theirs = self.live.partitions.get(name)
            if not theirs:
                continue
            for key, value in _without_entry(ours, theirs):
                at, written = self.profile.places.get(".".join((*path, key)), ""), getattr(ours, key)
                if at and written != value:
                    entry = None if value in (None, ()) else Entry(key, _value_text(value))
                    severity: Severity = "warning" if key == "state" else "error"
                    yield Difference((*path, key), at, _value_text(written), entry, severity)


def _without_entry(ours: Partition, theirs: Partition) -> Iterator[tuple[str, Any]]:
    """Yield keys for which the cluster's partition `theirs` has no entry, with the values that they have.

    Such a value is a default, or follows from other keys such as `shapes`.
    """
    for key in _ALWAYS_SHOWN.split():
        if getattr(theirs, key) in (None, (), "", "up", False):
            yield key, getattr(theirs, key)
    if theirs.shapes:  # each key below has the largest value of all kinds of nodes
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
    """Return whether the profile and the cluster have the same value of a key."""
    if key == "slurm":
        return str(ours)[:5] == str(theirs)[:5]  # such as 23.11, without the patch release
    if key == "nodes" and ours and theirs:
        nodes = {*hosts(str(ours))}
        return nodes == {*hosts(str(theirs))} if nodes else ours == theirs
    return bool(_without_order(ours) == _without_order(theirs))


def _is_less(ours: Any, theirs: Any) -> bool:
    """Return whether two values are numbers and the first, the profile's, is lower."""
    return isinstance(ours, int) and isinstance(theirs, int) and ours < theirs


def _value_at(value: Any, path: KeyPath) -> Any:
    """Return the value at a path of keys; None if there is no such key."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def _without_order(value: Any) -> Any:
    """Return a value as dicts and sorted lists, so that a comparison ignores classes and order."""
    if is_dataclass(value):
        return {field.name: _without_order(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _without_order(item) for key, item in value.items()}
    return sorted(map(_without_order, value), key=repr) if isinstance(value, tuple) else value


def _value_text(value: Any) -> str:
    """Return a value of a profile as text for a message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        has_records = any(map(is_dataclass, value))  # the kinds of nodes in `shapes`
        return f"{len(value)} kinds" if has_records else f"[{', '.join(map(str, value))}]"
    return str(dict(value)) if isinstance(value, Mapping) else str(value)


def findings(rows: Sequence[Difference], file: str, fix_all: str = "") -> Iterator[Finding]:
    """Yield a finding for each stale value, and one finding for all keys that the profile lacks.

    If the user can't edit the profile, `fix_all` is the fix of each finding.
    """
    for row in rows:
        key, theirs = row.path[-1], _shortened(row.live.flow) if row.live else ""
        is_gone = row.live is None and len(row.path) == 2  # a partition or a reservation
        if is_gone:
            kind = row.path[0].removesuffix("s")
            what = f"the cluster shows no {kind} '{key}'"
            fix = "remove it, or ask an administrator"
            if row.new_name:
                what = f"{what}, and '{row.new_name}' has its nodes"
                fix = f"if it was renamed, write {row.new_name}: for {key}:"
        elif row.live is None:
            what = f"{row.key} is {_shortened(row.written)}, but the cluster has no such limit"
            fix = f"remove {key}"
            if key == "shapes":
                what = f"{row.key}: all nodes are alike now"
        else:
            what = f"{row.key} is {_shortened(row.written)}, but the cluster has {theirs}"
            fix = f"write {key}: {theirs}" if row.severity != "info" else ""
        if row.at or row.live is None:
            yield Finding(row.severity, Problem(what, row.at, fix and (fix_all or fix)))
    if new := [row.key for row in rows if not row.at]:
        what = f"missing from the profile: {first_names(new, 5)}"
        yield Finding(
            "info", Problem(what, file, fix_all or f"sbatchgen profile discover --update {word(file)}")
        )


def _shortened(text: str) -> str:
    """Return a text of at most 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."
