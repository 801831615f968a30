"""The share of each node that a job gets: its GPUs, tasks, CPUs and memory, and their options of sbatch."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Gres, Memory, Text
from sbatchgen.check.cluster_facts import GPU_HOLDERS, GpuLimits, NodeFacts, NodeShape
from sbatchgen.check.sbatch.gres import gpu_amounts, gres_amounts, is_slice, split_gpu_items
from sbatchgen.jobs.inputs.layers import BY_DEFAULT, BY_PARTITION, DecidedValues, Level, Origin
from sbatchgen.jobs.inputs.options import GPU_OPTIONS
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.modes import Mode

_GPU_KEYS = tuple(f"options.{name}" for name in GPU_OPTIONS)
# The review points out values whose reason ends or starts with these texts, as users may not expect them.
LIMITED_END = "GPUs, and a node has more"  # of the reason for a number of GPUs that a limit has lowered
GUESS_START = "a guess"  # of the reason for a value that the profile has no facts for
DEFAULT_CPUS = 4  # CPUs per process if the node's CPUs are not known
_WHY_ALL_MEMORY = "all GPUs of a node, and how much memory jobs may have is not known"
_MEMORY_KEYS = ("options.mem", "options.mem_per_cpu", "options.mem_per_gpu")


class _Supply(NamedTuple):
    """The GPUs of one type on nodes of one kind."""

    gpu_type: str  # "" for any type
    gpus: int  # on each node
    nodes: int


def take_other_gres(values: DecidedValues) -> tuple[str, Origin]:
    """Keep only the GPUs in --gres; return its other resources and their origin: "gpu:2,tmp:9" -> "tmp:9"."""
    gpu_items, others, origin = "", "", BY_DEFAULT
    if text := values.get("options.gres"):
        gpu_items, others = split_gpu_items(text)
        origin = values.origins["options.gres"]
    if others and not gpu_items:  # a gres without GPUs does not override the GPUs of a lower layer
        for lower, lower_origin in values.overridden.get("options.gres", ()):  # the highest first
            if gpu_items := split_gpu_items(lower)[0]:
                values.origins["options.gres"] = lower_origin
                break
    if gpu_items:
        values.values["options.gres"] = Gres(gpu_items)
    elif others:
        values.drop("options.gres")
    return others, origin


def decide_gpus(values: DecidedValues, profile: Profile, partition: Partition, mode: Mode) -> tuple[int, int]:
    """Return the job's GPUs and shards on each node, and keep only the highest layer's GPU options.

    A profile may request more GPUs than the mode uses: the function lowers or removes such a request.
    """
    requests_none = not mode.uses_gpus or values.get("gpu_request") == "none"
    for name in values.keep_highest(_GPU_KEYS):
        is_of_profile = values.origins[name].level < Level.PROJECT
        if requests_none and is_of_profile:
            values.drop(name)
        elif mode.gpus and is_of_profile:
            values.values[name] = _with_at_most(mode.gpus, values.get(name))
    if not mode.uses_gpus:
        return 0, 0
    in_gres = gres_amounts(values.get("options.gres") or "")
    gpus, shards = (
        sum(count for name, _, count in in_gres if name == resource) for resource in ("gpu", "shard")
    )
    if values.get("options.gpus_per_node"):
        return _requested_gpus(values, "gpus_per_node"), shards
    if gpus or shards:
        return gpus, shards
    if values.get("options.gpus_per_task") or values.get("options.gpus"):
        return _gpus_on_each_node(values, partition, mode), 0
    if profile.scheduler == "env":  # the user requested the GPUs from the platform that starts the job
        return (mode.gpus or values.get("nproc_per_node") or _most_gpus_of_one_type(partition) or 0), 0
    return mode.gpus or _most_gpus(values, profile, partition), 0


def _gpus_on_each_node(values: DecidedValues, partition: Partition, mode: Mode) -> int:
    """Return the GPUs on each node of a job that requests them per task, or for all nodes together."""
    if values.get("options.gpus_per_task"):
        per_task = _gpus_per_task(values)
        # srun starts a task for each process; other launchers need one task on each node.
        is_by_srun = values.get("launcher") == "srun" and mode.launchers
        most_gpus = _most_gpus_of_one_type(partition)
        fitting_tasks = most_gpus // per_task if most_gpus and is_by_srun else 1
        tasks = values.get("options.ntasks_per_node") or (is_by_srun and values.get("nproc_per_node"))
        return int(per_task * (tasks or max(1, fitting_tasks)))
    return _requested_gpus(values, "gpus") // max(1, int(values.get("options.nodes")))


def _gpus_per_task(values: DecidedValues) -> int:
    """Return the GPUs that --gpus-per-task requests; 1 without it, or if sbatch refuses its value (SB126)."""
    return max(1, _requested_gpus(values, "gpus_per_task"))


def _most_gpus(values: DecidedValues, profile: Profile, partition: Partition) -> int:
    """Return the GPUs on each node of a job that names no number, and set the reason in `values`.

    The number is the most whole GPUs of one type that enough nodes have. If too few nodes have whole GPUs and
    others have slices of GPUs, it is one slice. A job on one node gets no more than the limits of its
    partition and QOS allow.

    On a partition with slices, the function also sets options.gpus_per_node with a type of whole GPUs. Slurm
    may give slices to a job that names no type.
    """
    nodes = max(1, values.get("options.nodes"))
    supplies = _supplies(partition, nodes)
    best, why = _gpus_of_enough_nodes(partition, supplies, nodes)
    limit, limited_by = _smallest_gpu_limit(values, profile, partition)
    # A job on several nodes keeps its GPUs: SB254 and SB224 report that it exceeds the limit.
    if nodes == 1 and limit is not None and 1 <= limit < best:
        best, why = limit, f"{limited_by} allows {limit} {LIMITED_END}"
    types = [name for name, number in _nodes_by_type(supplies, best).items() if name and number >= nodes]
    if types:  # only on a partition with slices; other supplies have the type ""
        request = Text(f"{min(types)}:{best}")
        values.set("options.gpus_per_node", request, Origin(Level.DEFAULT, "whole GPUs"))
    values.why_gpus = why
    return best


def _gpus_of_enough_nodes(partition: Partition, supplies: Sequence[_Supply], nodes: int) -> tuple[int, str]:
    """Return the most GPUs of one type that at least `nodes` nodes of the partition have, and the reason.

    If fewer nodes have whole GPUs, the number is one slice, or without slices the smallest number of GPUs on
    a node. SB237 then reports that the partition has too few nodes.
    """
    counts = sorted({supply.gpus for supply in supplies}, reverse=True)
    nodes_with = {count: max(_nodes_by_type(supplies, count).values()) for count in counts}
    enough = [count for count in counts if nodes_with[count] >= nodes]
    if enough and enough[0] < counts[0]:
        why = f"{nodes_with[counts[0]]} of the nodes have {counts[0]} GPUs, and the job wants {nodes}"
        return enough[0], why
    if not enough and _has_slices(partition):
        return 1, "one slice of a GPU, because NCCL uses no others"
    if not enough and counts:
        known = counted(nodes_with[counts[-1]], "node")
        return counts[-1], f"the partition has GPUs in {known}, and the job wants {nodes}"
    return counts[0] if counts else 0, BY_PARTITION.where


def _supplies(partition: Partition, default_nodes: int) -> list[_Supply]:
    """Return the whole GPUs of each kind of nodes, with `default_nodes` for an unknown number of nodes.

    On a partition with slices, the job must name one type, so each type of a kind is a supply of its own. On
    other partitions the nodes of a job may have GPUs of different types, and the type is "".
    """
    by_type, of_any_type = [], []
    for kind in _node_kinds(partition):
        nodes = (isinstance(kind, NodeShape) and kind.nodes) or default_nodes
        whole_gpus = _whole_gpus(kind, partition)
        by_type += [_Supply(gpu_type, gpus, nodes) for gpu_type, gpus in whole_gpus.items() if gpu_type]
        of_any_type += [_Supply("", max(whole_gpus.values()), nodes)] if whole_gpus else []
    return by_type if by_type and _has_slices(partition) else of_any_type


def _nodes_by_type(supplies: Iterable[_Supply], gpus: int) -> Counter[str]:
    """Return type -> the number of nodes with at least `gpus` GPUs of this type."""
    nodes: Counter[str] = Counter()
    for supply in supplies:
        nodes[supply.gpu_type] += supply.nodes if supply.gpus >= gpus else 0
    return nodes


def _has_slices(partition: Partition) -> bool:
    """Return whether a job that names no type of GPU may get slices of GPUs."""
    return any(is_slice(gpu_type) for kind in _node_kinds(partition) for gpu_type in kind.gpu_types)


def _smallest_gpu_limit(
    values: DecidedValues, profile: Profile, partition: Partition
) -> tuple[int | None, str]:
    """Return the smallest limit for a job's GPUs, and its owner: "the partition", or a QOS as "qos debug".

    Without a limit, return (None, "").
    """
    qos_names = [Text(name) for name in (partition.partition_qos, values.get("options.qos")) if name]
    owners: dict[str, GpuLimits] = {"the partition": partition}
    owners |= {f"qos {name}": profile.qos[name] for name in qos_names if name in profile.qos}
    all_limits = ((getattr(limits, key), owner) for owner, limits in owners.items() for key in GPU_HOLDERS)
    known_limits = [(limit, owner) for limit, owner in all_limits if limit is not None]
    return min(known_limits) if known_limits else (None, "")


def _with_at_most(most: int, request: Text) -> Text:
    """Return a request for GPUs such as "a100:4" with at most `most` GPUs.

    A request for shards, or for several types of GPU, is returned unchanged.
    """
    gpu_type, _, count = request.rpartition(":")
    is_of_one_type = "," not in request and not gpu_type.startswith("shard")
    exceeds_most = is_of_one_type and count.isdecimal() and int(count) > most
    return type(request)(f"{gpu_type}:{most}".removeprefix(":")) if exceeds_most else request


def _most_gpus_of_one_type(partition: Partition) -> int | None:
    """Return the most whole GPUs of one type that a node has; None if no such number is known."""
    counts = [count for kind in _node_kinds(partition) for count in _whole_gpus(kind, partition).values()]
    return max(counts, default=partition.gpus_per_node)


def _required_type(partition: Partition) -> str:
    """Return the type that a request for GPUs must name on this partition; "" if it needs no type."""
    return partition.default_gpu_type() if partition.gpu_type_required else ""


def _node_kinds(partition: Partition) -> list[NodeFacts]:
    """Return the kinds of nodes on which Slurm may start a job that names no type of GPU."""
    required = _required_type(partition)
    return partition.node_kinds([(required, 1)] if required else ())


def _whole_gpus(kind: NodeFacts, partition: Partition) -> dict[str, int]:
    """Return type -> number of whole GPUs on a kind of nodes, for a job that names no type of GPU.

    If the partition requires a type, the GPUs of all other known types are left out.
    """
    required = _required_type(partition)
    return {
        gpu_type: count
        for gpu_type, count in kind.whole_gpus.items()
        if not required or gpu_type in ("", required)
    }


def _requested_gpus(values: DecidedValues, option: str) -> int:
    """Return the number of GPUs that an option of sbatch requests, all types together."""
    return sum(count for _, count in gpu_amounts(values.get(f"options.{option}")) or ())


def add_other_gres(values: DecidedValues, others: str, origin: Origin) -> None:
    """Put the resources that `take_other_gres` removed back into --gres."""
    if others:
        gpu_items = values.get("options.gres")
        values.values["options.gres"] = Gres(f"{gpu_items},{others}" if gpu_items else others)
        values.origins["options.gres"] = origin


def set_gpu_option(values: DecidedValues, partition: Partition, gpus: int) -> None:
    """Set the option for GPUs that the key `gpu_request` names, unless the user wrote another option.

    If the named option can't hold the request, the function sets --gpus-per-node.
    """
    option = values.get("gpu_request")
    keys_set = [key for key in _GPU_KEYS if key in values.values]
    has_other_option = keys_set not in ([], ["options.gpus_per_node"])
    if not gpus or has_other_option or (option == "none" and not keys_set):
        return
    per_node, origin = str(gpus), Origin(Level.DEFAULT, values.why_gpus)
    if keys_set and option != "none":  # the request moves from --gpus-per-node to the named option
        per_node, origin = values.get("options.gpus_per_node"), values.origins["options.gpus_per_node"]
        values.drop("options.gpus_per_node")
    if _required_type(partition) and ":" not in per_node:
        per_node = f"{_required_type(partition)}:{per_node}"
    tasks = values.get("options.ntasks_per_node") or 1
    # Among several nodes, Slurm may divide --gpus unevenly (SB242).
    is_even = "," not in per_node and values.get("options.nodes") == 1
    if option == "gpus" and is_even:
        values.set("options.gpus", Text(per_node), origin)
    elif option == "gres":
        values.set("options.gres", Gres(f"gpu:{per_node}"), origin)
    elif option == "gpus_per_task" and gpus % tasks == 0:
        gpu_type, per_task = per_node.rpartition(":")[0], str(gpus // tasks)
        request = f"{gpu_type}:{per_task}" if gpu_type else per_task
        values.set("options.gpus_per_task", Text(request), origin)
    elif option != "none":
        values.set("options.gpus_per_node", Text(per_node), origin)


def derive_tasks(values: DecidedValues, partition: Partition, gpus: int, shards: int, mode: Mode) -> int:
    """Set the numbers of processes and of Slurm's tasks on each node; return the number of processes."""
    is_by_srun = bool(mode.launchers) and values.get("launcher") == "srun"
    processes = 1
    if mode.several_processes:
        written = values.get("nproc_per_node") or (is_by_srun and values.get("options.ntasks_per_node"))
        gpus_per_task = _gpus_per_task(values) if is_by_srun else 1
        per_gpu = partition.processes_per_gpu
        # Without whole GPUs, one process uses all shards, because they are on one GPU. Without shards, two
        # processes on CPUs are the smallest group.
        processes = written or gpus * per_gpu // gpus_per_task or (1 if shards else 2)
        why = f"{per_gpu} processes per GPU" if per_gpu > 1 else "one process per GPU"
        values.derive("nproc_per_node", processes, why if gpus else "no whole GPUs")
    why = "one task per process" if is_by_srun else "one task per node"
    values.derive("options.ntasks_per_node", processes if is_by_srun else 1, why)
    return int(processes)


