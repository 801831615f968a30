"""Computes the most GPUs and CPUs that Slurm may allocate to a request on the cluster's partitions and nodes.

Source: what Slurm 22.05 and 26.05 allocate (tests/budget/test_share.py).
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sbatchgen.base.errors import BudgetError, SlurmError
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.slurm.config import config
from sbatchgen.jobs.slurm.node import SlurmNode, nodes
from sbatchgen.jobs.slurm.partition import SlurmPartition, partitions

_GPU_PART_NAMES = ("shard", "mps")  # generic resources that are parts of a GPU


class Placement(NamedTuple):
    """The partitions and nodes on which a job may run."""

    partitions: Sequence[SlurmPartition]
    nodes: Sequence[SlurmNode]  # nodes of these partitions; none if Slurm does not show them
    settings: Mapping[str, str]  # the settings of slurm.conf

    def largest(self, field: str) -> int:
        """Return the largest value that a node has in a field, such as "cpus"; 0 without nodes."""
        return max((getattr(node, field) for node in self.nodes), default=0)

    def largest_gres(self, name: str) -> int:
        """Return the largest count of a generic resource, such as "gpu", on a node; 0 without nodes."""
        counts = (sum(gres.count for gres in node.gres if gres.name == name) for node in self.nodes)
        return max(counts, default=0)

    @property
    def time_s(self) -> int | None:
        """The time limit, in seconds, of a job that names none; None if there is no limit."""
        limits = [partition.time_default_s or partition.time_max_s for partition in self.partitions]
        return max((limit for limit in limits if limit), default=0) if all(limits) else None


def find_placement(request: ResourceRequest, environment: Mapping[str, str]) -> Placement:
    """Return the partitions and nodes on which a job may run; raise SlurmError if Slurm does not answer."""
    all_partitions, names = partitions(environment), request.partitions
    if names:
        chosen = [partition for partition in all_partitions if partition.name in names]
    else:
        chosen = [partition for partition in all_partitions if partition.default]
    chosen_nodes: list[SlurmNode] = []
    with contextlib.suppress(SlurmError):  # PrivateData=nodes in slurm.conf hides the nodes from users
        chosen_names = {partition.name for partition in chosen}
        chosen_nodes = [node for node in nodes(environment) if chosen_names & {*node.partitions}]
    return Placement(chosen, chosen_nodes, config(environment))


class LargestAllocation(NamedTuple):
    """What Slurm allocates to a job on all its nodes together."""

    gpus: float
    cpus: int


def largest_allocation(request: ResourceRequest, placement: Placement) -> LargestAllocation:
    """Return the most GPUs and CPUs that Slurm may allocate to a job.

    If Slurm hides the nodes, the numbers are upper bounds. Raises BudgetError if they can't be computed
    without the nodes.
    """
    request = request.with_most_nodes(
        max((partition.nodes for partition in placement.partitions), default=0) or None
    )
    request = replace(request, nodes_min=max(request.nodes, len(hosts(request.options.get("nodelist", "")))))
    gets_whole_nodes = request.is_exclusive or any(partition.exclusive for partition in placement.partitions)
    gets_whole_nodes |= "linear" in placement.settings.get("SelectType", "")
    gets_whole_nodes |= bool({"core-spec", "thread-spec"} & {*request.options})
    if not gets_whole_nodes:
        gpus = _gpu_count(request, placement)
        return LargestAllocation(gpus, _cpu_count(request, placement, math.ceil(gpus)))
    if not placement.nodes:
        what = "a budget can't count this job: it gets whole nodes, and Slurm does not show what they have"
        raise BudgetError.of(what, fix="leave --exclusive out")
    gpus_on_node = max(placement.largest_gres("gpu"), request.gpu_count)
    return LargestAllocation(gpus_on_node * request.nodes, placement.largest("cpus") * request.nodes)


def _gpu_count(request: ResourceRequest, placement: Placement) -> float:
    """Return the GPUs on all nodes together; a shard counts as its fraction of a GPU."""
    if request.ntasks and request.ntasks_per_gpu and not request.gpu_option:
        return -(-request.ntasks // request.ntasks_per_gpu)
    parts = 0.0  # shards and MPS on each node, converted to GPUs
    for name in _GPU_PART_NAMES:
        requested = sum(count for gres_name, _, count in request.gres if gres_name == name)
        on_node = placement.largest_gres(name)
        # Without a known node, each part counts as a whole GPU.
        parts += requested * placement.largest_gres("gpu") / on_node if on_node else requested
    whole_gpus = max(request.gpus_in_all, sum(count for _, count in request.gpus or ()))
    return whole_gpus + parts * request.nodes


def _cpu_count(request: ResourceRequest, placement: Placement, gpus: int) -> int:
    """Return the CPUs on all nodes together.

    Slurm allocates whole cores or sockets, and more CPUs for the memory and the GPUs. -(-a // b) is a / b,
    rounded up.
    """
    threads_per_core = placement.largest("threads_per_core") or 2
    parameters = placement.settings.get("SelectTypeParameters", "").upper()
    unit = threads_per_core  # how many CPUs Slurm allocates together: those of a core, or of a socket
    if "SOCKET" in parameters:
        unit *= placement.largest("cores_per_socket") or 1
    has_one_task_per_core = "ONE_TASK_PER_CORE" in parameters
    per_task = _cpu_count_of_task(
        request, placement, threads_per_core, has_one_task_per_core=has_one_task_per_core
    )
    default_per_gpu = max((partition.cpus_per_gpu or 0 for partition in placement.partitions), default=0)
    per_gpu = request.cpus_per_gpu or (0 if request.cpus_per_task else default_per_gpu)
    if request.splits_gpus():  # 26.05 allocates CPUs for more GPUs on a node than the node gives
        gpus = request.nodes * min(gpus, placement.largest_gres("gpu") or gpus)
    if request.ntasks_per_node:
        cpus_on_node = request.ntasks_per_node * per_task
        total = request.nodes * -(-cpus_on_node // unit) * unit
    else:
        tasks = max(request.ntasks or 1, request.nodes, (request.ntasks_per_gpu or 0) * gpus)
        total = (max(tasks * per_task, per_gpu * gpus) + request.nodes * (unit - 1)) // unit * unit
    total = max(total, request.nodes * -(-_min_cpus_on_node(request, placement) // unit) * unit)
    return min(total, request.nodes * placement.largest("cpus") or total)


def _cpu_count_of_task(
    request: ResourceRequest, placement: Placement, threads_per_core: int, *, has_one_task_per_core: bool
) -> int:
    """Return the CPUs that Slurm allocates to a task, which may be more than it requested.

    A task may get whole cores, with all their threads. A task that asks for more memory than its CPUs bring
    also gets more CPUs.
    """
    cpus = request.cpus_per_task or 1
    if limit := _max_memory_per_cpu(placement):
        cpus *= -(-(request.mem_per_cpu or 0) // limit) or 1
    if request.options.get("hint") == "nomultithread" or "threads-per-core" in request:
        return cpus * threads_per_core
    if has_one_task_per_core or "ntasks-per-core" in request:
        return -(-cpus // threads_per_core) * threads_per_core
    return cpus


def _min_cpus_on_node(request: ResourceRequest, placement: Placement) -> int:
    """Return the least number of CPUs that a job gets on a node, by --mincpus, by -B and by its memory."""
    by_shape = 1  # -B SOCKETS:CORES:THREADS
    for part in request.options.get("extra-node-info", "").split(":"):
        by_shape *= int(part) if part.isdecimal() else 1
    mincpus = request.options.get("mincpus", "")
    by_memory = 0
    if limit := _max_memory_per_cpu(placement):
        memory = request.mem or (request.mem_per_gpu or 0) * request.gpu_count
        if request.mem == 0:  # all memory of the node
            memory = placement.largest("memory")
        by_memory = -(-memory // limit)
    return max(by_shape, int(mincpus) if mincpus.isdecimal() else 1, by_memory)


def _max_memory_per_cpu(placement: Placement) -> int:
    """Return the most memory that Slurm gives with a CPU, in MiB; 0 without a limit.

    A job that asks for more memory gets more CPUs.
    """
    setting = placement.settings.get("MaxMemPerCPU", "")
    limits = [partition.mem_per_cpu_max or 0 for partition in placement.partitions]
    limits.append(int(setting) if setting.isdecimal() else 0)
    return min(filter(None, limits), default=0)
