"""Rules that compare a job's tasks, CPUs, memory and local disk with its nodes.

No rule judges a fact that the profile lacks. Sources of limits on all clusters: sbatch(1), slurm.conf(5),
gres.html.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

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
MeetsDemand = Callable[[NodeFacts], bool]  # whether a kind of node meets one demand of a job


@RULES.add("SB131", "error", "options that exclude each other", applies=Applies.USUALLY & ~Applies.PARTS)
def exclusive_options(job: Job) -> Iterator[Hit]:
    """Find options that exclude each other, and options that lack another option."""
    resources = job.resources
    pairs = [*rivals(resources)]
    # sbatch 26.05 compares only the first letters of a name.
    gres_names = {name if job.slurm < "26.05" else name[:3] for name, _, _ in resources.gres}
    if "gpus-per-node" in resources and "gpu" in gres_names:
        has_type = {bool(kind) for name, kind, count in resources.gres if name == "gpu" and count}
        has_type |= {bool(kind) for kind, _ in resources.gpus_per_node or ()}
        if len(has_type) > 1:  # with and without a type: every release refuses the job
            pairs.append(Rivals("gpus-per-node", "gres", "", "", ""))
        else:
            before_2605 = "--gres counts and --gpus-per-node is ignored"
            pairs.append(Rivals("gpus-per-node", "gres", "26.05", before_2605, ""))
    for first, second, since, before, _ in pairs:
        is_refused = job.slurm >= since
        what = f"--{first} and --{second} exclude each other: Slurm refuses the job"
        what += f" since {since}" if before or not is_refused else ""
        what += f"; in {job.slurm} {before}" if before and not is_refused else ""
        yield Hit(second, what, "keep one of them", "warning" if job.is_script and not is_refused else None)
    if job.option("gpus-per-socket").rpartition(":")[2].strip("0") and "sockets-per-node" not in resources:
        what = "--gpus-per-socket needs --sockets-per-node: Slurm refuses the job"
        yield Hit("gpus-per-socket", what, "add --sockets-per-node=N, or use --gpus-per-node")
    for name, since in (("mem-per-gpu", ""), ("cpus-per-gpu", "23.02")):
        is_zero = name == "mem-per-gpu" and resources.mem_per_gpu == 0
        if name in resources and not is_zero and not resources.gpu_option and job.slurm >= since:
            what = f"--{name} needs GPUs, but the job asks for none: Slurm refuses it"
            is_sized_by_caller = job.is_script and not {"nodes", "ntasks"} & resources.options.keys()
            yield Hit(name, what, f"remove --{name}", "warning" if is_sized_by_caller else None)
    if not (job.is_script or pairs):  # SB135 reports scripts
        yield from _refused_counts(resources.options, job.slurm)


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
def _tasks_fit_nodes(job: Job) -> Iterator[Hit]:
    resources = job.resources
    nodes_max = resources.nodes_max or resources.nodes_min
    tasks, per_node = resources.ntasks, resources.ntasks_per_node
    if tasks and per_node and nodes_max and tasks > nodes_max * per_node:
        what = f"{tasks} tasks do not fit on {counted(nodes_max, 'node')} with {per_node} each: Slurm "
        what += "refuses the job, or changes what it asks for"
        fix = f"remove --ntasks: --nodes and --ntasks-per-node give {counted(nodes_max * per_node, 'task')}"
        yield Hit("ntasks", what, fix)


@RULES.add("SB133", "warning", "fewer tasks than nodes", source="src/sbatch/opt.c of Slurm")
def _nodes_have_tasks(job: Job) -> Iterator[Hit]:
    tasks, nodes = job.resources.ntasks, job.resources.nodes_min
    if tasks and nodes and tasks < nodes:
        what = f"{counted(tasks, 'task')} on {nodes} nodes: Slurm gives the job {counted(tasks, 'node')}"
        fix = "set --ntasks-per-node instead of --ntasks"
        if per_node := job.resources.ntasks_per_node:
            fix = f"remove --ntasks: --ntasks-per-node={per_node} gives {counted(nodes * per_node, 'task')}"
        yield Hit("nodes", what, fix)


@RULES.add_fit("SB215", "error", "more CPUs on a node than it has")
def _cpus_within_node(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        resources, limit = job.resources.with_most_nodes(partition.nodes_max), partition.cpus_per_node_max
        cpu_counts = [node.cpus_per_node for node in partition.node_kinds() if node.cpus_per_node]
        fewest_cpus = min(cpu_counts, default=0)
        if limit and fewest_cpus > limit and job.resources.is_exclusive:
            what = f"partition '{name}' gives jobs at most {limit} of {fewest_cpus} CPUs of a node "
            what += "(MaxCPUsPerNode): a job for whole nodes waits for ever, or Slurm refuses it"
            yield Hit("exclusive", what, "remove --exclusive", why_not=f"{limit} CPUs a node")
        limits = [number for number in (partition.cpus_per_node, limit) if number is not None]
        if limits and resources.cpus_on_node > min(limits):
            what = f"partition '{name}' has {min(limits)} CPUs a node, but the job asks for "
            what += f"{resources.cpus_on_node}"
            if resources.tasks_per_node > 1 and resources.cpus_per_task:
                what += f": {resources.tasks_per_node} tasks with {resources.cpus_per_task} each"
            options = ("cpus-per-task", "cpus-per-gpu", "ntasks-per-node", "ntasks")
            option = next((option for option in options if option in resources), "")
            why_not = f"{min(limits)} CPUs a node"
            yield Hit(option, what, f"ask for at most {why_not}", why_not=why_not)


@RULES.add_fit("SB216", "error", "more memory on a node than it has")
def _memory_within_node(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        resources = job.resources.with_most_nodes(partition.nodes_max)
        limits = [(_memory_limit(job, partition, node), node) for node in partition.node_kinds()]
        demands = [(limit, _memory_demand(job, resources, partition, node)) for limit, node in limits]
        if not all(limit and demand > limit for limit, demand in demands):
            continue
        limit, demand = max(demands)
        what = f"a node of partition '{name}' has {Memory(limit)} of memory, but the job asks for "
        what += str(Memory(demand))
        if per_unit := resources.mem_per_cpu or resources.mem_per_gpu:
            units = "CPUs" if resources.mem_per_cpu else "GPUs"
            what += f": {demand // per_unit} {units} with {Memory(per_unit)} each"
        elif resources.mem is None:
            what += ", the partition's default"
        fix = f"set --mem {Memory(limit)} or less"
        if any(limit == node.mem_installed for _, node in limits):
            fix = f"ask for less than {Memory(limit)}: jobs may have a part of what is installed"
        if limit <= 1:  # MiB: the default of RealMemory
            fix = "ask for no memory: slurm.conf has no RealMemory"
        yield Hit(_memory_option(job), what, fix, why_not=f"{Memory(limit)} of memory a node")


def _memory_limit(job: Job, partition: PartitionFacts, node: NodeFacts) -> int:
    """Return the most MiB that a job can have on a kind of node; 0 if unknown."""
    largest = node.mem_largest or node.mem_per_node or node.mem_installed
    is_consumable = job.profile.limits.memory_consumable is not False  # else Slurm ignores MaxMemPerNode
    return min(filter(None, (largest, is_consumable and partition.mem_per_node_max)), default=0)


def _memory_demand(job: Job, request: ResourceRequest, partition: PartitionFacts, node: NodeFacts) -> int:
    """Return the MiB that a job needs on a kind of node; 0 if unknown."""
    is_consumable = job.profile.limits.memory_consumable is not False
    cpus, gpus = request.cpus_on_node, request.gpu_count
    has_whole_nodes = job.resources.is_exclusive or job.profile.limits.select_type == "linear"
    if has_whole_nodes and is_consumable:  # the job gets all CPUs and GPUs of a node
        cpus, gpus = max(cpus, node.cpus_per_node or 0), max(gpus, node.gpus_per_node or 0)
    if request.mem is not None:
        return request.mem or node.mem_per_node or 0  # --mem=0 is all memory of the node
    if request.mem_per_cpu:
        return request.mem_per_cpu * cpus
    for_gpus = (request.mem_per_gpu or 0) * gpus
    if not is_consumable:  # then the partition's defaults do not count
        return for_gpus
    for_cpus = (partition.mem_per_cpu_default or 0) * cpus
    if for_gpus:  # a node must also have the default memory of the CPUs
        return max(for_gpus, for_cpus)
    return (partition.mem_per_gpu_default or 0) * gpus or for_cpus or partition.mem_per_node_default or 0


@RULES.add("SB218", "warning", "a whole node with the default memory only")
def _exclusive_memory(job: Job) -> Iterator[Hit]:
    resources = job.resources
    has_default = any(partition.mem_per_cpu_default for partition in job.partitions.values())
    if job.profile.limits.memory_consumable is False:
        return
    is_plain_exclusive = resources.options.get("exclusive") == ""  # not --exclusive=user
    if is_plain_exclusive and not _memory_option(job) and (has_default or not job.knows_cluster):
        what = "--exclusive gives all CPUs and GPUs of the nodes, but only the default memory"
        yield Hit("exclusive", what, "add --mem=0 for all of it", None if has_default else "info")


@RULES.add("SB220", "warning", "more memory per CPU than the partition allows", source="sbatch(1)")
def _memory_per_cpu(job: Job) -> Iterator[Hit]:
    mem_per_cpu = job.resources.mem_per_cpu
    for name, partition in job.partitions.items():
        limit = partition.mem_per_cpu_max
        if mem_per_cpu and limit and mem_per_cpu > limit:
            cpus = (job.resources.cpus_per_task or 1) * -(-mem_per_cpu // limit)
            what = f"{Memory(mem_per_cpu)} per CPU is over the {limit} of partition '{name}': Slurm gives "
            what += f"{cpus} CPUs per task instead"
            yield Hit("mem-per-cpu", what, f"set --mem-per-cpu {limit} or less, or --cpus-per-task {cpus}")


@RULES.add_fit("SB237", "error", "GPUs, CPUs and memory that no node has together")
def _kind_of_node(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        request, shapes = job.resources.with_most_nodes(partition.nodes_max), partition.shapes
        demands = [*_node_demands(job, request, partition)]
        shapes_by_demand = [[shape for shape in shapes if meets(shape)] for meets, _ in demands]
        if not all(shapes_by_demand):
            continue  # no shape meets one of the demands: the rule about this demand reports the job
        fitting = [shape for shape in shapes if all(shape in meeting for meeting in shapes_by_demand)]
        is_even = request.ntasks is None and request.gpus is None  # else some nodes may get less
        nodes = job.resources.nodes if is_even else 1
        count = sum(shape.nodes or nodes for shape in fitting)
        if count < nodes:
            demanded = " and ".join(text for _, text in demands if text)
            why_not = f"only {count} nodes with {demanded}" if count else f"no node with {demanded}"
            what = f"partition '{name}' has {why_not}"
            if count > 0:
                what += f", but {nodes} nodes were asked for"
            offers = "; ".join(_hardware_text(shape) for shape in shapes)
            yield Hit("partition", what, f"ask for what one kind of node has: {offers}", why_not=why_not)


def _node_demands(
    job: Job, request: ResourceRequest, partition: PartitionFacts
) -> Iterator[tuple[MeetsDemand, str]]:
    """Yield each demand of a job on a node: the test of a kind of node, and the demand in words."""
    cpus, memory, features = request.cpus_on_node, request.mem_on_node or 0, job.option("constraint")
    nodes_with_gpus = partition.node_kinds(request.gpus_on_node)
    if job.profile.limits.select_type == "cons_tres":  # takes GPUs without a type from one type
        untyped = untyped_gpus(request)
        nodes_with_gpus = [node for node in nodes_with_gpus if untyped <= (most_of_a_type(node) or math.inf)]
    yield nodes_with_gpus.__contains__, counted(request.gpu_count, "GPU")
    yield (lambda node: cpus <= (node.cpus_per_node or cpus)), counted(cpus, "CPU")

    def has_memory(node: NodeFacts) -> bool:
        demand = _memory_demand(job, request, partition, node)
        return demand <= (_memory_limit(job, partition, node) or UNLIMITED)

    yield has_memory, f"{Memory(memory)} of memory" * bool(memory)
    if features:
        from sbatchgen.check.sbatch.lists import may_match  # only jobs that name features need the module

        yield (
            (lambda node: node.features is None or may_match(features, node.features)),
            f"features {features}",
        )
    other_gres = [(name, count) for name, _, count in request.gres if name not in GPU_RESOURCES]

    def has_other_gres(node: NodeFacts) -> bool:
        return all(_gres_count(node, name, count) >= count for name, count in other_gres)

    yield has_other_gres, " and ".join(f"{count} {name}" for name, count in other_gres)


def _gres_count(node: NodeFacts, name: str, unknown: int) -> int:
    """Return a node's count of a generic resource; `unknown` if the profile lacks the count."""
    return unknown if node.gres is None else node.gres.get(Text(name), 0)