def derive_cpus(values: DecidedValues, partition: Partition, gpus: int, shards: int, mode: Mode) -> None:
    """Set --cpus-per-task to the share of the node's CPUs that belongs to the task's GPUs.

    The option is not set on an exclusive node whose number of CPUs is unknown: the job has all of them.
    """
    nodes = _fitting_nodes(values, partition, gpus, shards)
    limits = [node.cpus_per_node for node in nodes] + [partition.cpus_per_node_max]
    maximum = min(filter(None, limits), default=None)
    # the CPUs for each process, or for each GPU of a single process; None without facts in the profile
    cpus_each = partition.cpus_per_gpu or _smallest_share(nodes, "cpus_per_node", 1)
    cpus_each = cpus_each and max(1, cpus_each // partition.processes_per_gpu)
    if cpus_each and shards and partition.shards_per_gpu:
        cpus_each = max(1, cpus_each * shards // partition.shards_per_gpu)
    if not cpus_each and not maximum and (values.get("options.exclusive") or partition.exclusive):
        return
    uses_gpus = mode.uses_gpus and (gpus or shards)
    is_guess = not cpus_each and (gpus or shards)
    if cpus_each is None or not uses_gpus:
        cpus_each = min(DEFAULT_CPUS, maximum or DEFAULT_CPUS)
    tasks = values.get("options.ntasks_per_node") or 1
    processes_or_gpus = values.get("nproc_per_node") if mode.several_processes else max(1, gpus)
    cpus = cpus_each * max(1, processes_or_gpus // tasks)
    if maximum:
        cpus = max(1, min(cpus, maximum // tasks))
    guess = f"{GUESS_START}; write cpus_per_gpu of the partition into the profile"
    values.derive("options.cpus_per_task", cpus, guess if is_guess else f"{cpus_each} per process or GPU")


def _fitting_nodes(values: DecidedValues, partition: Partition, gpus: int, shards: int) -> list[NodeFacts]:
    """Return the kinds of nodes that have the job's GPUs and shards; all kinds if no kind has enough."""
    gres = gres_amounts(values.get("options.gres") or "")
    in_gres = [(gpu_type, count) for name, gpu_type, count in gres if name == "gpu"]
    amounts = in_gres or gpu_amounts(values.get("options.gpus_per_node")) or (("", gpus),)
    with_gpus = partition.node_kinds(
        [(gpu_type or _required_type(partition), count) for gpu_type, count in amounts]
    )
    fitting = [node for node in with_gpus if node.shards_per_gpu or not shards]
    return fitting or with_gpus or partition.node_kinds()


def _smallest_share(nodes: Iterable[NodeFacts], name: str, gpus: int) -> int | None:
    """Return the amount of a node's resource that belongs to `gpus` of its GPUs, on the node with the least.

    `name` is the resource's attribute of NodeFacts, such as cpus_per_node. The result is None if the resource
    or the GPUs of each node are unknown.
    """
    shares = [
        max(1, amount * min(gpus, node.gpus_per_node) // node.gpus_per_node)
        for node in nodes
        if (amount := getattr(node, name)) and node.gpus_per_node
    ]
    return min(shares, default=None)


def _takes_all_gpus(nodes: Sequence[NodeFacts], gpus: int) -> bool:
    """Return whether a job takes all GPUs of nodes whose installed memory is known."""
    return bool(nodes) and all(node.mem_installed and node.gpus_per_node == gpus for node in nodes)


def derive_memory(values: DecidedValues, profile: Profile, partition: Partition, gpus: int) -> None:
    """Set the memory on each node, unless the job requests memory.

    A job with GPUs gets their share of the node's memory, or all memory if only the installed memory is
    known. For other jobs and on exclusive nodes, the option is set only if the partition's default per CPU
    would request more memory than a node has.
    """
    if not gpus and values.origins.get("options.mem_per_gpu", BY_DEFAULT).level < Level.PROJECT:
        values.drop("options.mem_per_gpu")
    if values.keep_highest(_MEMORY_KEYS):
        return
    nodes = _fitting_nodes(values, partition, gpus, 0)
    smallest = min((node.mem_per_node for node in nodes if node.mem_per_node), default=None)
    maximum = min(filter(None, (smallest, partition.mem_per_node_max)), default=0)
    if gpus and not maximum and not partition.exclusive and _takes_all_gpus(nodes, gpus):
        values.derive("options.mem", Memory(0), _WHY_ALL_MEMORY)
    elif gpus and values.get("options.exclusive") is None:
        share = _smallest_share(nodes, "mem_per_node", gpus)
        mem = min(filter(None, (share, partition.mem_per_node_max)), default=0)
        # 1 MiB is Slurm's value for a node without RealMemory in slurm.conf; the job then requests no memory.
        values.derive("options.mem", Memory(mem) if mem > 1 else None, "the GPUs' share of a node")
    elif maximum > 1 and partition.mem_per_cpu_default and profile.limits.memory_consumable is not False:
        cpus = (values.get("options.ntasks_per_node") or 1) * (values.get("options.cpus_per_task") or 1)
        if values.get("options.exclusive"):
            cpus = max((node.cpus_per_node or cpus for node in nodes), default=cpus)
        if partition.mem_per_cpu_default * cpus > maximum:
            why = f"the default of {partition.mem_per_cpu_default} per CPU is more than a node has"
            values.derive("options.mem", Memory(maximum), why)
