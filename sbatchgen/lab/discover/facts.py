"""Writes the profile of a live cluster: keys for facts that Slurm shows, and comments for other facts."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sbatchgen.base.units import Duration, Memory, Release, Weights
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm.config import array_limits
from sbatchgen.jobs.slurm.fields import read_count
from sbatchgen.jobs.slurm.partition import SlurmPartition
from sbatchgen.lab.discover.entries import Entry, flow_list, flow_mapping, is_clean, lines, scalar
from sbatchgen.lab.discover.shapes import Kinds, Shape, kinds_of_nodes, shapes
from sbatchgen.lab.discover.slurm_answers import LiveCluster, conda_roots, fast_interfaces, modules, programs

_MAX_FEATURES = 100  # features of a kind of nodes; in place of more features, a comment is written
_MAX_NODE_LIST = 4000  # characters of a list of nodes; in place of a longer list, a comment is written
# Fields of `Shape` that become keys of the partition if all its nodes have the same value. Otherwise they
# become keys of each kind of nodes in `shapes`.
_DETAIL_FIELDS = ("features", "gres", "disk")
# Flags of reservations that begin again after their end.
_REPEATING_FLAGS = ("HOURLY", "DAILY", "WEEKDAY", "WEEKEND", "WEEKLY")
# Settings of slurm.conf that the profile shows in a comment.
_SHOWN_SETTINGS = ("JobRequeue", "KillWait", "PreemptMode", "PrivateData", "JobSubmitPlugins")
# The keys of a QOS in a profile that have a limit.
_QOS_LIMITS = "time_max nodes_max gpus_max cpus_max nodes_min gpus_min cpus_min jobs_max"


def profile_text(cluster: LiveCluster, environment: Mapping[str, str], *, name: str, today: str) -> str:
    """Return the text of a new profile, whose comments name the programs on the PATH of `environment`."""
    entries = [
        _comments(f"The profile of cluster {name}, as `sbatchgen profile discover` found it."),
        Entry("name", scalar(name)),
        Entry("url", '""  # the address of your guide'),
        Entry("checked", today),
        _comments("contact: whom to ask"),
        *entries_from_slurm(cluster),
        _comments(*_user_comments(cluster)),
        _comments(*_machine_comments(cluster, environment)),
    ]
    return "\n".join([*lines(entries), ""])


def entries_from_slurm(cluster: LiveCluster) -> list[Entry]:
    """Return the facts that Slurm shows, as entries of a profile in their order."""
    return [entry for entry in _all_entries(cluster) if entry.key or entry.comments]


def _comments(*comments: str) -> Entry:
    """Return an entry that has only these comments."""
    return Entry("", comments=comments)


def _key_entries(**values: object) -> Iterator[Entry]:
    """Yield an entry for each keyword whose value is not empty, False or None."""
    return (Entry(key, str(value)) for key, value in values.items() if value)


def _all_entries(cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the entries of a profile; an entry with neither key nor comments is ignored."""
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
    yield from _limits_entry(cluster)
    yield from _partitions_entry(cluster)
    yield from _qos_entry(cluster)
    if cluster.settings:
        names = [name for name in cluster.setting("GresTypes").split(",") if is_clean(name)]
        note = "Slurm knows no GPUs here: a job gets those of its nodes without an option."
        yield Entry("gres_types", flow_list(names), [] if "gpu" in names else [note])
        has_gpus = any(gres.name == "gpu" for node in cluster.nodes for gres in node.gres)
        if "gpu" not in names and cluster.nodes and not has_gpus:
            yield Entry("gpu_request", "none", ["Where nodes have GPUs, write gpus_per_node for them."])
    if cluster.licenses is not None:
        licenses = {name: count for name, count in cluster.licenses.items() if is_clean(name)}
        yield Entry("licenses", flow_mapping(licenses))
    yield from _reservations_entry(cluster)
    if cluster.plugin_options is None:
        yield _comments("plugin_options: not known; see the end of `sbatch --help`")
    else:
        yield Entry("plugin_options", flow_list(cluster.plugin_options))
    if "gpu" in cluster.setting("GresTypes").split(",") and _select_type(cluster) in ("cons_res", "linear"):
        yield Entry("gpu_request", "gres", ["--gpus-per-node needs select/cons_tres."])
    yield from _user_entry(cluster)


