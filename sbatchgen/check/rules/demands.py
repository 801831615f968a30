"""Rules that compare a job's tasks, CPUs, memory and local disk with its nodes.

Other rules find options of a job that contradict each other, whatever the cluster is. A rule that needs a
fact which the profile lacks reports nothing. Sources: sbatch(1), slurm.conf(5),
https://slurm.schedmd.com/gres.html.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Memory, Text, mebibytes
from sbatchgen.check.cluster_facts import NodeFacts, NodeShape, PartitionFacts
from sbatchgen.check.rules.gpu_demands import most_of_a_type, untyped_gpus
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.gres import GPU_RESOURCES
from sbatchgen.check.sbatch.rivals import Rivals, rivals
from sbatchgen.check.script.job import Job
from sbatchgen.check.script.resource_request import UNLIMITED, ResourceRequest

RULES: Rules[Job] = Rules()

# Options that only select/cons_tres knows.
_CONS_TRES_OPTIONS = "gpus gpus-per-socket gpus-per-task cpus-per-gpu mem-per-gpu ntasks-per-gpu".split()  # noqa: SIM905


class _NodeDemand(NamedTuple):
    """A demand of a job on each of its nodes."""

    is_met_by: Callable[[NodeFacts], bool]  # returns whether a kind of node meets the demand
    text: str  # the demand in words, such as "4 GPUs"; "" for a demand of nothing


@RULES.add("SB131", "error", "options that exclude each other", applies=Applies.USUALLY & ~Applies.PARTS)
def exclusive_options(job: Job) -> Iterator[Hit]:
    """Find options that exclude each other, and options that lack another option."""
    resources = job.resources
    pairs = [*rivals(resources), *_gpus_per_node_and_gres(job)]
    for first, second, since, earlier_effect, _ in pairs:
        is_refused = job.slurm >= since
        what = f"--{first} and --{second} exclude each other: Slurm refuses the job"
        what += f" since {since}" if earlier_effect or not is_refused else ""
        what += f"; in {job.slurm} {earlier_effect}" if earlier_effect and not is_refused else ""
        yield Hit(second, what, "keep one of them", "warning" if job.is_script and not is_refused else None)
    # Whether the number in --gpus-per-socket=TYPE:N is not 0.
    has_gpus_per_socket = job.option("gpus-per-socket").rpartition(":")[2].strip("0") != ""
    if has_gpus_per_socket and "sockets-per-node" not in resources:
        what = "--gpus-per-socket needs --sockets-per-node: Slurm refuses the job"
        yield Hit("gpus-per-socket", what, "add --sockets-per-node=N, or use --gpus-per-node")
    for option, since in (("mem-per-gpu", ""), ("cpus-per-gpu", "23.02")):
        is_zero = option == "mem-per-gpu" and resources.mem_per_gpu == 0
        if option in resources and not is_zero and not resources.gpu_option and job.slurm >= since:
            what = f"--{option} needs GPUs, but the job asks for none: Slurm refuses it"
            # Such a script may also get its GPUs on sbatch's command line.
            is_sized_by_caller = job.is_script and not {"nodes", "ntasks"} & resources.options.keys()
            yield Hit(option, what, f"remove --{option}", "warning" if is_sized_by_caller else None)
    if not (job.is_script or pairs):  # SB135 reports scripts
        yield from _refused_counts(resources.options, job.slurm)


def _gpus_per_node_and_gres(job: Job) -> Iterator[Rivals]:
    """Yield the two options as rivals, if both ask for GPUs."""
    resources = job.resources
    # sbatch 26.05 compares only the first three letters, so that it takes any gpuX in --gres for GPUs.
    gres_names = {name if job.slurm < "26.05" else name[:3] for name, _, _ in resources.gres}
    if "gpus-per-node" not in resources or "gpu" not in gres_names:
        return
    types = {kind for name, kind, count in resources.gres if name == "gpu" and count}
    types |= {kind for kind, _ in resources.gpus_per_node or ()}
    since, earlier_effect = "26.05", "--gres counts and --gpus-per-node is ignored"
    if "" in types and len(types) > 1:  # GPUs with and without a type: every release refuses the job
        since, earlier_effect = "", ""
    yield Rivals("gpus-per-node", "gres", since=since, before=earlier_effect, message="")


def _refused_counts(options: Mapping[str, str], slurm: str) -> Iterator[Hit]:
    """Find numbers of GPUs, nodes and tasks that sbatch refuses together."""
    gpu_option = next((name for name in ("gpus", "gpus-per-task") if name in options), None)
    if gpu_option is None:
        return
    from sbatchgen.check.sbatch.combination import check_options  # few jobs need these modules
    from sbatchgen.check.sbatch.values import RefusedError

    try:
        check_options(options, slurm=slurm)
    except RefusedError as error:
        fix = "say --nodes too"
        if gpu_option == "gpus":
            fix = "ask for the GPUs of one node alone: gpus_per_node"
        yield Hit(gpu_option, f'sbatch refuses the job: "{error}"', fix)


@RULES.add("SB132", "warning", "more tasks than fit on the nodes", source="sbatch(1)")
def _too_many_tasks(job: Job) -> Iterator[Hit]:
    resources = job.resources
    nodes_max = resources.nodes_max or resources.nodes_min
    tasks, tasks_per_node = resources.ntasks, resources.ntasks_per_node
    if not (tasks and tasks_per_node and nodes_max):
        return
    tasks_max = nodes_max * tasks_per_node
    if tasks > tasks_max:
        what = f"{tasks} tasks do not fit on {counted(nodes_max, 'node')} with {tasks_per_node} each: Slurm "
        what += "refuses the job, or changes what it asks for"
        fix = f"remove --ntasks: --nodes and --ntasks-per-node give {counted(tasks_max, 'task')}"
        yield Hit("ntasks", what, fix)


@RULES.add("SB133", "warning", "fewer tasks than nodes", source="src/sbatch/opt.c of Slurm")
def _too_few_tasks(job: Job) -> Iterator[Hit]:
    tasks, nodes = job.resources.ntasks, job.resources.nodes_min
    if tasks and nodes and tasks < nodes:
        what = f"{counted(tasks, 'task')} on {nodes} nodes: Slurm gives the job {counted(tasks, 'node')}"
        fix = "set --ntasks-per-node instead of --ntasks"
        if tasks_per_node := job.resources.ntasks_per_node:
            fix = f"remove --ntasks: --ntasks-per-node={tasks_per_node} gives "
            fix += counted(nodes * tasks_per_node, "task")
        yield Hit("nodes", what, fix)


@RULES.add_fit("SB215", "error", "more CPUs on a node than it has")
def _too_many_cpus(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        request = job.resources.with_most_nodes(partition.nodes_max)
        cpus_for_jobs = partition.cpus_per_node_max  # of each node
        cpu_counts = [kind.cpus_per_node for kind in partition.node_kinds() if kind.cpus_per_node]
        fewest_cpus = min(cpu_counts, default=0)
        if cpus_for_jobs and fewest_cpus > cpus_for_jobs and job.resources.is_exclusive:
            what = f"partition '{name}' gives jobs at most {cpus_for_jobs} of {fewest_cpus} CPUs of a node "
            what += "(MaxCPUsPerNode): a job for whole nodes waits for ever, or Slurm refuses it"
            yield Hit("exclusive", what, "remove --exclusive", why_not=f"{cpus_for_jobs} CPUs a node")
        known_limits = [limit for limit in (partition.cpus_per_node, cpus_for_jobs) if limit is not None]
        if known_limits and request.cpus_on_node > min(known_limits):
            why_not = f"{min(known_limits)} CPUs a node"
            what = f"partition '{name}' has {why_not}, but the job asks for {request.cpus_on_node}"
            if request.tasks_per_node > 1 and request.cpus_per_task:
                what += f": {request.tasks_per_node} tasks with {request.cpus_per_task} each"
            options = ("cpus-per-task", "cpus-per-gpu", "ntasks-per-node", "ntasks")
            option = next((option for option in options if option in request), "")
            yield Hit(option, what, f"ask for at most {why_not}", why_not=why_not)


@RULES.add_fit("SB216", "error", "more memory on a node than it has")
def _too_much_memory(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        request, kinds = job.resources.with_most_nodes(partition.nodes_max), partition.node_kinds()
        # For each kind of node: the MiB that a job can have there, and the MiB that this job needs there.
        limits_and_demands = [
            (_memory_limit(job, partition, kind), _memory_demand(job, request, partition, kind))
            for kind in kinds
        ]
        if not all(limit and demand > limit for limit, demand in limits_and_demands):
            continue
        limit, demand = max(limits_and_demands)  # of the largest kind of node
        what = f"a node of partition '{name}' has {Memory(limit)} of memory, but the job asks for "
        what += str(Memory(demand))
        if mem_per_unit := request.mem_per_cpu or request.mem_per_gpu:
            units = "CPUs" if request.mem_per_cpu else "GPUs"
            what += f": {demand // mem_per_unit} {units} with {Memory(mem_per_unit)} each"
        elif request.mem is None:
            what += ", the partition's default"
        fix = f"set --mem {Memory(limit)} or less"
        if any(limit == kind.mem_installed for kind in kinds):
            fix = f"ask for less than {Memory(limit)}: jobs may have a part of what is installed"
        if limit <= 1:  # 1 MiB is the default of RealMemory
            fix = "ask for no memory: slurm.conf has no RealMemory"
        yield Hit(_memory_option(job), what, fix, why_not=f"{Memory(limit)} of memory a node")


def _memory_limit(job: Job, partition: PartitionFacts, kind: NodeFacts) -> int:
    """Return the most MiB that a job can have on a kind of node; 0 if unknown."""
    largest = kind.mem_largest or kind.mem_per_node or kind.mem_installed
    # Where memory is not a consumable resource, Slurm ignores MaxMemPerNode.
    job_max = partition.mem_per_node_max if _is_memory_consumable(job) else None
    return min(filter(None, (largest, job_max)), default=0)


def _memory_demand(job: Job, request: ResourceRequest, partition: PartitionFacts, kind: NodeFacts) -> int:
    """Return the MiB that a job needs on a kind of node; 0 if unknown."""
    is_consumable = _is_memory_consumable(job)
    cpus, gpus = request.cpus_on_node, request.gpu_count
    has_whole_nodes = job.resources.is_exclusive or job.profile.limits.select_type == "linear"
    if has_whole_nodes and is_consumable:  # the job gets all CPUs and GPUs of a node
        cpus, gpus = max(cpus, kind.cpus_per_node or 0), max(gpus, kind.gpus_per_node or 0)
    if request.mem is not None:
        return request.mem or kind.mem_per_node or 0  # --mem=0 is all memory of the node
    if request.mem_per_cpu:
        return request.mem_per_cpu * cpus
    gpu_memory = (request.mem_per_gpu or 0) * gpus
    if not is_consumable:  # Slurm ignores the partition's defaults
        return gpu_memory
    default_cpu_memory = (partition.mem_per_cpu_default or 0) * cpus
    if gpu_memory:  # a node must also have the default memory of the CPUs
        return max(gpu_memory, default_cpu_memory)
    default_gpu_memory = (partition.mem_per_gpu_default or 0) * gpus
    return default_gpu_memory or default_cpu_memory or partition.mem_per_node_default or 0


def _is_memory_consumable(job: Job) -> bool:
    """Return whether Slurm shares out the memory of a node among jobs, by what the profile says."""
    return job.profile.limits.memory_consumable is not False


@RULES.add("SB218", "warning", "a whole node with the default memory only")
def _default_memory_of_node(job: Job) -> Iterator[Hit]:
    if not _is_memory_consumable(job):
        return
    has_default = any(partition.mem_per_cpu_default for partition in job.partitions.values())
    is_plain_exclusive = job.resources.options.get("exclusive") == ""  # not --exclusive=user
    if is_plain_exclusive and not _memory_option(job) and (has_default or not job.knows_cluster):
        what = "--exclusive gives all CPUs and GPUs of the nodes, but only the default memory"
        yield Hit("exclusive", what, "add --mem=0 for all of it", None if has_default else "info")


@RULES.add("SB220", "warning", "more memory per CPU than the partition allows", source="sbatch(1)")
def _too_much_memory_per_cpu(job: Job) -> Iterator[Hit]:
    mem_per_cpu = job.resources.mem_per_cpu
    for name, partition in job.partitions.items():
        limit = partition.mem_per_cpu_max
        if mem_per_cpu and limit and mem_per_cpu > limit:
            cpus = (job.resources.cpus_per_task or 1) * -(-mem_per_cpu // limit)
            what = f"{Memory(mem_per_cpu)} per CPU is over the {limit} of partition '{name}': Slurm gives "
            what += f"{cpus} CPUs per task instead"
            yield Hit("mem-per-cpu", what, f"set --mem-per-cpu {limit} or less, or --cpus-per-task {cpus}")


@RULES.add_fit("SB237", "error", "GPUs, CPUs and memory that no node has together")
def _no_suitable_node(job: Job) -> Iterator[Hit]:
    """Find a job whose demands no kind of node meets together, although each demand alone can be met."""
    for name, partition in job.partitions.items():
        request, shapes = job.resources.with_most_nodes(partition.nodes_max), partition.shapes
        demands = [*_node_demands(job, request, partition)]
        shapes_by_demand = [[shape for shape in shapes if is_met_by(shape)] for is_met_by, _ in demands]
        if not all(shapes_by_demand):
            continue  # a demand that no shape meets, which the rule about this demand reports
        fitting = [shape for shape in shapes if all(shape in suitable for suitable in shapes_by_demand)]
        # Slurm may split --ntasks and --gpus unevenly. Then one node that meets the demands is enough.
        is_even = request.ntasks is None and request.gpus is None
        nodes = job.resources.nodes if is_even else 1
        fitting_nodes = sum(shape.nodes or nodes for shape in fitting)
        if fitting_nodes < nodes:
            demand_text = " and ".join(text for _, text in demands if text)
            why_not = f"no node with {demand_text}"
            what = f"partition '{name}' has {why_not}"
            if fitting_nodes > 0:
                why_not = f"only {fitting_nodes} nodes with {demand_text}"
                what = f"partition '{name}' has {why_not}, but {nodes} nodes were asked for"
            offers = "; ".join(_hardware_text(shape) for shape in shapes)
            yield Hit("partition", what, f"ask for what one kind of node has: {offers}", why_not=why_not)


def _node_demands(job: Job, request: ResourceRequest, partition: PartitionFacts) -> Iterator[_NodeDemand]:
    """Yield the demands of a job on each node: GPUs, CPUs, memory, features and other generic resources.

    `request` is the job's request on as many nodes as Slurm may give the job.
    """
    cpus, memory, features = request.cpus_on_node, request.mem_on_node or 0, job.option("constraint")
    kinds_with_gpus = partition.node_kinds(request.gpus_on_node)
    if job.profile.limits.select_type == "cons_tres":  # which takes all GPUs without a type from one type
        untyped = untyped_gpus(request)
        kinds_with_gpus = [kind for kind in kinds_with_gpus if untyped <= (most_of_a_type(kind) or math.inf)]
    yield _NodeDemand(kinds_with_gpus.__contains__, counted(request.gpu_count, "GPU"))
    yield _NodeDemand(lambda kind: cpus <= (kind.cpus_per_node or cpus), counted(cpus, "CPU"))

    def has_memory(kind: NodeFacts) -> bool:
        demand = _memory_demand(job, request, partition, kind)
        return demand <= (_memory_limit(job, partition, kind) or UNLIMITED)

    yield _NodeDemand(has_memory, f"{Memory(memory)} of memory" * bool(memory))
    if features:
        from sbatchgen.check.sbatch.lists import may_match  # only jobs that name features need the module

        def has_features(kind: NodeFacts) -> bool:
            return kind.features is None or may_match(features, kind.features)

        yield _NodeDemand(has_features, f"features {features}")
    other_gres = [(name, count) for name, _, count in request.gres if name not in GPU_RESOURCES]

    def has_other_gres(kind: NodeFacts) -> bool:
        return all(_gres_count(kind, name, count) >= count for name, count in other_gres)

    yield _NodeDemand(has_other_gres, " and ".join(f"{count} {name}" for name, count in other_gres))


def _gres_count(kind: NodeFacts, name: str, default: int) -> int:
    """Return the count of a generic resource on a kind of node; `default` if the profile lacks the count."""
    return default if kind.gres is None else kind.gres.get(Text(name), 0)


@RULES.add_fit("SB239", "error", "local disk or other resources that no node has")
def _missing_disk_or_gres(job: Job) -> Iterator[Hit]:
    disk_demand = mebibytes(job.option("tmp")) or 0
    for name, partition in job.partitions.items():
        disk = partition.tmp_per_node
        if disk is not None and disk_demand > disk:
            what = f"nodes of partition '{name}' have {disk} of local disk (TmpDisk), but the job asks for "
            fix = f"set --tmp {disk} or less" if disk else "remove --tmp"
            yield Hit("tmp", what + str(Memory(disk_demand)), fix, why_not=f"{disk} of local disk")
        for resource, _, count in job.resources.gres:
            available = max(
                (_gres_count(kind, resource, count) for kind in partition.node_kinds()), default=count
            )
            # SB207 reports GPUs, and SB212 reports shards of nodes that have some.
            is_judged_elsewhere = resource == "gpu" or (available and resource == "shard")
            if count > available and not is_judged_elsewhere:
                what = f"a node of partition '{name}' has {available or 'no'} {resource}, "
                what += f"but {count} were asked for"
                fix = f"ask for at most {available}" if available else f"leave out {resource}"
                yield Hit("gres", what, fix, why_not=f"{available} {resource} a node")


@RULES.add_fit("SB240", "error", "options that the cluster's SelectType does not know")
def _unknown_to_select_plugin(job: Job) -> Iterator[Hit]:
    plugin = job.profile.limits.select_type
    if plugin not in ("cons_res", "linear"):
        return
    for option in _CONS_TRES_OPTIONS:
        if option in job.resources:
            what = f"--{option} needs select/cons_tres, and this cluster has select/{plugin}: "
            what += "Slurm refuses it"
            fix = "ask for GPUs by --gres=gpu:N" if option.startswith("gpus") else f"remove --{option}"
            yield Hit(option, what, fix)


def _hardware_text(shape: NodeShape) -> str:
    """Return the hardware of a kind of node in words, such as "8 nodes with 4 GPUs, 64 CPUs, 512G"."""
    gpu_counts = " and ".join(f"{count} {gpu_type}" for gpu_type, count in shape.gpu_types.items())
    facts = [f"{gpu_counts or shape.gpus_per_node} GPUs"] if shape.gpus_per_node else []
    facts += [f"{shape.cpus_per_node} CPUs"] if shape.cpus_per_node else []
    facts += [str(memory)] if (memory := shape.mem_per_node or shape.mem_installed) else []
    return f"{counted(shape.nodes, 'node') if shape.nodes else 'nodes'} with {', '.join(facts)}"


def _memory_option(job: Job) -> str:
    """Return the option with which the job asks for memory; "" without such an option."""
    return next((name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in job.resources), "")
