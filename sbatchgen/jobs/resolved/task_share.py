"""The share of a node that a job gets: GPUs with their option, CPUs, memory."""

from collections.abc import Iterable, Sequence

from sbatchgen.base.units import Gres, Memory, Text
from sbatchgen.check.cluster_facts import GPUS_MAX, GpuLimits, NodeFacts, NodeShape
from sbatchgen.check.sbatch.gres import is_slice, parted, requested, requested_gpus
from sbatchgen.jobs.inputs.layers import BY_DEFAULT, BY_PARTITION, DecidedValues, Level, Origin
from sbatchgen.jobs.inputs.options import GPU_OPTIONS
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.modes import Mode

_GPU_KEYS = tuple(f"options.{name}" for name in GPU_OPTIONS)
LIMITED = "GPUs, and a node has more"  # how the reason ends that one node gives fewer GPUs than it has
GUESS = "a guess"  # how the reason starts that a number has where the profile lacks a fact
DEFAULT_CPUS = 4  # per process, where nothing is known of the node
WHOLE_MEMORY = "all GPUs of a node, and how much memory jobs may have is not known"
_MEMORY_KEYS = ("options.mem", "options.mem_per_cpu", "options.mem_per_gpu")


def take_other_gres(values: DecidedValues) -> tuple[str, Origin]:
    """Keep only the GPUs in --gres; return its other resources, such as local disk."""
    of_gpus, others, origin = "", "", BY_DEFAULT
    if text := values.get("options.gres"):
        of_gpus, others = parted(text)
        origin = values.origins["options.gres"]
    if others and not of_gpus:  # GPUs that a lower level asks for are not overridden
        for lower, where in reversed(values.overridden.get("options.gres", ())):
            if of_gpus := parted(lower)[0]:
                values.origins["options.gres"] = where
                break
    if of_gpus:
        values.values["options.gres"] = Gres(of_gpus)
    elif others:
        values.drop("options.gres")
    return others, origin


def gpus_and_shards(
    values: DecidedValues, profile: Profile, partition: Partition, mode: Mode
) -> tuple[int, int]:
    """Return GPUs and shards of the job on each node; only the highest layer's GPU options are kept."""
    unwanted = not mode.uses_gpus or values.get("gpu_request") == "none"
    for name in values.highest(_GPU_KEYS):
        level = values.origins[name].level
        if unwanted and level < Level.PROJECT:
            values.drop(name)
        elif mode.gpus and level < Level.PROJECT:
            values.values[name] = _at_most(values.get(name), mode.gpus)
    if not mode.uses_gpus:
        return 0, 0
    gpus, shards = (
        sum(count for name, _, count in requested(values.get("options.gres") or "") if name == wanted)
        for wanted in ("gpu", "shard")
    )
    if values.get("options.gpus_per_node"):
        return gpus_asked(values, "gpus_per_node"), shards
    if gpus or shards:
        return gpus, shards
    if values.get("options.gpus_per_task") or values.get("options.gpus"):
        return _gpus_of_job(values, partition, mode), 0
    if profile.scheduler == "env":  # its platform hands out what was asked for there
        return (mode.gpus or values.get("nproc_per_node") or gpus_alike(partition) or 0), 0
    return mode.gpus or _most_gpus(values, profile, partition), 0


def _gpus_of_job(values: DecidedValues, partition: Partition, mode: Mode) -> int:
    """Return GPUs on a node of a job that asks for a number per task, or for all nodes together."""
    if values.get("options.gpus_per_task"):
        each = max(1, gpus_asked(values, "gpus_per_task"))  # `check` refuses 0
        here, by_srun = gpus_alike(partition), values.get("launcher") == "srun" and mode.launchers
        fitting = here // each if here and by_srun else 1
        typed = values.get("options.ntasks_per_node") or (by_srun and values.get("nproc_per_node"))
        return int(each * (typed or max(1, fitting)))
    return gpus_asked(values, "gpus") // max(1, int(values.get("options.nodes")))


