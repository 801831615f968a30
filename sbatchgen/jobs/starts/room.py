"""Finds the nodes of a live cluster that have room for a job: all resources that the job requests are free.

Room does not mean that the job starts now. Other waiting jobs may start first, and limits of accounts may
delay the job.
"""

from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Memory
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.check.sbatch.lists import is_flat, may_match
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.slurm.fields import read_limit
from sbatchgen.jobs.slurm.gpu_nodes import Gpu, GpuNode, why_unavailable
from sbatchgen.jobs.slurm.node import SlurmNode
from sbatchgen.jobs.slurm.partition import SlurmPartition


@frozen(kw_only=True)
class Availability:
    """The nodes of a partition on which a job could start now."""

    partition: str
    wanted: int  # the number of nodes that the job needs
    nodes: tuple[str, ...]  # the names of the nodes that have room for the job
    lacking: Mapping[str, tuple[str, ...]]  # what nodes lack, in words -> the names of these nodes
    not_seen: tuple[str, ...]  # options that may delay the job, and that are not checked here
    starts: bool  # whether enough nodes have room


@frozen(kw_only=True)
class NodeDemand:
    """What a job needs on each of its nodes in a partition."""

    job: ResourceRequest
    partition: SlurmPartition
    memory: int | None  # in MiB; None for all memory of the node, 0 if Slurm does not allocate memory
    shards_span_gpus: bool  # whether the shards of a job may be on several GPUs
    named_nodes: tuple[str, ...]  # the nodes of --nodelist


def rooms(
    job: ResourceRequest,
    nodes: Sequence[SlurmNode],
    gpu_nodes: Sequence[GpuNode],
    partitions: Sequence[SlurmPartition],
    settings: Mapping[str, str],
) -> list[Availability]:
    """Return the room for a job in each partition that it names, or else in the default partition.

    `nodes`, `gpu_nodes` and `partitions` are those of the whole cluster, and `settings` are from slurm.conf.
    """
    # A script may lack --partition because the profile omits its default partition (the key `omit`). The
    # profile may use another name for it, so the cluster's own default counts.
    default_names = [known.name for known in partitions if known.default]
    names = job.partitions if "partition" in job else default_names
    gpu_nodes_by_name = {gpu_node.node.name: gpu_node for gpu_node in gpu_nodes}
    parameters = settings.get("SelectTypeParameters", "").upper()
    allocates_memory = "MEMORY" in parameters or "SelectTypeParameters" not in settings
    shards_span_gpus = "MULTIPLE_SHARING_GRES_PJ" in parameters
    named_nodes = tuple(hosts(job.options.get("nodelist", "")))  # SB140 reports a malformed list
    available = []
    for partition in partitions:
        if partition.name not in names:
            continue
        memory = _memory_on_node(job, partition, settings) if allocates_memory else 0
        demand = NodeDemand(
            job=job,
            partition=partition,
            memory=memory,
            shards_span_gpus=shards_span_gpus,
            named_nodes=named_nodes,
        )
        own_nodes = [node for node in nodes if partition.name in node.partitions]
        available.append(_room(demand, own_nodes, gpu_nodes_by_name))
    return available


def _memory_on_node(
    job: ResourceRequest, partition: SlurmPartition, settings: Mapping[str, str]
) -> int | None:
    """Return the MiB of memory that the job requests on each node, or gets there by Slurm's defaults.

    Return None for all memory of the node.
    """
    if job.mem_on_node is not None:
        return job.mem_on_node or None
    if partition.mem_per_gpu and job.gpu_count:
        return partition.mem_per_gpu * job.gpu_count
    per_cpu, per_node = partition.mem_per_cpu, partition.mem_per_node
    if not per_cpu and not per_node:
        per_cpu, per_node = (read_limit(settings.get(name, "")) for name in ("DefMemPerCPU", "DefMemPerNode"))
    return per_cpu * job.cpus_on_node if per_cpu else per_node


