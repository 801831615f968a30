"""What each task of a job gets: how many tasks there are, and their share of a node's CPUs and memory."""

from __future__ import annotations

from collections.abc import Iterable

from sbatchgen.inputs.layers import BY_DEFAULT, DecidedValues, Level
from sbatchgen.inputs.profile import NodeFacts, Partition, Profile
from sbatchgen.modes import Mode
from sbatchgen.resolved.job_gpus import gpus_asked
from sbatchgen.sbatch.gres import requested, requested_gpus
from sbatchgen.units import Memory

GUESS = "a guess"  # how the reason starts that a number has where the profile lacks a fact
DEFAULT_CPUS = 4  # per process, where nothing is known of the node
_MEMORY_KEYS = ("options.mem", "options.mem_per_cpu", "options.mem_per_gpu")


def derive_tasks(values: DecidedValues, partition: Partition, gpus: int, shards: int, mode: Mode) -> int:
    """Processes and tasks on each node; returns the processes."""
    by_srun = bool(mode.launchers) and values.get("launcher") == "srun"
    nproc = 1
    if mode.several_processes:
        given = values.get("nproc_per_node") or (values.get("options.ntasks_per_node") if by_srun else None)
        each = max(1, gpus_asked(values, "gpus_per_task")) if by_srun else 1
        nproc = given or gpus * partition.processes_per_gpu // each or (1 if shards else 2)
        values.derive("nproc_per_node", nproc, _why(partition) if gpus else "no whole GPUs")
    why = "one task per process" if by_srun else "one task per node"
    values.derive("options.ntasks_per_node", nproc if by_srun else 1, why)
    return int(nproc)


def _why(partition: Partition) -> str:
    several = partition.processes_per_gpu
    return f"{several} processes per GPU" if several > 1 else "one process per GPU"


def derive_cpus(values: DecidedValues, partition: Partition, gpus: int, shards: int, mode: Mode) -> None:
    """CPUs of a task: the share of the node that goes with its GPUs; none of a whole node of unknown size."""
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
    """Return the kinds of nodes that the job may get; all if no kind has what it asks for."""
    typed = [(kind, n) for name, kind, n in requested(values.get("options.gres") or "") if name == "gpu"]
    asked = typed or requested_gpus(values.get("options.gpus_per_node")) or (("", gpus),)
    having = partition.kinds(asked)
    return [node for node in having if node.shards_per_gpu or not shards] or having or partition.kinds()


def _share(nodes: Iterable[NodeFacts], name: str, gpus: int) -> int | None:
    """What goes with so many GPUs on each of these nodes, if one of them is known."""
    shares = [
        max(1, whole * min(gpus, node.gpus_per_node) // node.gpus_per_node)
        for node in nodes
        if (whole := getattr(node, name)) and node.gpus_per_node
    ]
    return min(shares, default=None)


def derive_memory(values: DecidedValues, profile: Profile, partition: Partition, gpus: int) -> None:
    """Memory of a node: the GPUs' share; all of a node where the partition's default is more than that."""
    if not gpus and values.origins.get("options.mem_per_gpu", BY_DEFAULT).level < Level.PROJECT:
        values.drop("options.mem_per_gpu")
    if values.highest(_MEMORY_KEYS):
        return
    nodes = _nodes(values, partition, gpus, 0)
    smallest = min((node.mem_per_node for node in nodes if node.mem_per_node), default=None)
    maximum = min(filter(None, (smallest, partition.mem_per_node_max)), default=0)
    if gpus and values.get("options.exclusive") is None:
        mem = min(filter(None, (_share(nodes, "mem_per_node", gpus), partition.mem_per_node_max)), default=0)
        values.derive("options.mem", Memory(mem) if mem > 1 else None, "the GPUs' share of a node")
    elif maximum > 1 and partition.mem_per_cpu_default and profile.limits.memory_consumable is not False:
        cpus = (values.get("options.ntasks_per_node") or 1) * (values.get("options.cpus_per_task") or 1)
        if values.get("options.exclusive"):
            cpus = max((node.cpus_per_node or cpus for node in nodes), default=cpus)
        if partition.mem_per_cpu_default * cpus > maximum:
            why = f"the default of {partition.mem_per_cpu_default} per CPU is more than a node has"
            values.derive("options.mem", Memory(maximum), why)