def _most_gpus(values: DecidedValues, profile: Profile, partition: Partition) -> int:
    """Return the most whole GPUs of one type that enough nodes have, of one node as allowed.

    Else one slice.
    """
    nodes, kinds = max(1, values.get("options.nodes")), _kinds(partition)
    whole = [_whole_gpus(kind, partition) for kind in kinds]
    counts = sorted({count for types in whole for count in types.values()}, reverse=True)
    most = [max(types.values(), default=0) for types in whole]
    numbers = [(isinstance(kind, NodeShape) and kind.nodes) or nodes for kind in kinds]
    having = [(n, sum(k for m, k in zip(most, numbers, strict=True) if m >= n)) for n in counts]
    best, why = counts[0] if counts else 0, BY_PARTITION.where
    if enough := [count for count, number in having if number >= nodes]:
        best = enough[0]
        if best < counts[0]:
            why = f"{having[0][1]} of the nodes have {counts[0]} GPUs, and the job wants {nodes}"
    elif any(kind.gpu_types for kind in kinds):
        best, why = 1, "a slice of a GPU: NCCL uses no others"
    names = [Text(name) for name in (partition.partition_qos, values.get("options.qos")) if name]
    limiting: dict[str, GpuLimits] = {"the partition": partition}
    limiting |= {f"qos {name}": profile.qos[name] for name in names if name in profile.qos}
    known = ((getattr(holder, key), name) for name, holder in limiting.items() for key in GPUS_MAX)
    limits = [(limit, name) for limit, name in known if limit is not None]
    if limits and nodes == 1 <= min(limits)[0] < best:  # of several nodes SB254 and SB224 speak
        best, why = min(limits)[0], f"{min(limits)[1]} allows {min(limits)[0]} {LIMITED}"
    slices = any(is_slice(kind) for node in kinds for kind in node.gpu_types)
    types = {kind for each in whole for kind, count in each.items() if count >= best and kind}
    if slices and types and not values.get("options.gpus_per_node"):  # a count alone may bring slices
        values.set("options.gpus_per_node", Text(f"{min(types)}:{best}"), Origin(Level.DEFAULT, "whole GPUs"))
    values.why_gpus = why
    return best


def _at_most(request: Text, most: int) -> Text:
    """Return a request for GPUs of one type, at most the number that the mode uses."""
    kind, _, count = request.rpartition(":")
    several = count.isdecimal() and int(count) > most and "," not in request and not kind.startswith("shard")
    return type(request)(f"{kind}:{most}".removeprefix(":")) if several else request


def gpus_alike(partition: Partition) -> int | None:
    """Return the most GPUs of one type that a node has: a job that names no type may not get several."""
    counts = [count for kind in _kinds(partition) for count in _whole_gpus(kind, partition).values()]
    return max(counts, default=partition.gpus_per_node)


def _named(partition: Partition) -> str:
    """Return the type of GPU for a request without a type; "" if the request needs no type."""
    return partition.only_type() if partition.gpu_type_required else ""


def _kinds(partition: Partition) -> list[NodeFacts]:
    """Return the kinds of nodes that a job without a type of GPU may get."""
    named = _named(partition)
    return partition.kinds([(named, 1)] if named else ())


def _whole_gpus(kind: NodeFacts, partition: Partition) -> dict[str, int]:
    """Return whole GPUs of a kind of nodes, by the types that such a job may get."""
    named = _named(partition)
    return {name: count for name, count in kind.whole_gpus.items() if not (name and named) or name == named}


def gpus_asked(values: DecidedValues, option: str) -> int:
    """Return GPUs that an option asks for, of all types."""
    return sum(count for _, count in requested_gpus(values.get(f"options.{option}")) or ())


def add_other_gres(values: DecidedValues, others: str, origin: Origin) -> None:
    """Give --gres back what is not about GPUs."""
    if others:
        of_gpus = values.get("options.gres")
        values.values["options.gres"] = Gres(f"{of_gpus},{others}" if of_gpus else others)
        values.origins["options.gres"] = origin


