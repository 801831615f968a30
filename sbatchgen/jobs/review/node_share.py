"""The share of each node that a job asks for, and the cost of the job."""

from collections.abc import Sequence
from dataclasses import replace

from sbatchgen.base.frozen import frozen
from sbatchgen.base.units import Weights
from sbatchgen.check.cluster_facts import NodeFacts
from sbatchgen.check.script.resource_request import UNLIMITED, ResourceRequest
from sbatchgen.jobs.inputs.profile import Partition
from sbatchgen.jobs.judge.trainer import promises_restarts
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob


@frozen(kw_only=True)
class Amount:
    """How much of a resource a job gets on a node, such as 2 of 8 GPUs."""

    given: int | None  # the amount that the job gets; None if it is not known
    of: int | None = None  # the amount that the node has; None if it is not known

    @property
    def share(self) -> float | None:
        """The fraction of the node's amount that the job gets; None if it is not known."""
        return self.given / self.of if self.given is not None and self.of else None


@frozen(kw_only=True)
class Allocation:
    """The resources that a job asks of Slurm; GPUs, shards, CPUs and memory are amounts on each node."""

    nodes: int
    processes: int | None  # processes that the job starts on all nodes
    gpus: Amount
    shards: Amount
    cpus: Amount
    memory_mib: Amount
    exclusive: bool  # whether no other job may run on its nodes, so that it gets all GPUs and CPUs
    time_s: int | None  # the time limit in seconds; None for the partition's limit
    share: float | None  # the largest known fraction of a node that the job gets
    jobs: int  # number of jobs: elements of the array, jobs of the chain, or 1
    consecutive: bool  # whether the jobs continue one training, one after the other
    restarts: int  # how often each job may be restarted by its script
    gpu_memory_mib: int | None = None  # memory of a GPU; the least, if the nodes have several kinds
    gpus_in_all: int | None = None  # GPUs on all nodes, if Slurm may give each node another number


@frozen(kw_only=True)
class Cost:
    """The hours that jobs cost if each runs once to its time limit; None if they are not known."""

    gpu_hours: float | None  # a shard counts as its fraction of a GPU
    cpu_hours: float | None
    billing_hours: float | None = None  # in the site's own unit


def allocation_of_job(resolved: ResolvedJob, *, ends_at_limit: bool) -> Allocation:
    """Return the allocation of a resolved job.

    `ends_at_limit` is whether the training ends at the time limit, because the trainer can't resume it.
    """
    request = allocation_of_request(resolved.resources, resolved.partition, gpus=resolved.gpus_per_node)
    restarts = resolved.max_restarts if resolved.restartable and not resolved.consecutive else 0
    restarts = 0 if ends_at_limit and not promises_restarts(resolved) else restarts
    trainer_starts_others = resolved.trainer and resolved.launcher == "spawn"
    processes = resolved.nodes * (1 if trainer_starts_others else resolved.nproc_per_node)
    jobs = resolved.sweep.submitted_points if resolved.sweep else request.jobs * resolved.chain
    consecutive = resolved.consecutive
    return replace(request, processes=processes, jobs=jobs, consecutive=consecutive, restarts=restarts)


def allocation_of_request(job: ResourceRequest, partition: Partition, *, gpus: int) -> Allocation:
    """Return the allocation for the options of a script.

    The job gets `gpus` GPUs on each node, or whole nodes with all GPUs. `partition` has the nodes' facts.
    """
    gets_whole_nodes = job.is_exclusive or partition.exclusive
    splits_gpus = job.splits_gpus(partition.gpus_of_node_kinds(job.gpus or ()), whole_nodes=gets_whole_nodes)
    kinds = partition.node_kinds(job.gpus_on_node) if gets_whole_nodes else []
    whole_gpus = Amount(
        given=None if splits_gpus else _whole_amount(kinds, "gpus_per_node", gpus), of=partition.gpus_per_node
    )
    shards = Amount(given=job.shards, of=partition.shards_per_gpu)
    names_cpus = bool({"cpus-per-task", "cpus-per-gpu"} & job.options.keys())
    requested_cpus = job.cpus_on_node if names_cpus or not gets_whole_nodes else None
    cpus = Amount(given=_whole_amount(kinds, "cpus_per_node", requested_cpus), of=partition.cpus_per_node)
    memory_mib = job.mem_with(cpus.given or job.cpus_on_node, whole_gpus.given or job.gpu_count)
    if memory_mib == 0:  # the job asks for all memory, which is not known if the nodes differ
        memory_mib = _whole_amount(partition.node_kinds(job.gpus_on_node), "mem_per_node", 0)
    memory = Amount(given=memory_mib, of=partition.mem_per_node)
    # A shard counts as its fraction of a GPU.
    gpu_amount = job.shards / shards.of if shards.of and job.shards else whole_gpus.given or 0
    shares = [gpu_amount / whole_gpus.of if whole_gpus.of else None, cpus.share, memory.share]
    return Allocation(
        nodes=job.nodes,
        processes=None,
        gpus=whole_gpus,
        shards=shards,
        cpus=cpus,
        memory_mib=memory,
        exclusive=gets_whole_nodes,
        time_s=None if job.time is None or job.time >= UNLIMITED else int(job.time),
        share=1.0 if gets_whole_nodes else max(filter(None, shares), default=None),
        jobs=array_size(job.options["array"]) if "array" in job else 1,
        consecutive=False,
        restarts=0,
        gpus_in_all=job.gpus_in_all if splits_gpus else None,
        gpu_memory_mib=min(
            (kind.gpu_memory for kind in partition.node_kinds() if kind.gpu_memory), default=None
        ),
    )


def _whole_amount(kinds: Sequence[NodeFacts], name: str, requested: int | None) -> int | None:
    """Return how much of a resource each node of these kinds has; None if the kinds differ.

    `name` is the key of the resource, such as "cpus_per_node". If no amount is known, return the requested
    amount.
    """
    amounts = {getattr(kind, name) for kind in kinds} - {None}
    if not amounts:
        return requested
    return amounts.pop() if len(amounts) == 1 else None


def array_size(array: str) -> int:
    """Return the number of jobs of an array such as 0-9:2,20%4; 1 for another text."""
    from sbatchgen.check.sbatch.array import indices

    return sum(map(len, indices(array) or ())) or 1


def cost_of(request: Allocation, billing: Weights | None = None) -> Cost:
    """Return the hours that a job costs. `billing` has the weights of the site's billing unit."""
    if request.time_s is None or request.nodes < 1:
        return Cost(gpu_hours=None, cpu_hours=None)
    node_hours = request.jobs * request.nodes * request.time_s / 3600
    gpus: float | None = request.gpus.given
    if request.gpus_in_all:
        gpus = request.gpus_in_all / request.nodes
    if shards := request.shards.given:
        gpus = shards / request.shards.of if request.shards.of else None
    cpus, billing_of_node = request.cpus.given, None
    if billing and cpus is not None:
        billing_of_node = billing.cost(cpus=cpus, mib=request.memory_mib.given or None, gpus=gpus or 0)
    return Cost(
        gpu_hours=None if gpus is None else gpus * node_hours,
        cpu_hours=None if cpus is None else cpus * node_hours,
        billing_hours=None if billing_of_node is None else billing_of_node * node_hours,
    )
