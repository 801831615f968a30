"""The profile of a live cluster: keys for what Slurm shows, comments for what it does not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.discover.cluster import LiveCluster
from sbatchgen.discover.entries import Entry, flow, is_clean, lines, listed, scalar
from sbatchgen.discover.machine import conda_roots, fast_interfaces, modules, programs
from sbatchgen.discover.shapes import Shape, shapes
from sbatchgen.slurm.config import array_limits
from sbatchgen.slurm.node import SlurmNode
from sbatchgen.slurm.partition import SlurmPartition
from sbatchgen.slurm.printed import count
from sbatchgen.units import Duration, Memory, Release

_MOST_FEATURES = 100
_MOST_TEXT = 4000  # characters of a list of nodes
_SETTINGS = ("JobRequeue", "KillWait", "PreemptMode", "PrivateData", "JobSubmitPlugins")
_QOS_LIMITS = ("time_max", "nodes_max", "gpus_max", "cpus_max")


def text(cluster: LiveCluster, environment: Mapping[str, str], *, name: str, today: str) -> str:
    """Return the whole file."""
    entries = [
        _comments(f"The profile of cluster {name}, as `sbatchgen profile discover` found it."),
        Entry("name", scalar(name)),
        Entry("url", '""  # the address of your guide'),
        Entry("checked", today),
        _comments("contact: whom to ask"),
        *facts(cluster),
        _comments(*_of_user(cluster)),
        _comments(*_of_machine(cluster, environment)),
    ]
    return "\n".join([*lines(entries), ""])


def facts(cluster: LiveCluster) -> list[Entry]:
    """Return what Slurm shows, as keys of a profile."""
    return [entry for entry in _facts(cluster) if entry.key or entry.above]


def _comments(*above: str) -> Entry:
    return Entry("", above=above)


def _keys(**values: object) -> Iterator[Entry]:
    """Yield keys with their values, without those that are not set."""
    return (Entry(key, str(value)) for key, value in values.items() if value)


def _facts(cluster: LiveCluster) -> Iterator[Entry]:
    version = cluster.setting("SLURM_VERSION")
    match = re.match(r"[0-9]{2}\.[0-9]{2}(?:\.[0-9]+)?", version)
    try:
        yield Entry("slurm", Release.parse(match[0] if match else ""))
    except ValueError:
        yield _comments(f"slurm: the release is not known here: {version or 'see sbatch --version'}")
    default = next((partition.name for partition in cluster.partitions if partition.default), "")
    if is_clean(default):
        yield Entry("default_partition", scalar(default))
    else:
        yield _comments("No partition is the default one: jobs have to name theirs.")
    yield from _limits(cluster)
    yield from _partitions(cluster)
    yield from _all_qos(cluster)
    names = [name for name in cluster.setting("GresTypes").split(",") if is_clean(name)]
    plugins = cluster.plugin_options
    yield from _keys(gres_types=names and listed(names), plugin_options=plugins and listed(plugins))
    if plugins is None:
        yield _comments("plugin_options: not known; see the end of `sbatch --help`")
    if cluster.setting("SelectType").startswith(("select/cons_res", "select/linear")):
        yield Entry("gpu_request", "gres", ["--gpus-per-node needs select/cons_tres."])


def _limits(cluster: LiveCluster) -> Iterator[Entry]:
    if not cluster.settings:
        yield _comments("limits: not known; see scontrol show config")
        return
    select = cluster.setting("SelectTypeParameters").upper()
    enforced = cluster.setting("EnforcePartLimits").lower()
    limits = _keys(
        enforce_part_limits=enforced in ("no", "any", "all") and scalar(enforced),
        enforce_qos="qos" in cluster.setting("AccountingStorageEnforce").split(",") and "true",
        **{key: str(limit) for key, limit in array_limits(cluster.settings).items()},
        memory_consumable=str("MEMORY" in select).lower(),
        several_gpus_per_sharing_job="MULTIPLE_SHARING_GRES_PJ" in select and "true",
    )
    values = ((name, cluster.setting(name)) for name in _SETTINGS)
    settings = ", ".join(f"{name}={value}" for name, value in values if value not in ("", "none", "OFF"))
    above = [f"slurm.conf: {settings}"]
    if cluster.setting("JobSubmitPlugins"):
        above.append("A plugin of the site may change or refuse jobs (JobSubmitPlugins): ask for its rules.")
    yield Entry("limits", above=above, entries=[*limits])


def _partitions(cluster: LiveCluster) -> Iterator[Entry]:
    members: dict[str, list[SlurmNode]] = defaultdict(list)
    for node in cluster.nodes:
        for name in node.partitions if node.cpus else ():
            members[name].append(node)
    above, known, entries = [], [], []
    for partition in cluster.partitions:
        if partition.root_only or not is_clean(partition.name):
            reason = "for root only" if partition.root_only else "a strange name"
            above.append(f"Left out: {partition.name}, {reason}")
        else:
            known.append(partition)
    if "partitions" in cluster.setting("PrivateData"):
        above.append("PrivateData hides partitions: there may be others; ask an administrator.")
    # A job that names no partition gets the first that fits: those for few people come last.
    known.sort(key=lambda partition: (partition.hidden or bool(partition.groups), not partition.default))
    for partition in known:
        below, notes = [*_partition(partition, members[partition.name], cluster)], [*_notes(partition)]
        if not any(entry.key for entry in below):
            notes += [note for entry in below for note in entry.above]
            below = []
        entries.append(Entry(partition.name, "" if below else "{}", notes, entries=below))
    yield Entry("partitions" if entries else "", above=above, entries=entries)


def _notes(partition: SlurmPartition) -> Iterator[str]:
    """Facts that jobs need and no key holds."""
    if partition.hidden:
        yield "Hidden: sinfo shows it with --all only."
    if partition.groups:
        yield f"Only for groups {', '.join(partition.groups)}."
    for what, names in (("accounts", partition.accounts_denied), ("QOS", partition.qos_denied)):
        if names:
            yield f"Not for {what} {', '.join(names)}."
    if partition.own_qos:
        yield f"The limits of QOS {partition.own_qos} hold as well."
    if partition.preempt not in ("OFF", ""):
        yield f"Jobs may be preempted: PreemptMode={partition.preempt}, GraceTime={partition.grace_s} s."
    for memory, whose in ((partition.mem_per_gpu, "GPU"), (partition.mem_per_node, "node")):
        if memory:
            yield f"Without --mem a job gets {Memory(memory)} per {whose}."


def _partition(
    partition: SlurmPartition, nodes: Sequence[SlurmNode], cluster: LiveCluster
) -> Iterator[Entry]:
    hosts = partition.node_list
    if len(hosts) > _MOST_TEXT or not is_clean(hosts[:200]):
        hosts = ""
    if partition.node_list and not hosts:
        yield _comments(f"nodes: too long a list; see scontrol show partition {partition.name}")
    yield from _keys(
        time_max=partition.time_max_s and Duration(partition.time_max_s),
        time_default=partition.time_default_s and Duration(partition.time_default_s),
        nodes=hosts and scalar(hosts),
        nodes_max=min(filter(None, (partition.nodes_max, partition.nodes)), default=0),
        nodes_min=partition.nodes_min if (partition.nodes_min or 0) > 1 else None,
    )
    yield from _nodes(partition, nodes, cluster)
    default, limit = (
        partition.mem_per_cpu,
        partition.mem_per_cpu_max,
    )  # else those of the cluster: slurm.conf(5)
    if not default and not partition.mem_per_node:
        default = count(cluster.setting("DefMemPerCPU"))
    if not limit and not partition.mem_per_node_max:
        limit = count(cluster.setting("MaxMemPerCPU"))
    if default and limit and default > limit:
        default = None
    yield from _keys(
        mem_per_cpu_default=default and Memory(default),
        mem_per_cpu_max=limit and Memory(limit),
        cpus_per_gpu=partition.cpus_per_gpu,
        accounts=partition.accounts and all(map(is_clean, partition.accounts)) and listed(partition.accounts),
        qos=partition.qos and all(map(is_clean, partition.qos)) and listed(partition.qos),
        state=partition.state in ("down", "drain", "inactive") and partition.state,
        exclusive=partition.exclusive and "true",
        reservation_only=partition.reservation_only and "true",
    )


def _nodes(partition: SlurmPartition, nodes: Sequence[SlurmNode], cluster: LiveCluster) -> Iterator[Entry]:
    """Yield what the nodes have, if all of them are known."""
    kinds, remark = shapes(nodes, partition, cluster.settings)
    unseen = max(partition.nodes - len(nodes), 0)
    if unseen or not kinds:
        yield _comments(*_unknown(partition, unseen, kinds))
        return
    if remark:
        yield _comments(remark)
    if len(kinds) == 1:
        yield from _shape(kinds[0][0])
    else:
        yield Entry("shapes", items=[_seen(shape, number) for shape, number in kinds])
    if any(shape.untyped for shape, _ in kinds) and not any(shape.types for shape, _ in kinds):
        if all(node.flags.isdisjoint({"CLOUD", "NOT_RESPONDING", "POWERED_DOWN"}) for node in nodes):
            yield Entry("gpus_typed", "false")
        else:
            yield _comments("slurm.conf gives these GPUs no type; gres.conf may.")
    features = [*dict.fromkeys(feature for node in nodes for feature in node.features)]
    if len(features) > _MOST_FEATURES or not all(map(is_clean, features)):
        yield _comments("features: too many, or not UTF-8; see sinfo -o '%50N %f'")
    elif features:
        yield Entry("features", listed(features))


def _unknown(partition: SlurmPartition, unseen: int, kinds: Sequence[tuple[Shape, int]]) -> Iterator[str]:
    total, cpus = partition.nodes, partition.cpus
    if not total:
        yield "It has no nodes now: what they will have is not known."
        return
    average = f" ({cpus} CPUs in all, {cpus // total} on average)" if cpus else ""
    yield f"Slurm hides {unseen} of {total} nodes{average}: off in the cloud, or private."
    yield "Their CPUs, memory, GPUs and shards are not known; ask an administrator, or look while they run:"
    yield f"scontrol show node {partition.node_list[:100]}"
    for shape, number in kinds:
        yield f"seen: {_seen(shape, number)}"


def _seen(shape: Shape, number: int) -> str:
    """Return so many nodes of a kind, as a mapping."""
    return flow({"nodes": number, **{entry.key: entry.flow for entry in _shape(shape)}})


def _shape(shape: Shape) -> Iterator[Entry]:
    return _keys(
        cpus_per_node=str(shape.cpus),
        threads_per_core=shape.threads if shape.threads > 1 else None,
        # 1 MiB is what slurm.conf has where no one set it
        mem_per_node=Memory(shape.memory) if shape.memory > 1 else None,
        gpus_per_node=str(shape.gpus),
        gpu_types=flow(dict(shape.types)) if shape.types and not shape.untyped else None,
        shards_per_gpu=shape.shards,
    )


def _all_qos(cluster: LiveCluster) -> Iterator[Entry]:
    """Those whose limits Slurm enforces (AccountingStorageEnforce of slurm.conf(5))."""
    enforced = cluster.setting("AccountingStorageEnforce").split(",")
    named = {name: qos for name, qos in (cluster.qos or {}).items() if is_clean(name)}
    if named and "limits" in enforced:
        rows = []
        for name, qos in named.items():
            limits = {key: str(limit) for key in _QOS_LIMITS if (limit := getattr(qos, key)) is not None}
            overrides = qos.overrides and listed(qos.overrides)
            keys = [*_keys(**limits, deny_on_limit=qos.deny_on_limit and "true", overrides=overrides)]
            rows.append(Entry(name, "" if keys else "{}", entries=keys))
        yield Entry("qos", entries=rows)
    elif named and "qos" in enforced:
        above = ["No limits of QOS are enforced."]
        yield Entry("qos", above=above, entries=[Entry(name, "{}") for name in named])
    elif named:
        yield _comments("QOS are not enforced (AccountingStorageEnforce).")


def _of_user(cluster: LiveCluster) -> Iterator[str]:
    """Comments: another user may have other accounts."""
    if cluster.accounts is None:
        yield "Accounts and QOS: no database answered here (sacctmgr show assoc)."
    else:
        yield f"Accounts of {cluster.user}:" if cluster.accounts else f"{cluster.user} has no account."
    for account in cluster.accounts or ():
        where = f" in partition {account.partition}" if account.partition else ""
        default = f", by default {account.default_qos}" if account.default_qos else ""
        yield f"{account.name}{where}: QOS {', '.join(account.qos) or 'none'}{default}"
    if "associations" in cluster.setting("AccountingStorageEnforce"):
        yield "Slurm refuses jobs with another account. To make each name one: required: [account]"


def _of_machine(cluster: LiveCluster, environment: Mapping[str, str]) -> Iterator[str]:
    """Comments: compute nodes may differ from this machine."""
    options = cluster.plugin_options
    if options is None:
        yield "pyxis: not known; sbatch --help has --container-image where it is installed"
    elif "container-image=" in options:
        yield "pyxis: sbatch has --container-image (runtime: enroot)"
    else:
        yield "pyxis: sbatch has no --container-image"  # a site may keep it for srun
    yield "On this machine (compute nodes may differ; look there: srun -N1 COMMAND):"
    for name, path in programs(environment):
        if path or name != "singularity":
            yield f"{name}: {path or 'not found'}"
    yield f"conda: {', '.join(conda_roots(environment)) or 'not found'} (runtimes: conda: root)"
    yield f"modules: {modules(environment) or 'not found'} (module avail)"
    fast = ", ".join(fast_interfaces()) or "none found"
    yield f"fast interfaces: {fast} (network: nccl_socket_ifname, gloo_socket_ifname; ip -br addr)"