@RULES.add_fit("SB239", "error", "local disk or other resources that no node has")
def _disk_within_node(job: Job) -> Iterator[Hit]:
    disk = mebibytes(job.option("tmp")) or 0
    for name, partition in job.partitions.items():
        if partition.tmp_per_node is not None and disk > partition.tmp_per_node:
            size = partition.tmp_per_node
            what = f"nodes of partition '{name}' have {size} of local disk (TmpDisk), but the job asks for "
            fix = f"set --tmp {size} or less" if size else "remove --tmp"
            yield Hit("tmp", what + str(Memory(disk)), fix, why_not=f"{size} of local disk")
        for resource, _, count in job.resources.gres:
            available = max(
                (_gres_count(node, resource, count) for node in partition.node_kinds()), default=count
            )
            # SB207 reports GPUs, and SB212 shards.
            is_judged_elsewhere = resource == "gpu" or (available and resource == "shard")
            if count > available and not is_judged_elsewhere:
                what = f"a node of partition '{name}' has {available or 'no'} {resource}, "
                what += f"but {count} were asked for"
                fix = f"ask for at most {available}" if available else f"leave out {resource}"
                yield Hit("gres", what, fix, why_not=f"{available} {resource} a node")


@RULES.add_fit("SB240", "error", "options that the cluster's SelectType does not know")
def _unknown_to_select_plugin(job: Job) -> Iterator[Hit]:
    plugin = job.profile.limits.select_type
    for option in _CONS_TRES_OPTIONS if plugin in ("cons_res", "linear") else ():
        if option in job.resources:
            what = f"--{option} needs select/cons_tres, and this cluster has select/{plugin}: "
            what += "Slurm refuses it"
            fix = "ask for GPUs by --gres=gpu:N" if option.startswith("gpus") else f"remove --{option}"
            yield Hit(option, what, fix)


_CONS_TRES_OPTIONS = "gpus gpus-per-socket gpus-per-task cpus-per-gpu mem-per-gpu ntasks-per-gpu".split()  # noqa: SIM905


def _hardware_text(shape: NodeShape) -> str:
    """Return the hardware of a kind of node, in words."""
    types = " and ".join(f"{count} {kind}" for kind, count in shape.gpu_types.items())
    facts = [f"{types or shape.gpus_per_node} GPUs"] if shape.gpus_per_node else []
    facts += [f"{shape.cpus_per_node} CPUs"] if shape.cpus_per_node else []
    facts += [str(memory)] if (memory := shape.mem_per_node or shape.mem_installed) else []
    return f"{counted(shape.nodes, 'node') if shape.nodes else 'nodes'} with {', '.join(facts)}"


def _memory_option(job: Job) -> str:
    """Return the option with which the job asks for memory; "" without such an option."""
    return next((name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in job.resources), "")