def emit_gpus(values: DecidedValues, partition: Partition, gpus: int) -> None:
    """Set the GPU option in the form that the cluster wants, unless the user wrote another form."""
    form = values.get("gpu_request")
    given = [name for name in _GPU_KEYS if name in values.values]
    if not gpus or given not in ([], ["options.gpus_per_node"]) or (form == "none" and not given):
        return
    count, origin = str(gpus), Origin(Level.DEFAULT, values.why_gpus)
    if given and form != "none":
        count, origin = values.get("options.gpus_per_node"), values.origins["options.gpus_per_node"]
        values.drop("options.gpus_per_node")
    if _named(partition) and ":" not in count:
        count = f"{_named(partition)}:{count}"
    tasks = values.get("options.ntasks_per_node") or 1
    if (
        form == "gpus" and "," not in count and values.get("options.nodes") == 1
    ):  # of a job with several nodes Slurm divides the GPUs
        values.set("options.gpus", Text(count), origin)
    elif form == "gres":
        values.set("options.gres", Gres(f"gpu:{count}"), origin)
    elif form == "gpus_per_task" and gpus % tasks == 0:
        kind, per_task = count.rpartition(":")[0], str(gpus // tasks)
        values.set("options.gpus_per_task", Text(f"{kind}:{per_task}" if kind else per_task), origin)
    elif form != "none":
        values.set("options.gpus_per_node", Text(count), origin)


def derive_tasks(values: DecidedValues, partition: Partition, gpus: int, shards: int, mode: Mode) -> int:
    """Set the processes and tasks on each node; return the processes."""
    by_srun = bool(mode.launchers) and values.get("launcher") == "srun"
    nproc = 1
    if mode.several_processes:
        given = values.get("nproc_per_node") or (values.get("options.ntasks_per_node") if by_srun else None)
        each = max(1, gpus_asked(values, "gpus_per_task")) if by_srun else 1
        nproc = given or gpus * partition.processes_per_gpu // each or (1 if shards else 2)
        several = partition.processes_per_gpu
        per_gpu = f"{several} processes per GPU" if several > 1 else "one process per GPU"
        values.derive("nproc_per_node", nproc, per_gpu if gpus else "no whole GPUs")
    why = "one task per process" if by_srun else "one task per node"
    values.derive("options.ntasks_per_node", nproc if by_srun else 1, why)
    return int(nproc)


def derive_cpus(values: DecidedValues, partition: Partition, gpus: int, shards: int, mode: Mode) -> None:
    """Set the CPUs of a task: its GPUs' share of the node; none of a whole node of unknown size."""
    nodes = _nodes(values, partition, gpus, shards)
    limits = [node.cpus_per_node for node in nodes] + [partition.cpus_per_node_max]
    maximum = min(filter(None, limits), default=None)
    share = partition.cpus_per_gpu or _share(nodes, "cpus_per_node", 1)
    share = share and max(1, share // partition.processes_per_gpu)
    if share and shards and partition.shards_per_gpu:
        share = max(1, share * shards // partition.shards_per_gpu)
    if not share and not maximum and (values.get("options.exclusive") or partition.exclusive):
        return
    guessed = not share and (gpus or shards)
    if share is None or not mode.uses_gpus or not (gpus or shards):
        share = min(DEFAULT_CPUS, maximum or DEFAULT_CPUS)
    tasks = values.get("options.ntasks_per_node") or 1
    processes = values.get("nproc_per_node") if mode.several_processes else max(1, gpus)
    cpus = share * max(1, processes // tasks)
    if maximum:
        cpus = max(1, min(cpus, maximum // tasks))
    guess = f"{GUESS}; write cpus_per_gpu of the partition into the profile"
    values.derive("options.cpus_per_task", cpus, guess if guessed else f"{share} per process or GPU")


def _nodes(values: DecidedValues, partition: Partition, gpus: int, shards: int) -> list[NodeFacts]:
    """Return the kinds of nodes that the job may get; all kinds if every kind is too small."""
    typed = [(kind, n) for name, kind, n in requested(values.get("options.gres") or "") if name == "gpu"]
    asked = typed or requested_gpus(values.get("options.gpus_per_node")) or (("", gpus),)
    having = partition.kinds([(kind or _named(partition), n) for kind, n in asked])
    return [node for node in having if node.shards_per_gpu or not shards] or having or partition.kinds()


def _share(nodes: Iterable[NodeFacts], name: str, gpus: int) -> int | None:
    """Return the share of each node that goes with so many GPUs, if one of the nodes is known."""
    shares = [
        max(1, whole * min(gpus, node.gpus_per_node) // node.gpus_per_node)
        for node in nodes
        if (whole := getattr(node, name)) and node.gpus_per_node
    ]
    return min(shares, default=None)


def _takes_all_gpus(nodes: Sequence[NodeFacts], gpus: int) -> bool:
    """Return whether a job takes all GPUs of nodes of which only the installed memory is known."""
    return bool(nodes) and all(node.mem_installed and node.gpus_per_node == gpus for node in nodes)


def derive_memory(values: DecidedValues, profile: Profile, partition: Partition, gpus: int) -> None:
    """Set the memory of a node: the share of the GPUs, or all memory if the partition's default is larger."""
    if not gpus and values.origins.get("options.mem_per_gpu", BY_DEFAULT).level < Level.PROJECT:
        values.drop("options.mem_per_gpu")
    if values.highest(_MEMORY_KEYS):
        return
    nodes = _nodes(values, partition, gpus, 0)
    smallest = min((node.mem_per_node for node in nodes if node.mem_per_node), default=None)
    maximum = min(filter(None, (smallest, partition.mem_per_node_max)), default=0)
    if gpus and not maximum and not partition.exclusive and _takes_all_gpus(nodes, gpus):
        values.derive("options.mem", Memory(0), WHOLE_MEMORY)
    elif gpus and values.get("options.exclusive") is None:
        mem = min(filter(None, (_share(nodes, "mem_per_node", gpus), partition.mem_per_node_max)), default=0)
        values.derive("options.mem", Memory(mem) if mem > 1 else None, "the GPUs' share of a node")
    elif maximum > 1 and partition.mem_per_cpu_default and profile.limits.memory_consumable is not False:
        cpus = (values.get("options.ntasks_per_node") or 1) * (values.get("options.cpus_per_task") or 1)
        if values.get("options.exclusive"):
            cpus = max((node.cpus_per_node or cpus for node in nodes), default=cpus)
        if partition.mem_per_cpu_default * cpus > maximum:
            why = f"the default of {partition.mem_per_cpu_default} per CPU is more than a node has"
            values.derive("options.mem", Memory(maximum), why)