def _reservations_entry(cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the entry `reservations`, with the reservations that this user may use.

    A reservation with FLEX has no keys, because its jobs may use other nodes and times.
    """
    node_lists = {part.name: part.node_list for part in cluster.partitions}
    jobs_may_overrun = cluster.setting("ResvOverRun").split(" ")[0] != "0"
    entries = []
    for reservation in cluster.reservations or ():
        flags = {*reservation.flags}
        may_move = not flags.isdisjoint(("REPLACE", "REPLACE_DOWN"))  # Slurm may replace its nodes
        nodes = {*hosts(node_lists.get(reservation.partition, "") if may_move else reservation.nodes)}
        partitions = [name for name, text in node_lists.items() if not nodes.isdisjoint(hosts(text))]
        has_end = flags.isdisjoint(_REPEATING_FLAGS) and not jobs_may_overrun
        end = reservation.end if has_end else ""
        keys = [*_key_entries(partitions=_name_list(partitions), until=end and scalar(end))]
        if is_clean(reservation.name):
            entry_keys = [] if "FLEX" in flags else keys
            entries.append(Entry(reservation.name, "" if entry_keys else "{}", entries=entry_keys))
    yield Entry("reservations" if entries else "", entries=entries)


def _select_type(cluster: LiveCluster) -> str:
    """Return the name of the plugin that selects nodes, such as cons_tres."""
    return cluster.setting("SelectType").removeprefix("select/")


def _user_entry(cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the entry `user` with facts about this user, if limits of the cluster depend on the user."""
    groups = {group for partition in cluster.partitions for group in partition.groups}
    has_submit_hosts = any(partition.submit_hosts for partition in cluster.partitions)
    enforces_accounts = "associations" in cluster.setting("AccountingStorageEnforce").split(",")
    accounts = [account for account in cluster.accounts or () if enforces_accounts and is_clean(account.name)]
    if not is_clean(cluster.user) or not (groups or has_submit_hosts or accounts):
        return
    default = next((account for account in accounts if account.is_default), None)
    default_qos = default.default_qos if default else ""
    if default and not default_qos and len(default.qos) == 1:
        default_qos = default.qos[0]  # Slurm gives a job the only QOS of its account
    qos_of_accounts: dict[str, dict[str, None]] = defaultdict(dict)
    for account in accounts:
        qos_of_accounts[account.name] |= dict.fromkeys(filter(is_clean, account.qos))
    keys = _key_entries(
        name=scalar(cluster.user),
        groups=flow_list(sorted(filter(is_clean, groups & {*cluster.groups}))),
        host=is_clean(cluster.host) and scalar(cluster.host),
        account=default and scalar(default.name),
        accounts=accounts
        and flow_mapping({name: flow_list(names) for name, names in qos_of_accounts.items()}),
        qos=is_clean(default_qos) and scalar(default_qos),
    )
    comments = ["Facts about this user only; remove them from a profile for others."]
    yield Entry("user", comments=comments, entries=[*keys])


def _limits_entry(cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the entry `limits`, from the settings of slurm.conf."""
    if not cluster.settings:
        yield _comments("limits: not known; see scontrol show config")
        return
    select = cluster.setting("SelectTypeParameters").upper()
    enforced = cluster.setting("EnforcePartLimits").lower()
    # Without a database, Slurm ignores AccountingStorageEnforce.
    storage = cluster.setting("AccountingStorageType").rpartition("/")[2]
    accounting = cluster.setting("AccountingStorageEnforce").split(",")
    accounting = [] if storage in ("none", "(null)") else accounting
    limits = _key_entries(
        enforce_part_limits=enforced in ("no", "any", "all") and scalar(enforced),
        enforce_accounts=str("associations" in accounting).lower(),
        enforce_qos=str("qos" in accounting).lower(),
        **{key: str(limit) for key, limit in array_limits(cluster.settings).items()},
        memory_consumable=str("MEMORY" in select).lower(),
        several_gpus_per_sharing_job="MULTIPLE_SHARING_GRES_PJ" in select and "true",
        select_type=_select_type(cluster) in ("cons_tres", "cons_res", "linear") and _select_type(cluster),
        **({} if any(partition.topology for partition in cluster.partitions) else cluster.topology),
    )
    values = ((name, cluster.setting(name)) for name in _SHOWN_SETTINGS)
    settings = ", ".join(f"{name}={value}" for name, value in values if value not in ("", "none", "OFF"))
    comments = [f"slurm.conf: {settings}"]
    if cluster.setting("JobSubmitPlugins"):
        comments.append(
            "A plugin of the site may change or refuse jobs (JobSubmitPlugins): ask for its rules."
        )
    yield Entry("limits", comments=comments, entries=[*limits])


def _partitions_entry(cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the entry `partitions`."""
    # Nodes in state FUTURE exist only in slurm.conf.
    present_nodes = [node for node in cluster.nodes if node.cpus and node.state != "FUTURE"]
    kinds_by_partition = kinds_of_nodes(present_nodes, cluster.settings)
    future_counts = Counter(
        name for node in cluster.nodes if node.state == "FUTURE" for name in node.partitions
    )
    comments, usable_partitions, entries = [], [], []
    for partition in cluster.partitions:
        if partition.root_only or not is_clean(partition.name):
            reason = "only root may use it" if partition.root_only else "a profile can't hold its name"
            comments.append(f"Left out: {partition.name}, {reason}")
        else:
            usable_partitions.append(partition)
    if "partitions" in cluster.setting("PrivateData"):
        comments.append("PrivateData hides partitions: there may be others; ask an administrator.")
    # A job that names no partition gets the first one that fits, so partitions for few users come last.
    usable_partitions.sort(
        key=lambda partition: (partition.hidden or bool(partition.groups), not partition.default)
    )
    for usable_partition in usable_partitions:
        name = usable_partition.name
        # Slurm's number of nodes includes those in state FUTURE.
        present_count = max(usable_partition.nodes - future_counts[name], 0)
        partition = replace(usable_partition, nodes=present_count)
        kinds = kinds_by_partition.get(name, Counter())
        keys, notes = [*_partition_keys(partition, kinds, cluster)], []
        if not any(entry.key for entry in keys):  # the partition is {}, and its comments are written above
            notes += [note for entry in keys for note in entry.comments]
            keys = []
        entries.append(Entry(partition.name, "" if keys else "{}", notes, entries=keys))
    yield Entry("partitions" if entries else "", comments=comments, entries=entries)


def _partition_keys(partition: SlurmPartition, kinds: Kinds, cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the keys of a partition; `kinds` counts the kinds of its nodes."""
    node_list = partition.node_list if partition.nodes else ""
    if node_list and (len(node_list) > _MAX_NODE_LIST or not is_clean(node_list[:200])):
        node_list = ""
        yield _comments(f"nodes: too long a list; see scontrol show partition {partition.name}")
    yield from _key_entries(
        time_max=partition.time_max_s and Duration(partition.time_max_s),
        time_default=partition.time_default_s and Duration(partition.time_default_s),
        nodes=scalar(node_list) if node_list or not partition.nodes else None,
        nodes_max=min(filter(None, (partition.nodes_max, partition.nodes)), default=0),
        nodes_min=partition.nodes_min if (partition.nodes_min or 0) > 1 else None,
    )
    yield from _node_keys(partition, kinds, cluster)
    yield from _memory_keys(partition, cluster)
    yield from _key_entries(
        cpus_per_node_max=partition.cpus_per_node_max,
        cpus_per_gpu=partition.cpus_per_gpu,
        accounts=_name_list(partition.accounts),
        accounts_denied=_name_list(partition.accounts_denied),
        qos=_name_list(partition.qos),
        qos_denied=_name_list(partition.qos_denied),
        groups=_name_list(partition.groups),
        submit_hosts=is_clean(partition.submit_hosts) and scalar(partition.submit_hosts),
        partition_qos=is_clean(partition.own_qos) and scalar(partition.own_qos),
        **_preemption(partition, cluster),
        billing=_billing(partition, cluster),
        hidden=partition.hidden and "true",
        state=partition.state in ("down", "drain", "inactive") and partition.state,
        exclusive=partition.exclusive and "true",
        oversubscribed=partition.oversubscribed and "true",
        reservation_only=partition.reservation_only and "true",
    )


def _memory_keys(partition: SlurmPartition, cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the keys for defaults and limits of memory. Source: slurm.conf(5).

    A partition without its own value has the cluster's value. A default above the maximum is left out,
    because Slurm gives no job more than the maximum.
    """

    def effective(own: int | None, excluding: int | None, setting: str) -> int | None:
        """Return the partition's own value, or else the cluster's value of a setting.

        If the partition has the `excluding` value, the cluster's value does not count. For example,
        DefMemPerNode of a partition excludes DefMemPerCPU of the cluster.
        """
        return own or (None if excluding else read_count(cluster.setting(setting)))

    per_cpu = effective(partition.mem_per_cpu, partition.mem_per_node, "DefMemPerCPU")
    cpu_max = effective(partition.mem_per_cpu_max, partition.mem_per_node_max, "MaxMemPerCPU")
    per_cpu = None if per_cpu and cpu_max and per_cpu > cpu_max else per_cpu
    per_node = effective(partition.mem_per_node, per_cpu, "DefMemPerNode")
    node_max = effective(partition.mem_per_node_max, cpu_max, "MaxMemPerNode")
    per_node = None if per_node and node_max and per_node > node_max else per_node
    yield from _key_entries(
        mem_per_cpu_default=per_cpu and Memory(per_cpu),
        mem_per_cpu_max=cpu_max and Memory(cpu_max),
        mem_per_gpu_default=partition.mem_per_gpu and Memory(partition.mem_per_gpu),
        mem_per_node_default=per_node and Memory(per_node),
        mem_per_node_max=node_max and Memory(node_max),
    )


def _preemption(partition: SlurmPartition, cluster: LiveCluster) -> dict[str, object]:
    """Return the keys about preemption, if partitions of a higher tier have some of the same nodes.

    Preemption by QOS is not considered.
    """
    mode = partition.preempt.lower()
    is_known = mode in ("requeue", "cancel", "suspend")
    higher = {other.name for other in cluster.partitions if other.tier > partition.tier}
    node_partitions = {node.partitions for node in cluster.nodes} if higher else set()
    is_shared = any(partition.name in names and higher.intersection(names) for names in node_partitions)
    if cluster.setting("PreemptType") != "preempt/partition_prio" or not is_known or not is_shared:
        return {}
    return {"preemption": mode, "preemption_grace": partition.grace_s and Duration(partition.grace_s)}


def _billing(partition: SlurmPartition, cluster: LiveCluster) -> str:
    """Return the weights for billing as YAML; "" if a profile can't express them.

    A profile can't express MAX_TRES, and weights of resources that sbatchgen does not know.
    """
    if "MAX_TRES" in cluster.setting("PriorityFlags"):
        return ""
    try:
        return scalar(Weights.parse(partition.billing))
    except ValueError:
        return ""


def _name_list(names: Sequence[str]) -> str:
    """Return names as a list of YAML; "" without names, or if a profile can't hold a name."""
    return flow_list(names) if names and all(map(is_clean, names)) else ""


def _node_keys(partition: SlurmPartition, kinds: Kinds, cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the keys about a partition's nodes, or comments if Slurm hides some of the nodes."""
    shape_counts = shapes(kinds)
    hidden = max(partition.nodes - kinds.total(), 0)
    if hidden or not shape_counts:
        yield _comments(*_about_hidden_nodes(partition, hidden, shape_counts))
        return
    if any(shape.memory <= 1 for shape, _ in shape_counts):
        yield _comments("RealMemory is not set: Slurm takes 1M for it, and refuses jobs that ask for memory.")
    same_in_all = {
        key: len({getattr(shape, key) for shape, _ in shape_counts}) == 1 for key in _DETAIL_FIELDS
    }
    if len(shape_counts) == 1:
        yield from _shape_keys(shape_counts[0][0])
    else:
        items = [_shape_text(shape, number, omitted=same_in_all) for shape, number in shape_counts]
        yield Entry("shapes", items=items)
    is_in_shapes = {key: not is_same for key, is_same in same_in_all.items()}
    if not {*cluster.setting("GresTypes").split(",")} - {"", "gpu"}:
        is_in_shapes["gres"] = True  # no key `gres`, because `gres_types` shows that there is only gpu
    yield from _detail_keys(shape_counts[0][0], omitted=is_in_shapes)
    has_untyped_gpus = any(shape.untyped_gpus for shape, _ in shape_counts)
    if has_untyped_gpus and not any(shape.gpu_types for shape, _ in shape_counts):
        if all(shape.has_certain_types for shape, _ in shape_counts):
            yield Entry("gpus_typed", "false")
        else:
            yield _comments("slurm.conf gives these GPUs no type; gres.conf may.")


def _about_hidden_nodes(
    partition: SlurmPartition, hidden: int, shape_counts: Sequence[tuple[Shape, int]]
) -> Iterator[str]:
    """Yield comments about a partition of which Slurm hides nodes, and about the nodes that it shows.

    `hidden` is the number of hidden nodes.
    """
    total, cpus = partition.nodes, partition.cpus
    if not total:
        yield "It has no nodes now: Slurm refuses jobs, and what its nodes will have is not known."
        return
    average = f" ({cpus} CPUs in all, {cpus // total} on average)" if cpus else ""
    yield f"Slurm hides {hidden} of {total} nodes{average}: off in the cloud, or private."
    yield "Their CPUs, memory, GPUs and shards are not known; ask an administrator, or look while they run:"
    yield f"scontrol show node {partition.node_list[:100]}"
    for shape, number in shape_counts:
        yield f"seen: {_shape_text(shape, number)}"


def _shape_text(shape: Shape, number: int, omitted: Mapping[str, bool] = MappingProxyType({})) -> str:
    """Return a kind of nodes as YAML on one line, without the keys that are true in `omitted`."""
    entries = [*_shape_keys(shape), *_detail_keys(shape, omitted)]
    return flow_mapping({"nodes": number, **{entry.key: entry.flow for entry in entries if entry.key}})


def _shape_keys(shape: Shape) -> Iterator[Entry]:
    """Yield the keys about the CPUs, the memory and the GPUs of a kind of nodes."""
    return _key_entries(
        cpus_per_node=str(shape.cpus),
        threads_per_core=shape.threads_per_core if shape.threads_per_core > 1 else None,
        mem_per_node=Memory(shape.memory),
        mem_largest=Memory(shape.memory_of_largest) if shape.memory_of_largest > shape.memory else None,
        gpus_per_node=str(shape.gpus),
        gpu_types=flow_mapping(dict(shape.gpu_types)) if shape.gpu_types and not shape.untyped_gpus else None,
        shards_per_gpu=shape.shards,
    )


def _detail_keys(shape: Shape, omitted: Mapping[str, bool]) -> Iterator[Entry]:
    """Yield the keys for `_DETAIL_FIELDS`, without those that are true in `omitted`."""
    is_writable = len(shape.features) <= _MAX_FEATURES and all(map(is_clean, shape.features))
    if not is_writable and not omitted.get("features"):
        yield _comments("features: too many, or not UTF-8; see sinfo -o '%50N %f'")
    yield from _key_entries(
        features=is_writable and not omitted.get("features") and flow_list(shape.features),
        gres=not omitted.get("gres")
        and flow_mapping({name: count for name, count in shape.gres if is_clean(name)}),
        tmp_per_node=not omitted.get("disk") and str(Memory(shape.disk)),
    )


def _qos_entry(cluster: LiveCluster) -> Iterator[Entry]:
    """Yield the entry `qos`, or a comment if Slurm enforces no QOS.

    Source: slurm.conf(5), AccountingStorageEnforce.
    """
    enforced = cluster.setting("AccountingStorageEnforce").split(",")
    qos_by_name = {name: qos for name, qos in (cluster.qos or {}).items() if is_clean(name)}
    if qos_by_name and "limits" in enforced:
        rows = []
        for name, qos in qos_by_name.items():
            known = ((key, getattr(qos, key)) for key in _QOS_LIMITS.split())
            limits = {key: str(limit) for key, limit in known if limit is not None}
            overrides = qos.overrides and flow_list(qos.overrides)
            keys = [*_key_entries(**limits, deny_on_limit=qos.deny_on_limit and "true", overrides=overrides)]
            rows.append(Entry(name, "" if keys else "{}", entries=keys))
        yield Entry("qos", entries=rows)
    elif qos_by_name and "qos" in enforced:
        comments = ["No limits of QOS are enforced."]
        yield Entry("qos", comments=comments, entries=[Entry(name, "{}") for name in qos_by_name])
    elif qos_by_name:
        yield _comments("QOS are not enforced (AccountingStorageEnforce).")


def _user_comments(cluster: LiveCluster) -> Iterator[str]:
    """Yield the user's accounts as comments, because another user may have other accounts."""
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


def _machine_comments(cluster: LiveCluster, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the programs of this machine as comments, because compute nodes may differ."""
    options = cluster.plugin_options
    if options is None:
        yield "pyxis: not known; sbatch --help has --container-image where it is installed"
    elif "container-image=" in options:
        yield "pyxis: sbatch has --container-image (runtime: enroot)"
    else:
        yield "pyxis: sbatch has no --container-image"  # srun may have the option all the same
    yield "On this machine (compute nodes may differ; look there: srun -N1 COMMAND):"
    for name, path in programs(environment):
        if path or name != "singularity":
            yield f"{name}: {path or 'not found'}"
    yield f"conda: {', '.join(conda_roots(environment)) or 'not found'} (runtimes: conda: root)"
    yield f"modules: {modules(environment) or 'not found'} (module avail)"
    fast = ", ".join(fast_interfaces()) or "none found"
    yield f"fast interfaces: {fast} (network: nccl_socket_ifname, gloo_socket_ifname; ip -br addr)"
