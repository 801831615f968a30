"""Rules that compare a job's GPUs with its nodes, and its shards of GPUs.

A rule that needs a fact which the profile lacks reports nothing. Sources: sbatch(1), gres.conf(5),
https://slurm.schedmd.com/gres.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.errors import did_you_mean
from sbatchgen.base.quoting import counted
from sbatchgen.check.cluster_facts import NodeFacts, PartitionFacts
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.sbatch.gres import gres_amounts, has_count, is_slice
from sbatchgen.check.script.job import NO_PARTITION, Job
from sbatchgen.check.script.resource_request import Amounts, ResourceRequest, split_among_nodes

RULES: Rules[Job] = Rules()

_MIG_PAGE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"
_GPU_TYPES_PAGE = "https://hpc.ncsu.edu/RunningJobs/Lifecycle.php"
_GRES_PAGE = "https://slurm.schedmd.com/gres.html"


@RULES.add_fit("SB207", "error", "more GPUs on a node than it has", source="gres.conf(5)")
def _too_many_gpus(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        request, limit = job.resources.with_most_nodes(partition.nodes_max), partition.gpus_per_node
        if limit is not None and request.gpu_count > limit:
            yield _too_many_gpus_of_any_type(job, request, name, limit)
            continue
        largest_group = max((most_of_a_type(kind) for kind in partition.node_kinds()), default=0)
        untyped_count = untyped_gpus(request)
        if job.profile.limits.select_type == "cons_tres" and largest_group and untyped_count > largest_group:
            what = f"a node of partition '{name}' has at most {largest_group} GPUs of one type, and "
            what += f"a job that names no type gets no more: Slurm refuses {untyped_count}"
            fix = f"set --gpus-per-node {largest_group}, or name types: --gres=gpu:TYPE:N,gpu:TYPE:N"
            yield Hit(request.gpu_option, what, fix, why_not=f"{largest_group} GPUs of one type a node")
            continue
        available = {str(gpu_type): count for gpu_type, count in partition.gpu_types.items()}
        for gpu_type, count in request.gpus_on_node:
            if count > available.get(gpu_type, count):
                what = f"a node of partition '{name}' has {available[gpu_type]} GPUs of type '{gpu_type}', "
                what += f"but the job asks for {count}"
                why_not = f"{available[gpu_type]} GPUs of type {gpu_type} a node"
                fix = f"ask for at most {gpu_type}:{available[gpu_type]}"
                yield Hit(request.gpu_option, what, fix, why_not=why_not)


def _too_many_gpus_of_any_type(job: Job, request: ResourceRequest, partition: str, limit: int) -> Hit:
    """Return the hit for a job with more GPUs on a node than the partition's nodes have.

    `limit` is the number of GPUs of these nodes, 0 for a partition without GPUs.
    """
    if not limit:
        what, fix = f"partition '{partition}' has no GPUs", "use a partition with GPUs, or ask for none"
        return Hit(request.gpu_option, what, fix, why_not="no GPUs")
    why_not = f"{counted(limit, 'GPU')} a node"
    what = f"partition '{partition}' has {why_not}, but the job asks for {request.gpu_count} a node"
    what += " (--gres counts per node)" * (request.gpu_option == "gres")
    if request.gpus and job.profile.limits.enforce_part_limits == "no":
        what += ": it waits for ever, if Slurm does not refuse it"
    nodes_needed = -(-request.nodes * request.gpu_count // limit)
    fix = f"set --gpus-per-node {limit} and --nodes {nodes_needed}"
    if job.takes_one_gpu:  # SB013 refuses more
        fix = "ask for 1"
    return Hit(request.gpu_option, what, fix, why_not=why_not)


@RULES.add("SB242", "error", "GPUs that Slurm may split unevenly", source="sbatch(1)")
def _uneven_gpus(job: Job) -> Iterator[Hit]:
    resources, nodes = job.resources, job.resources.nodes
    partitions = [*job.partitions.values()] or [NO_PARTITION]
    gpus = resources.gpus or ()
    if job.profile.limits.select_type in ("cons_res", "linear"):
        return  # SB240 reports --gpus
    if not any(
        resources.splits_gpus(partition.gpus_of_node_kinds(gpus), whole_nodes=partition.exclusive)
        for partition in partitions
    ):
        return
    total = resources.gpus_in_all
    gpu_counts = [count for partition in partitions for count in partition.gpus_of_node_kinds(gpus)]
    most_on_node = max(gpu_counts, default=total)
    shares = split_among_nodes(total, nodes, most_on_node)
    example = " and ".join(map(str, shares[:2])) + ", ..." * (nodes > len(shares[:2]))
    what = f"--gpus={job.option('gpus')} is for all nodes together: Slurm may give "
    what += f"the {nodes} nodes {example}"
    types = [gpu_type for gpu_type, _ in gpus]  # "" for GPUs of any type
    prefix = f"{types[0]}:" if len(types) == 1 and types[0] else ""  # such as a100:
    fix = f"--gpus-per-node={prefix}{max(total // nodes, 1)} instead of --gpus"
    if total % nodes:
        what += f", and {total} can't be split evenly"
        fix = f"--gpus-per-node={prefix}N instead of --gpus, with as many on each node"
    if not job.is_script:
        yield Hit("gpus", what, "--nodes 1, or " * (total <= most_on_node) + fix)
    elif (processes := _processes_on_node(job)) is not None:
        are_gpus_too_few = processes * nodes > total
        what += f"; {counted(processes, 'process')} on each node want as many" if processes > 1 else ""
        yield Hit("gpus", what, fix, None if are_gpus_too_few else "warning")


def _processes_on_node(job: Job) -> int | None:
    """Return how many processes a script starts on each node; 1 if the number is unknown.

    The result is None for a script with only --ntasks: Slurm then starts more tasks on a node with more GPUs,
    so each task may still have a GPU.
    """
    launches = getattr(job, "trainings", ())
    if workers := [int(launch.workers) for launch in launches if launch.launcher and launch.workers]:
        return max(workers)
    has_launcher = any(launch.launcher for launch in launches)
    has_only_ntasks = job.resources.ntasks and not job.resources.ntasks_per_node
    return None if has_only_ntasks and not has_launcher else 1


def untyped_gpus(resources: ResourceRequest) -> int:
    """Return how many GPUs without a type a node must have of one type.

    The result is 0 for other options than --gres and --gpus-per-node, as Slurm may then mix types.
    """
    takes_one_type = resources.gpu_option in ("gres", "gpus-per-node")
    return sum(count for gpu_type, count in resources.gpus_on_node if not gpu_type) if takes_one_type else 0


def most_of_a_type(kind: NodeFacts) -> int:
    """Return the largest number of GPUs of one type on a kind of node; 0 if the number is unknown."""
    return max(kind.gpu_types.values(), default=kind.gpus_per_node or 0)


@RULES.add("SB241", "warning", "several slices of a GPU", source=_MIG_PAGE)
def _several_slices(job: Job) -> Iterator[Hit]:
    for gpu_type, count in job.resources.gpus_on_node:
        if is_slice(gpu_type) and count > 1:
            what = f"{count} GPUs of type '{gpu_type}' are slices (MIG): "
            what += "a process sees one, and NCCL uses no others"
            model = re.sub(r"_?\d+g\.\d+gb.*", "", gpu_type)  # nvidia_a100_3g.39gb -> nvidia_a100
            fix = f"ask for 1, or for whole GPUs: {f'{model}:1' if model else '1'}"
            yield Hit(job.resources.gpu_option, what, fix)


@RULES.add_fit("SB208", "error", "a type of GPU that the partition does not have", source="gres.conf(5)")
def _unknown_gpu_type(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        types = _gpu_types(partition)
        if not partition.gpus_typed and job.resources.gpu_types:
            what = f"the GPUs of partition '{name}' have no type, so none matches the one asked for"
            fix = "ask for GPUs without a type"
            yield Hit(job.resources.gpu_option, what, fix, why_not="GPUs without a type")
        if not types:
            continue
        for gpu_type, option in job.resources.gpu_types.items():
            if gpu_type not in types and not _is_type_ignored(option, job):
                what = f"partition '{name}' has GPUs of type '{', '.join(types)}', not '{gpu_type}'"
                why_not = f"GPUs of type {', '.join(types)}"
                yield Hit(option, what, f"ask for {' or '.join(types)}", why_not=why_not)


def _is_type_ignored(option: str, job: Job) -> bool:
    """Return whether Slurm ignores the type in an option: since 23.02, in --gpus-per-task=TYPE without :N."""
    value = job.resources.options.get(option, "")
    return option == "gpus-per-task" and job.slurm >= "23.02" and not has_count(value)


@RULES.add("SB209", "warning", "no type of GPU is asked for, where there are several", source=_GPU_TYPES_PAGE)
def _missing_gpu_type(job: Job) -> Iterator[Hit]:
    has_untyped_gpus = any(not gpu_type for gpu_type, _ in job.resources.gpus_on_node)
    count = max(1, job.resources.gpu_count)
    if not has_untyped_gpus:
        return
    for name, partition in job.partitions.items():
        types = _gpu_types(partition, job.resources.gpus_on_node)
        if len(types) > 1:
            what = f"partition '{name}' has GPUs of types {', '.join(types)}: "
            is_required = partition.gpu_type_required
            what += "a request must name one" if is_required else "the job gets whichever is free"
            fitting = [gpu_type for gpu_type in types if partition.node_kinds([(gpu_type, count)])]
            fix = f"name one, as {fitting[0]}:{count}" if fitting else "name one"
            yield Hit(job.resources.gpu_option, what, fix, "error" if is_required else None)
        elif partition.gpu_type_required:
            what = f"a request for GPUs of partition '{name}' must name their type"
            yield Hit(
                job.resources.gpu_option, what, f"ask for {partition.default_gpu_type()}:{count}", "error"
            )


@RULES.add_fit("SB210", "error", "a generic resource that the cluster does not have", source="gres.conf(5)")
def _unknown_gres(job: Job) -> Iterator[Hit]:
    known = job.profile.gres_types
    if known is None:
        return
    names = [("gres", name) for name, _, _ in job.resources.gres]  # each with its option
    # The items of --tres-per-task such as gres/gpu:1.
    items = ",".join(item for item in job.option("tres-per-task").split(",") if item.startswith("gres"))
    names += [("tres-per-task", name) for name, _, _ in gres_amounts(items, slurm=job.slurm)]
    for option, name in names:
        if name not in known:
            what = f"cluster '{job.profile.name}' has no generic resource '{name}'"
            yield Hit(option, what, did_you_mean(name, known))
    gpu_option = job.resources.gpu_option
    if "gpu" not in known and gpu_option not in ("", "gres"):
        what = f"Slurm knows no GPUs on cluster '{job.profile.name}': it refuses --{gpu_option}"
        yield Hit(gpu_option, what, "use --gpu-request none: a node's GPUs come with the node")


@RULES.add_fit("SB212", "error", "more shards than one GPU has", source=_GRES_PAGE)
def _too_many_shards(job: Job) -> Iterator[Hit]:
    if job.profile.limits.several_gpus_per_sharing_job:
        return
    for partition in job.partitions.values():
        limit = partition.shards_per_gpu
        if limit and job.resources.shards > limit:
            what = f"{job.resources.shards} shards must lie on one GPU, which has {limit}: "
            what += "Slurm refuses the job" if job.slurm >= "23.11" else "the job would wait for ever"
            fix = f"ask for at most {limit}, or for whole GPUs"
            yield Hit("gres", what, fix, why_not=f"{limit} shards a GPU")


@RULES.add("SB213", "warning", "several processes that share one GPU", source=_GRES_PAGE)
def _processes_on_one_gpu(job: Job) -> Iterator[Hit]:
    resources = job.resources
    processes = resources.processes_per_node or resources.tasks_per_node
    if resources.shards and (processes > 1 or job.has_replicas):
        what = "all shards of a job are on one GPU, but each process or replica needs its own (NCCL: "
        what += "duplicate GPU)"
        fix = "use one process per node, or whole GPUs"
        # By --ntasks the author of a script may mean CPUs of one process.
        yield Hit("gres", what, fix, None if job.is_script else "error", pedantic=job.is_script)


@RULES.add("SB214", "info", "shards do not limit GPU memory", source=_GRES_PAGE)
def _unlimited_gpu_memory(job: Job) -> Iterator[Hit]:
    if job.resources.shards:
        what = "shards do not limit GPU memory: another job can use it up"
        yield Hit("gres", what, "limit it in the trainer: torch.cuda.set_per_process_memory_fraction")


def _gpu_types(partition: PartitionFacts, gpus: Amounts = ()) -> tuple[str, ...]:
    """Return the types of GPUs on the nodes of a partition that have at least these GPUs.

    The type for jobs that name none comes first.
    """
    default_types = (partition.gpu_type,) if partition.gpu_type else ()
    node_types = [gpu_type for kind in partition.node_kinds(gpus) for gpu_type in kind.gpu_types]
    return tuple(dict.fromkeys((*default_types, *node_types)))
