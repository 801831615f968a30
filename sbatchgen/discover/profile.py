"""The profile of a live cluster: keys for what Slurm says, comments for what it does not tell."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.discover.cluster import LiveCluster
from sbatchgen.discover.entries import Entry, flow, is_clean, lines, listed, scalar
from sbatchgen.discover.machine import conda_roots, fast_interfaces, modules, programs
from sbatchgen.discover.shapes import Shape, shapes
from sbatchgen.inputs.profile import Qos
from sbatchgen.slurm.config import array_limits
from sbatchgen.slurm.node import SlurmNode
from sbatchgen.slurm.partition import SlurmPartition
from sbatchgen.slurm.printed import count
from sbatchgen.units import Duration, Memory, Release

_MOST_FEATURES = 100
_MOST_TEXT = 4000  # characters of a list of nodes
_SETTINGS = ("JobRequeue", "KillWait", "PreemptMode", "PrivateData", "JobSubmitPlugins")


def text(cluster: LiveCluster, environment: Mapping[str, str], *, name: str, today: str) -> str:
    """The whole file."""
    head = [
        Entry("", above=[f"The profile of cluster {name}, as `sbatchgen profile discover` found it."]),
        Entry("name", scalar(name)),
        Entry("url", '""  # the address of your guide'),
        Entry("checked", today),
        Entry("", above=["contact: whom to ask"]),
    ]
    return "\n".join(
        [*lines([*head, *facts(cluster), *_of_user(cluster), *_of_machine(cluster, environment)]), ""]
    )


def facts(cluster: LiveCluster) -> list[Entry]:
    """What Slurm says, as keys of a profile."""
    return [one for one in _facts(cluster) if one.key or one.above]


def _facts(cluster: LiveCluster) -> Iterator[Entry]:
    yield from _release(cluster)
    default = next((one.name for one in cluster.partitions if one.default), "")
    if is_clean(default):
        yield Entry("default_partition", scalar(default))
    else:
        yield Entry("", above=["No partition is the default one: jobs have to name theirs."])
    yield from _limits(cluster)
    yield from _partitions(cluster)
    yield from _all_qos(cluster)
    names = [one for one in cluster.setting("GresTypes").split(",") if is_clean(one)]
    if names:
        yield Entry("gres_types", listed(names))
    if cluster.plugin_options:
        yield Entry("plugin_options", listed(cluster.plugin_options))
    elif cluster.plugin_options is None:
        yield Entry("", above=["plugin_options: not known; see the end of `sbatch --help`"])
    if cluster.setting("SelectType").startswith(("select/cons_res", "select/linear")):
        yield Entry("gpu_request", "gres", ["--gpus-per-node needs select/cons_tres."])


def _release(cluster: LiveCluster) -> Iterator[Entry]:
    told = cluster.setting("SLURM_VERSION")
    match = re.match(r"[0-9]{2}\.[0-9]{2}(?:\.[0-9]+)?", told)
    try:
        yield Entry("slurm", Release.parse(match[0] if match else ""))
    except ValueError:
        yield Entry("", above=[f"slurm: the release is not known here: {told or 'see sbatch --version'}"])


def _limits(cluster: LiveCluster) -> Iterator[Entry]:
    if not cluster.settings:
        yield Entry("", above=["limits: not known; see scontrol show config"])
        return
    how = cluster.setting("SelectTypeParameters").upper()
    found = []
    enforced = cluster.setting("EnforcePartLimits").lower()
    if enforced in ("no", "any", "all"):
        found.append(Entry("enforce_part_limits", scalar(enforced)))
    if "qos" in cluster.setting("AccountingStorageEnforce").split(","):
        found.append(Entry("enforce_qos", "true"))
    found += [Entry(key, str(most)) for key, most in array_limits(cluster.settings).items()]
    found.append(Entry("memory_consumable", str("MEMORY" in how).lower()))
    if "MULTIPLE_SHARING_GRES_PJ" in how:
        found.append(Entry("several_gpus_per_sharing_job", "true"))
    told = ((one, cluster.setting(one)) for one in _SETTINGS)
    settings = ", ".join(f"{one}={value}" for one, value in told if value not in ("", "none", "OFF"))
    above = [f"slurm.conf: {settings}"]
    if cluster.setting("JobSubmitPlugins"):
        above.append("A plugin of the site may change or refuse jobs (JobSubmitPlugins): ask for its rules.")
    yield Entry("limits", found, above)


def _partitions(cluster: LiveCluster) -> Iterator[Entry]:
    members: dict[str, list[SlurmNode]] = defaultdict(list)
    for node in cluster.nodes:
        for name in node.partitions if node.cpus else ():
            members[name].append(node)
    known = [one for one in cluster.partitions if not one.root_only and is_clean(one.name)]
    above = [
        f"Left out: {one.name}, {'for root only' if one.root_only else 'a strange name'}"
        for one in cluster.partitions
        if one not in known
    ]
    if "partitions" in cluster.setting("PrivateData"):
        above.append("PrivateData hides partitions: there may be others; ask an administrator.")
    made = []
    # A job that names none gets the first that fits: those for few people come last.
    for one in sorted(known, key=lambda one: (one.hidden or bool(one.groups), not one.default)):
        below, notes = [*_partition(one, members[one.name], cluster)], [*_notes(one)]
        if not any(entry.key for entry in below):
            notes += [note for entry in below for note in entry.above]
        made.append(Entry(one.name, below if any(entry.key for entry in below) else "{}", notes))
    yield Entry("partitions" if made else "", made, above)


def _notes(one: SlurmPartition) -> Iterator[str]:
    """What jobs should know that no key holds."""
    if one.hidden:
        yield "Hidden: sinfo shows it with --all only."
    if one.groups:
        yield f"Only for groups {', '.join(one.groups)}."
    for what, names in (("accounts", one.accounts_denied), ("QOS", one.qos_denied)):
        if names:
            yield f"Not for {what} {', '.join(names)}."
    if one.own_qos:
        yield f"The limits of QOS {one.own_qos} hold as well."
    if one.preempt not in ("OFF", ""):
        yield f"Jobs may be preempted: PreemptMode={one.preempt}, GraceTime={one.grace_s} s."
    for memory, whose in ((one.mem_per_gpu, "GPU"), (one.mem_per_node, "node")):
        if memory:
            yield f"Without --mem a job gets {Memory(memory)} per {whose}."


def _partition(one: SlurmPartition, nodes: Sequence[SlurmNode], cluster: LiveCluster) -> Iterator[Entry]:
    most = min(filter(None, (one.nodes_max, one.nodes)), default=0)
    hosts = one.node_list if len(one.node_list) <= _MOST_TEXT and is_clean(one.node_list[:200]) else ""
    if one.node_list and not hosts:
        yield Entry("", above=[f"nodes: too long a list; see scontrol show partition {one.name}"])
    yield from _given(
        time_max=one.time_max_s and Duration(one.time_max_s),
        time_default=one.time_default_s and Duration(one.time_default_s),
        nodes=hosts and scalar(hosts),
        nodes_max=most,
        nodes_min=one.nodes_min if (one.nodes_min or 0) > 1 else None,
    )
    yield from _nodes(one, nodes, cluster)
    each, limit = _memory_per_cpu(one, cluster)
    yield from _given(
        mem_per_cpu_default=each and Memory(each),
        mem_per_cpu_max=limit and Memory(limit),
        cpus_per_gpu=one.cpus_per_gpu,
        accounts=listed(one.accounts) if one.accounts and all(map(is_clean, one.accounts)) else None,
        qos=listed(one.qos) if one.qos and all(map(is_clean, one.qos)) else None,
        state=one.state if one.state in ("down", "drain", "inactive") else None,
        exclusive="true" if one.exclusive else None,
        reservation_only="true" if one.reservation_only else None,
    )


def _given(**values: object) -> Iterator[Entry]:
    """Keys with their values, without those that are not set."""
    return (Entry(key, str(value)) for key, value in values.items() if value)


def _memory_per_cpu(one: SlurmPartition, cluster: LiveCluster) -> tuple[int | None, int | None]:
    """The default and the limit; where a partition sets none, those of the cluster hold (slurm.conf(5))."""
    each, limit = one.mem_per_cpu, one.mem_per_cpu_max
    if not each and not one.mem_per_node:
        each = count(cluster.setting("DefMemPerCPU"))
    if not limit and not one.mem_per_node_max:
        limit = count(cluster.setting("MaxMemPerCPU"))
    return (None if each and limit and each > limit else each), limit


def _nodes(one: SlurmPartition, nodes: Sequence[SlurmNode], cluster: LiveCluster) -> Iterator[Entry]:
    """What the nodes have, if all of them are known."""
    found, remark = shapes(nodes, one, cluster.settings)
    unseen = max(one.nodes - len(nodes), 0)
    if unseen or not found:
        yield Entry("", above=[*_unknown(one, unseen, found)])
        return
    if remark:
        yield Entry("", above=[remark])
    if len(found) == 1:
        yield from _shape(found[0][0])
    else:
        yield Entry("shapes", [flow({"nodes": n, **_values(shape)}) for shape, n in found])
    untyped = any(shape.untyped for shape, _ in found)
    if untyped and not any(shape.types for shape, _ in found):
        if all(node.flags.isdisjoint({"CLOUD", "NOT_RESPONDING", "POWERED_DOWN"}) for node in nodes):
            yield Entry("gpus_typed", "false")
        else:
            yield Entry("", above=["slurm.conf gives these GPUs no type; gres.conf may."])
    features = [*dict.fromkeys(feature for node in nodes for feature in node.features)]
    if 0 < len(features) <= _MOST_FEATURES and all(map(is_clean, features)):
        yield Entry("features", listed(features))
    elif features:
        yield Entry("", above=["features: too many, or not UTF-8; see sinfo -o '%50N %f'"])


def _unknown(one: SlurmPartition, unseen: int, found: Sequence[tuple[Shape, int]]) -> Iterator[str]:
    if not one.nodes:
        yield "It has no nodes now: what they will have is not known."
        return
    average = f" ({one.cpus} CPUs in all, {one.cpus // one.nodes} on average)" if one.cpus else ""
    yield f"Slurm hides {unseen} of {one.nodes} nodes{average}: off in the cloud, or private."
    yield "Their CPUs, memory, GPUs and shards are not known; ask an administrator, or look while they run:"
    yield f"scontrol show node {one.node_list[:100]}"
    for shape, number in found:
        yield f"seen: {flow({'nodes': number, **_values(shape)})}"


def _values(shape: Shape) -> dict[str, str]:
    return {entry.key: entry.flow for entry in _shape(shape)}


def _shape(shape: Shape) -> Iterator[Entry]:
    yield Entry("cpus_per_node", str(shape.cpus))
    if shape.threads > 1:
        yield Entry("threads_per_core", str(shape.threads))
    if shape.memory > 1:  # 1 MiB is what slurm.conf has where nobody set it
        yield Entry("mem_per_node", str(Memory(shape.memory)))
    yield Entry("gpus_per_node", str(shape.gpus))
    if shape.types and not shape.untyped:
        yield Entry("gpu_types", flow(dict(shape.types)))
    if shape.shards:
        yield Entry("shards_per_gpu", str(shape.shards))


def _all_qos(cluster: LiveCluster) -> Iterator[Entry]:
    """Those that Slurm holds jobs to (AccountingStorageEnforce of slurm.conf(5))."""
    enforced = cluster.setting("AccountingStorageEnforce").split(",")
    named = {name: one for name, one in (cluster.qos or {}).items() if is_clean(name)}
    if named and "limits" in enforced:
        yield Entry("qos", [Entry(name, _qos(one)) for name, one in named.items()])
    elif named and "qos" in enforced:
        yield Entry("qos", [Entry(name, "{}") for name in named], ["No limits of QOS are enforced."])
    elif named:
        yield Entry("", above=["QOS are not enforced (AccountingStorageEnforce)."])


def _qos(one: Qos) -> list[Entry] | str:
    limits: dict[str, object] = {
        "time_max": one.time_max,
        "nodes_max": one.nodes_max,
        "gpus_max": one.gpus_max,
        "cpus_max": one.cpus_max,
        "deny_on_limit": "true" if one.deny_on_limit else None,
        "overrides": listed(one.overrides) if one.overrides else None,
    }
    return [Entry(key, str(value)) for key, value in limits.items() if value is not None] or "{}"


def _of_user(cluster: LiveCluster) -> Iterator[Entry]:
    """Comments: what another user has may differ."""
    if cluster.accounts is None:
        above = ["Accounts and QOS: no database answered here (sacctmgr show assoc)."]
    else:
        above = [f"Accounts of {cluster.user}:"] if cluster.accounts else [f"{cluster.user} has no account."]
        for one in cluster.accounts:
            where = f" in partition {one.partition}" if one.partition else ""
            default = f", by default {one.default_qos}" if one.default_qos else ""
            above.append(f"{one.name}{where}: QOS {', '.join(one.qos) or 'none'}{default}")
    if "associations" in cluster.setting("AccountingStorageEnforce"):
        above.append("Slurm refuses jobs with another account. To make each name one: required: [account]")
    yield Entry("", above=above)


def _of_machine(cluster: LiveCluster, environment: Mapping[str, str]) -> Iterator[Entry]:
    """Comments: compute nodes may differ from this machine."""
    above = [
        f"pyxis: {_pyxis(cluster)}",
        "On this machine (compute nodes may differ; look there: srun -N1 COMMAND):",
    ]
    above += [
        f"{name}: {path or 'not found'}"
        for name, path in programs(environment)
        if path or name != "singularity"
    ]
    roots = conda_roots(environment)
    above.append(f"conda: {', '.join(roots) or 'not found'} (runtimes: conda: root)")
    above.append(f"modules: {modules(environment) or 'not found'} (module avail)")
    fast = ", ".join(fast_interfaces()) or "none found"
    above.append(f"fast interfaces: {fast} (network: nccl_socket_ifname, gloo_socket_ifname; ip -br addr)")
    yield Entry("", above=above)


def _pyxis(cluster: LiveCluster) -> str:
    """Whether sbatch has its options; a site may keep them for srun."""
    if cluster.plugin_options is None:
        return "not known; sbatch --help has --container-image where it is installed"
    here = "container-image=" in cluster.plugin_options
    return "sbatch has --container-image (runtime: enroot)" if here else "sbatch has no --container-image"