def _room(demand: NodeDemand, nodes: Sequence[SlurmNode], gpu_nodes: Mapping[str, GpuNode]) -> Availability:
    """Return the room on these nodes of a partition; `gpu_nodes` has the nodes with GPUs by their names."""
    job, named = demand.job, demand.named_nodes
    wanted = max(job.nodes, len(named))
    excluded = {*hosts(job.options.get("exclude", ""))}
    with_room: list[str] = []
    lacking: dict[str, list[str]] = {}
    for node in nodes:
        if node.name in excluded or (len(named) == wanted and node.name not in named):
            continue
        gpus = gpu_nodes[node.name].gpus if node.name in gpu_nodes else ()
        if first_lack := next(_lacks(demand, node, gpus), ""):
            lacking.setdefault(first_lack, []).append(node.name)
        else:
            with_room.append(node.name)
    if not set(named) <= set(with_room):  # the job needs all named nodes, so the room on others is useless
        with_room = [name for name in with_room if name in named]
    features = job.options.get("constraint", "")
    not_seen = [option for option in ("licenses", "switches", "tmp", "begin", "dependency") if option in job]
    not_seen += ["constraint"] if features and not is_flat(features) else []
    return Availability(
        partition=demand.partition.name,
        wanted=wanted,
        nodes=tuple(with_room),
        lacking={lack: tuple(names) for lack, names in lacking.items()},
        not_seen=tuple(f"--{option}" for option in not_seen),
        starts=len(with_room) >= wanted,
    )


def _lacks(demand: NodeDemand, node: SlurmNode, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield in words each thing that a node with these GPUs lacks for the job."""
    job, state = demand.job, demand.partition.state
    if state != "up":
        yield f"the partition is {state}"
    why_closed = why_unavailable(node)
    if why_closed and not (why_closed == "reserved" and "reservation" in job):
        yield why_closed
    features = job.options.get("constraint", "")
    if features and not may_match(features, node.features):
        yield f"not --constraint={features}"
    whole_nodes = demand.partition.exclusive or job.is_exclusive
    if whole_nodes and node.cpus_used:
        yield "used by other jobs"
    yield from _lacks_gres(demand, node, gpus)
    threads = node.threads_per_core or 1
    # Slurm allocates whole cores, so the CPUs of a task are rounded up to a multiple of the core's threads.
    cores_of_task = -(-job.cpus_on_node // job.tasks_per_node // threads)
    cpus = cores_of_task * threads * job.tasks_per_node
    if node.cpus_usable - node.cpus_used < cpus:
        yield f"fewer than {counted(cpus, 'free CPU')}"
    usable_memory = node.memory - node.memory_reserved
    needed_memory = usable_memory if demand.memory is None else demand.memory
    if usable_memory - node.memory_used < needed_memory:
        yield f"less than {Memory(needed_memory)} of free memory"


def _lacks_gres(demand: NodeDemand, node: SlurmNode, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield in words which GPUs, shards or other generic resources a node lacks for the job."""
    job = demand.job
    for gpu_type, count in job.gpus_on_node:
        if sum(gpu.free and gpu_type in ("", gpu.type) for gpu in gpus) < count:
            yield f"fewer than {counted(count, 'free GPU')}" + f" of type {gpu_type}" * bool(gpu_type)
    for name, gres_type, count in job.gres:
        if name == "shard" and count:
            shards = [gpu.shards_free for gpu in gpus if gres_type in ("", gpu.type)]
            if (sum(shards) if demand.shards_span_gpus else max(shards, default=0)) < count:
                where = "" if demand.shards_span_gpus else " on one GPU"
                yield f"fewer than {counted(count, 'free shard')}{where}"
        elif name != "gpu":
            total = [gres for gres in node.gres if gres.name == name and gres_type in ("", gres.type)]
            used = [gres for gres in node.gres_used if gres.name == name and gres_type in ("", gres.type)]
            free_count = sum(gres.count for gres in total) - sum(gres.count for gres in used)
            # Any number of jobs may have a resource that is not consumed.
            if free_count < count and all(gres.is_consumed for gres in total):
                yield f"fewer than {count} free {name}"
