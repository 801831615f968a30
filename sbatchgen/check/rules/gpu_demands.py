"""Rules that compare a job's GPUs and shards with its nodes.

No rule judges a fact that the profile lacks. Sources: sbatch(1), gres.conf(5), gres.html.
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


@RULES.add_fit("SB207", "error", "more GPUs on a node than it has", source="gres.conf(5)")
def _gpus_within_node(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        resources, limit = job.resources.with_most_nodes(partition.nodes_max), partition.gpus_per_node
        if limit is not None and resources.gpu_count > limit:
            what, fix = f"partition '{name}' has no GPUs", "use a partition with GPUs, or ask for none"
            if limit:
                nodes = -(-resources.nodes * resources.gpu_count // limit)
                per_node = " (--gres counts per node)" * (resources.gpu_option == "gres")
                what = f"partition '{name}' has {counted(limit, 'GPU')} a node, but the job asks for "
                what += f"{resources.gpu_count} a node{per_node}"
                if resources.gpus and job.profile.limits.enforce_part_limits == "no":
                    what += ": it waits for ever, if Slurm does not refuse it"
                fix = f"set --gpus-per-node {limit} and --nodes {nodes}"
                if job.takes_one_gpu:  # as SB013 demands
                    fix = "ask for 1"
            why_not = f"{counted(limit, 'GPU')} a node" if limit else "no GPUs"
            yield Hit(resources.gpu_option, what, fix, why_not=why_not)
            continue
        largest_group = max((most_of_a_type(node) for node in partition.node_kinds()), default=0)
        untyped = untyped_gpus(resources)
        if job.profile.limits.select_type == "cons_tres" and largest_group and untyped > largest_group:
            what = f"a node of partition '{name}' has at most {largest_group} GPUs of one type, and "
            what += f"a job that names no type gets no more: Slurm refuses {untyped}"
            fix = f"set --gpus-per-node {largest_group}, or name types: --gres=gpu:TYPE:N,gpu:TYPE:N"
            yield Hit(resources.gpu_option, what, fix, why_not=f"{largest_group} GPUs of one type a node")
            continue
        counts = {str(kind): count for kind, count in partition.gpu_types.items()}
        for kind, requested in resources.gpus_on_node:
            if requested > counts.get(kind, requested):
                what = f"a node of partition '{name}' has {counts[kind]} GPUs of type '{kind}', but the job "
                what += f"asks for {requested}"
                why_not = f"{counts[kind]} GPUs of type {kind} a node"
                fix = f"ask for at most {kind}:{counts[kind]}"
                yield Hit(resources.gpu_option, what, fix, why_not=why_not)


@RULES.add("SB242", "error", "GPUs that Slurm may split unevenly", source="sbatch(1)")
def _even_gpus(job: Job) -> Iterator[Hit]:
    resources, nodes = job.resources, job.resources.nodes
    partitions = [*job.partitions.values()] or [NO_PARTITION]
    gpus = resources.gpus or ()
    if job.profile.limits.select_type in ("cons_res", "linear"):
        return  # SB240 reports --gpus
    if not any(
        resources.splits_gpus(facts.gpus_of_node_kinds(gpus), whole_nodes=facts.exclusive)
        for facts in partitions
    ):
        return
    total = resources.gpus_in_all
    largest_node = max(
        (count for facts in partitions for count in facts.gpus_of_node_kinds(gpus)), default=total
    )
    shares = split_among_nodes(total, nodes, largest_node)
    example = " and ".join(map(str, shares[:2])) + ", ..." * (nodes > len(shares[:2]))
    what = f"--gpus={job.option('gpus')} is for all nodes together: Slurm may give "
    what += f"the {nodes} nodes {example}"
    prefix = f"{gpus[0][0]}:" if len(gpus) == 1 and gpus[0][0] else ""  # the type, such as a100:
    fix = f"--gpus-per-node={prefix}{max(total // nodes, 1)} instead of --gpus"
    if total % nodes:
        what += f", and {total} can't be split evenly"
        fix = f"--gpus-per-node={prefix}N instead of --gpus, with as many on each node"
    if not job.is_script:
        yield Hit("gpus", what, "--nodes 1, or " * (total <= largest_node) + fix)
    elif (processes := _processes_on_node(job)) is not None:
        are_too_few = processes * nodes > total
        what += f"; {counted(processes, 'process')} on each node want as many" if processes > 1 else ""
        yield Hit("gpus", what, fix, None if are_too_few else "warning")


def _processes_on_node(job: Job) -> int | None:
    """Return how many processes a script starts on each node; 1 if the number is unknown.

    The result is None for a script with only --ntasks: Slurm then starts more tasks on a node with more GPUs,
    so each task may still have a GPU.
    """
    launches = getattr(job, "trainings", ())
    if workers := [int(launch.workers) for launch in launches if launch.launcher and launch.workers]:
        return max(workers)
    has_launcher = any(launch.launcher for launch in launches)
    return None if job.resources.ntasks and not (job.resources.ntasks_per_node or has_launcher) else 1


def untyped_gpus(resources: ResourceRequest) -> int:
    """Return how many untyped GPUs a node must supply from one type; 0 for --gpus, which may mix types."""
    per_node = resources.gpu_option in ("gres", "gpus-per-node")
    return sum(count for kind, count in resources.gpus_on_node if not kind) if per_node else 0


def most_of_a_type(node: NodeFacts) -> int:
    """Return the largest number of GPUs of one type on a node."""
    return max(node.gpu_types.values(), default=node.gpus_per_node or 0)


@RULES.add("SB241", "warning", "several slices of a GPU", source=_MIG_PAGE)
def _several_slices(job: Job) -> Iterator[Hit]:
    slices = [(kind, count) for kind, count in job.resources.gpus_on_node if is_slice(kind) and count > 1]
    for kind, count in slices:
        what = f"{count} GPUs of type '{kind}' are slices (MIG): a process sees one, and NCCL uses no others"
        model = re.sub(r"_?\d+g\.\d+gb.*", "", kind)  # nvidia_a100 of nvidia_a100_3g.39gb
        yield Hit(job.resources.gpu_option, what, f"ask for 1, or for whole GPUs: {f'{model}:1'.lstrip(':')}")


@RULES.add_fit("SB208", "error", "a type of GPU that the partition does not have", source="gres.conf(5)")
def _gpu_type_known(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        types = _gpu_types(partition)
        if not partition.gpus_typed and job.resources.gpu_types:
            what = f"the GPUs of partition '{name}' have no type, so none matches the one asked for"
            fix = "ask for GPUs without a type"
            yield Hit(job.resources.gpu_option, what, fix, why_not="GPUs without a type")
        for kind, option in job.resources.gpu_types.items() if types else ():
            if kind not in types and not _is_type_ignored(option, job):
                what = f"partition '{name}' has GPUs of type '{', '.join(types)}', not '{kind}'"
                why_not = f"GPUs of type {', '.join(types)}"
                yield Hit(option, what, f"ask for {' or '.join(types)}", why_not=why_not)


def _is_type_ignored(option: str, job: Job) -> bool:
    """Return whether Slurm ignores the type in an option: since 23.02, in --gpus-per-task=TYPE."""
    value = job.resources.options.get(option, "")
    return option == "gpus-per-task" and job.slurm >= "23.02" and not has_count(value)


@RULES.add("SB209", "warning", "no type of GPU is asked for, where there are several", source=_GPU_TYPES_PAGE)
def _gpu_type_given(job: Job) -> Iterator[Hit]:
    has_untyped = any(not kind for kind, _ in job.resources.gpus_on_node)
    for name, partition in job.partitions.items() if has_untyped else ():
        types = _gpu_types(partition, job.resources.gpus_on_node)
        if len(types) > 1:
            what = f"partition '{name}' has GPUs of types {', '.join(types)}: "
            is_required = partition.gpu_type_required
            what += "a request must name one" if is_required else "the job gets whichever is free"
            count = max(1, job.resources.gpu_count)
            fitting = [kind for kind in types if partition.node_kinds([(kind, count)])]
            fix = f"name one, as {fitting[0]}:{count}" if fitting else "name one"
            yield Hit(job.resources.gpu_option, what, fix, "error" if is_required else None)
        elif partition.gpu_type_required:
            what = f"a request for GPUs of partition '{name}' must name their type"
            fix = f"ask for {partition.default_gpu_type()}:{max(1, job.resources.gpu_count)}"
            yield Hit(job.resources.gpu_option, what, fix, "error")


@RULES.add_fit("SB210", "error", "a generic resource that the cluster does not have", source="gres.conf(5)")
def _gres_known(job: Job) -> Iterator[Hit]:
    known = job.profile.gres_types
    requests = [("gres", name) for name, _, _ in job.resources.gres]  # option, resource
    items = ",".join(item for item in job.option("tres-per-task").split(",") if item.startswith("gres"))
    requests += [("tres-per-task", name) for name, _, _ in gres_amounts(items, slurm=job.slurm)]
    if known is None:
        return
    for option, name in requests:
        if name not in known:
            what = f"cluster '{job.profile.name}' has no generic resource '{name}'"
            yield Hit(option, what, did_you_mean(name, known))
    gpu_option = job.resources.gpu_option
    if "gpu" not in known and gpu_option not in ("", "gres"):
        what = f"Slurm knows no GPUs on cluster '{job.profile.name}': it refuses --{gpu_option}"
        yield Hit(gpu_option, what, "use --gpu-request none: a node's GPUs come with the node")


@RULES.add_fit("SB212", "error", "more shards than one GPU has", source="https://slurm.schedmd.com/gres.html")
def _shards_within_gpu(job: Job) -> Iterator[Hit]:
    for partition in job.partitions.values():
        limit = partition.shards_per_gpu
        if limit and job.resources.shards > limit and not job.profile.limits.several_gpus_per_sharing_job:
            what = f"{job.resources.shards} shards must lie on one GPU, which has {limit}: "
            what += "Slurm refuses the job" if job.slurm >= "23.11" else "the job would wait for ever"
            fix = f"ask for at most {limit}, or for whole GPUs"
            yield Hit("gres", what, fix, why_not=f"{limit} shards a GPU")


@RULES.add(
    "SB213", "warning", "several processes that share one GPU", source="https://slurm.schedmd.com/gres.html"
)
def _one_process_per_gpu(job: Job) -> Iterator[Hit]:
    resources = job.resources
    processes = resources.processes_per_node or resources.tasks_per_node
    if resources.shards and (processes > 1 or job.has_replicas):
        what = "all shards of a job are on one GPU, but each process or replica needs its own (NCCL: "
        what += "duplicate GPU)"
        fix = "use one process per node, or whole GPUs"
        # The author of a script may mean CPUs by --ntasks.
        yield Hit("gres", what, fix, None if job.is_script else "error", pedantic=job.is_script)


@RULES.add("SB214", "info", "shards do not limit GPU memory", source="https://slurm.schedmd.com/gres.html")
def _shards_share_memory(job: Job) -> Iterator[Hit]:
    if job.resources.shards:
        what = "shards do not limit GPU memory: another job can use it up"
        yield Hit("gres", what, "limit it in the trainer: torch.cuda.set_per_process_memory_fraction")


def _gpu_types(partition: PartitionFacts, gpus: Amounts = ()) -> tuple[str, ...]:
    """Return the types of GPUs on the nodes of a partition that have at least these GPUs."""
    named = (partition.gpu_type,) if partition.gpu_type else ()
    node_types = [kind for node in partition.node_kinds(gpus) for kind in node.gpu_types]
    return tuple(dict.fromkeys((*named, *node_types)))
