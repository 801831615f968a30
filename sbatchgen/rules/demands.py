"""Tasks, GPUs, CPUs and memory of a job, and what its nodes have of them: SB131 to SB133, SB207 to SB236.

A fact that the profile does not give is not judged. Limits that hold whatever the profile says are those of
Slurm: sbatch(1), slurm.conf(5), gres.html.
"""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.errors import did_you_mean
from sbatchgen.inputs.profile import NodeShape, Partition
from sbatchgen.job.job import Job, PlannedJob
from sbatchgen.plan.resources import Amounts
from sbatchgen.quoting import counted
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.sbatch.gres import requested
from sbatchgen.sbatch.rivals import Rivals, rivals
from sbatchgen.units import Memory

RULES: Rules[Job] = Rules()

GENEROUS = 1.5  # times the GPUs' share of a node


@RULES.add("SB131", "error", "options that exclude each other")
def exclusive_options(job: Job) -> Iterator[Hit]:
    """SB131."""
    resources = job.resources
    pairs = [*rivals(resources)]
    names = {name if job.slurm < "26.05" else name[:3] for name, _, _ in resources.gres}
    if "gpus-per-node" in resources and "gpu" in names:  # since 26.05 sbatch compares only the start
        pairs.append(
            Rivals("gpus-per-node", "gres", "26.05", "--gres counts and --gpus-per-node is ignored", "")
        )
    for first, second, since, before, _ in pairs:
        refused = job.slurm >= since
        what = f"--{first} and --{second} exclude each other: Slurm refuses the job"
        what += f" since {since}" if before or not refused else ""
        what += f"; in {job.slurm} {before}" if before and not refused else ""
        yield Hit(second, what, "keep one of them", "warning" if job.is_script and not refused else None)
    if "gpus-per-socket" in resources and "sockets-per-node" not in resources:
        what = "--gpus-per-socket needs --sockets-per-node: Slurm refuses the job"
        yield Hit("gpus-per-socket", what, "add --sockets-per-node=N, or use --gpus-per-node")
    for name, since in (("mem-per-gpu", ""), ("cpus-per-gpu", "23.02")):
        nothing = name == "mem-per-gpu" and resources.mem_per_gpu == 0
        if name in resources and not nothing and not resources.gpu_option and job.slurm >= since:
            what = f"--{name} needs GPUs, but the job asks for none: Slurm refuses it"
            yield Hit(name, what, f"remove --{name}")


@RULES.add("SB132", "warning", "more tasks than fit on the nodes")
def _tasks_fit_nodes(job: Job) -> Iterator[Hit]:
    resources = job.resources
    most = resources.nodes_max or resources.nodes_min
    tasks, each = resources.ntasks, resources.ntasks_per_node
    if tasks and each and most and tasks > most * each:
        what = f"{tasks} tasks do not fit on {most} nodes with {each} each"
        fix = f"remove --ntasks; --nodes and --ntasks-per-node give {most * each} tasks"
        yield Hit("ntasks", f"{what}; with --ntasks, --ntasks-per-node is only an upper bound", fix)


@RULES.add("SB133", "warning", "fewer tasks than nodes")
def _nodes_have_tasks(job: Job) -> Iterator[Hit]:
    tasks, nodes = job.resources.ntasks, job.resources.nodes_min
    if tasks and nodes and tasks < nodes:
        what = f"{counted(tasks, 'task')} on {nodes} nodes: Slurm gives the job {counted(tasks, 'node')}"
        yield Hit("nodes", what, "set --ntasks-per-node instead of --ntasks")


@RULES.add("SB207", "error", "more GPUs on a node than it has", about_fit=True)
def _gpus_within_node(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        resources, most = job.resources.spread(partition.nodes_max), partition.gpus_per_node
        if most is not None and resources.gpu_count > most:
            what, fix = f"partition '{name}' has no GPUs", "use a partition with GPUs, or ask for none"
            if most:
                nodes = -(-resources.nodes * resources.gpu_count // most)
                per_node = " (--gres counts per node)" * (resources.gpu_option == "gres")
                what = f"partition '{name}' has {counted(most, 'GPU')} a node, but the job asks for "
                what += f"{resources.gpu_count} a node{per_node}"
                fix = f"set --gpus-per-node {most} and --nodes {nodes}"
            why_not = f"{counted(most, 'GPU')} a node" if most else "no GPUs"
            yield Hit(resources.gpu_option, what, fix, why_not=why_not)
            continue
        counts = {str(kind): count for kind, count in partition.gpu_types.items()}
        for kind, asked in resources.gpus_on_node:
            if asked > counts.get(kind, asked):
                what = f"a node of partition '{name}' has {counts[kind]} GPUs of type '{kind}', but the job "
                what += f"asks for {asked}"
                why_not = f"{counts[kind]} GPUs of type {kind} a node"
                fix = f"ask for at most {kind}:{counts[kind]}"
                yield Hit(resources.gpu_option, what, fix, why_not=why_not)


@RULES.add("SB208", "error", "a type of GPU that the partition does not have", about_fit=True)
def _gpu_type_known(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        here = _types(partition)
        if not partition.gpus_typed and job.resources.gpu_types:
            what = f"the GPUs of partition '{name}' have no type, so none matches the one asked for"
            fix = "ask for GPUs without a type"
            yield Hit(job.resources.gpu_option, what, fix, why_not="GPUs without a type")
        for kind, option in job.resources.gpu_types.items() if here else ():
            if kind not in here:
                what = f"partition '{name}' has GPUs of type '{', '.join(here)}', not '{kind}'"
                why_not = f"GPUs of type {', '.join(here)}"
                yield Hit(option, what, f"ask for {' or '.join(here)}", why_not=why_not)


@RULES.add("SB209", "warning", "no type of GPU is asked for, where there are several")
def _gpu_type_given(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        here = _types(partition, job.resources.gpus_on_node)
        if len(here) > 1 and any(not kind for kind, _ in job.resources.gpus_on_node):
            what = f"partition '{name}' has GPUs of types {', '.join(here)}: the job gets whichever is free"
            most = max(1, job.resources.gpu_count)
            enough = [kind for kind in here if partition.kinds([(kind, most)])]
            fix = f"name one, as {enough[0]}:{most}" if enough else "name one"
            yield Hit(job.resources.gpu_option, what, fix)
        elif partition.gpu_type_required and any(not kind for kind, _ in job.resources.gpus_on_node):
            what = f"a request for GPUs of partition '{name}' must name their type"
            fix = f"ask for {partition.only_type()}:{max(1, job.resources.gpu_count)}"
            yield Hit(job.resources.gpu_option, what, fix, "error")


@RULES.add("SB210", "error", "a generic resource that the cluster does not have", about_fit=True)
def _gres_known(job: Job) -> Iterator[Hit]:
    known = job.profile.gres_types
    asked = [("gres", name) for name, _, _ in job.resources.gres]
    items = ",".join(item for item in job.option("tres-per-task").split(",") if item.startswith("gres"))
    asked += [("tres-per-task", name) for name, _, _ in requested(items, slurm=job.slurm)]
    for option, name in asked if known else ():
        if name not in known:
            what = f"cluster '{job.profile.name}' has no generic resource '{name}'"
            yield Hit(option, what, did_you_mean(name, known))


@RULES.add("SB211", "error", "shards together with whole GPUs")
def shards_or_gpus(job: Job) -> Iterator[Hit]:
    """SB211."""
    resources = job.resources
    shared = next((name for name, _, count in resources.gres if name in ("shard", "mps") and count), "")
    if shared and (resources.gpu_count or (resources.gpu_option and resources.gpu_option != "gres")):
        noun = "shards of a GPU" if shared == "shard" else "a part of a GPU by MPS"
        what = f"a job can have {noun} or whole GPUs, not both: Slurm refuses it"
        yield Hit("gres", what, f"keep --gres={shared}:N or the GPUs")


@RULES.add("SB212", "error", "more shards than one GPU has", about_fit=True)
def _shards_within_gpu(job: Job) -> Iterator[Hit]:
    for partition in job.partitions.values():
        most = partition.shards_per_gpu
        if most and job.resources.shards > most and not job.profile.limits.several_gpus_per_sharing_job:
            what = f"{job.resources.shards} shards must lie on one GPU, which has {most}: "
            what += "Slurm refuses the job" if job.slurm >= "23.11" else "the job would wait for ever"
            fix = f"ask for at most {most}, or for whole GPUs"
            yield Hit("gres", what, fix, why_not=f"{most} shards a GPU")


@RULES.add("SB213", "warning", "several processes that share one GPU")
def _shards_for_one(job: Job) -> Iterator[Hit]:
    resources = job.resources
    processes = resources.processes_per_node or resources.tasks_per_node
    replicas = isinstance(job, PlannedJob) and job.plan.mode.name == "dataparallel"
    if resources.shards and (processes > 1 or replicas):
        what = "all shards of a job are on one GPU, but each process or replica needs its own (NCCL: "
        what += "duplicate GPU)"
        fix = "use one process per node, or whole GPUs"
        # The tasks of a script may be meant as its CPUs.
        yield Hit("gres", what, fix, None if job.is_script else "error", pedantic=job.is_script)


@RULES.add("SB214", "info", "shards do not limit GPU memory")
def _shards_share_memory(job: Job) -> Iterator[Hit]:
    if job.resources.shards:
        what = "shards do not limit GPU memory: another job can use it up"
        yield Hit("gres", what, "limit it in the trainer: torch.cuda.set_per_process_memory_fraction")


@RULES.add("SB215", "error", "more CPUs on a node than it has", about_fit=True)
def _cpus_within_node(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        resources = job.resources.spread(partition.nodes_max)
        if partition.cpus_per_node is not None and resources.cpus_on_node > partition.cpus_per_node:
            what = f"partition '{name}' has {partition.cpus_per_node} CPUs a node, but the job asks for "
            what += f"{resources.cpus_on_node}"
            if resources.tasks_per_node > 1 and resources.cpus_per_task:
                what += f": {resources.tasks_per_node} tasks with {resources.cpus_per_task} each"
            options = ("cpus-per-task", "cpus-per-gpu", "ntasks-per-node", "ntasks")
            option = next((option for option in options if option in resources), "")
            why_not = f"{partition.cpus_per_node} CPUs a node"
            yield Hit(option, what, f"ask for at most {why_not}", why_not=why_not)


@RULES.add("SB216", "error", "more memory on a node than it has", about_fit=True)
def _memory_within_node(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        resources = job.resources.spread(partition.nodes_max)
        cpus, gpus = resources.cpus_on_node, resources.gpu_count
        if resources.options.get("exclusive") in ("", "exclusive"):  # all that a node has is the job's
            cpus, gpus = max(cpus, partition.cpus_per_node or 0), max(gpus, partition.gpus_per_node or 0)
        asked = resources.mem or (resources.mem_per_cpu or 0) * cpus or (resources.mem_per_gpu or 0) * gpus
        if partition.mem_per_node and asked > partition.mem_per_node:
            what = f"a node of partition '{name}' has {partition.mem_per_node} of memory, but the job asks "
            what += f"for {Memory(asked)}"
            if resources.mem_per_cpu:
                what += f": {cpus} CPUs with {Memory(resources.mem_per_cpu)} each"
            elif resources.mem_per_gpu:
                what += f": {gpus} GPUs with {Memory(resources.mem_per_gpu)} each"
            why_not = f"{partition.mem_per_node} of memory a node"
            fix = f"set --mem {partition.mem_per_node} or less"
            yield Hit(_memory_option(job), what, fix, why_not=why_not)


@RULES.add("SB217", "info", "no memory is asked for, and the default is small")
def _memory_given(job: Job) -> Iterator[Hit]:
    resources = job.resources
    for name, partition in job.partitions.items():
        each = partition.mem_per_cpu_default if job.profile.limits.memory_consumable is not False else None
        if each and not _memory_option(job) and "exclusive" not in resources:
            total = Memory(each * resources.cpus_on_node)
            what = f"no --mem: partition '{name}' gives {each} per CPU, {total} on each node; "
            what += "a process that needs more is killed"
            yield Hit("mem", what, "add --mem=N with what the job needs")


@RULES.add("SB218", "warning", "a whole node with the default memory only")
def _exclusive_memory(job: Job) -> Iterator[Hit]:
    resources = job.resources
    given = any(partition.mem_per_cpu_default for partition in job.partitions.values())
    if job.profile.limits.memory_consumable is False:
        return
    if resources.options.get("exclusive") == "" and not _memory_option(job) and (given or not job.known):
        what = "--exclusive gives all CPUs and GPUs of the nodes, but only the default memory"
        yield Hit("exclusive", what, "add --mem=0 for all of it", None if given else "info")


@RULES.add("SB219", "warning", "all memory of a node, but not all its GPUs")
def _memory_of_others(job: Job) -> Iterator[Hit]:
    resources = job.resources
    shared = job.profile.limits.memory_consumable is not False
    if resources.mem != 0 or "exclusive" in resources or not shared:
        return
    for name, partition in job.partitions.items():
        most = partition.gpus_per_node
        if not partition.exclusive and most and 0 < resources.gpu_count < most and not partition.shapes:
            memory = (partition.mem_per_node or 0) * resources.gpu_count // most
            share = f", about {Memory(memory)}" if memory else ""
            what = f"--mem=0 takes all memory of a node of partition '{name}', with {resources.gpu_count} of "
            what += f"its {most} GPUs: "
            yield Hit("mem", f"{what}no other job fits on the node", f"ask for what the job needs{share}")


@RULES.add("SB220", "warning", "more memory per CPU than the partition allows")
def _memory_per_cpu(job: Job) -> Iterator[Hit]:
    asked = job.resources.mem_per_cpu
    for name, partition in job.partitions.items():
        most = partition.mem_per_cpu_max
        if asked and most and asked > most:
            cpus = (job.resources.cpus_per_task or 1) * -(-asked // most)
            what = f"{Memory(asked)} per CPU is over the {most} of partition '{name}': Slurm gives {cpus} "
            what += "CPUs per task instead"
            yield Hit("mem-per-cpu", what, f"set --mem-per-cpu {most} or less, or --cpus-per-task {cpus}")


@RULES.add("SB221", "warning", "CPUs or memory that leave the other GPUs of the node unusable")
def _fair_share(job: Job) -> Iterator[Hit]:
    resources = job.resources
    for name, partition in job.partitions.items():
        gpus = partition.gpus_per_node
        if not gpus or not 0 < resources.gpu_count < gpus or "exclusive" in resources or partition.exclusive:
            continue
        if len(partition.shapes) > 1:  # which nodes the job gets is not known
            continue
        left, share = gpus - resources.gpu_count, resources.gpu_count / gpus
        for option, asked, most, unit in (
            ("cpus-per-task", resources.cpus_on_node, partition.cpus_per_node, "CPUs"),
            (_memory_option(job), resources.mem_on_node or 0, partition.mem_per_node, "memory"),
        ):
            generous = option in resources and most and most >= asked > GENEROUS * share * most
            if generous and most and (most - asked) / left < most / gpus / 2:
                of = f"{asked} of {most} CPUs" if unit == "CPUs" else f"{Memory(asked)} of {most}"
                what = f"{of} for {resources.gpu_count} of {gpus} GPUs of a node in partition '{name}': too "
                what += f"little is left for jobs on the other {counted(left, 'GPU')}"
                fair = f"{int(share * most)} CPUs" if unit == "CPUs" else str(Memory(int(share * most)))
                yield Hit(option, what, f"ask for a fair share: {fair}")


@RULES.add("SB228", "warning", "GPU nodes for a job without GPUs")
def _gpus_used(job: Job) -> Iterator[Hit]:
    resources = job.resources
    free = [name for name, partition in job.profile.partitions.items() if partition.gpus_per_node == 0]
    unasked = any(settings.gpu_request == "none" for settings in job.settings)
    wanted = resources.gpu_option or resources.gres or unasked
    for name, partition in job.partitions.items() if free and not wanted else ():
        if all(node.gpus_per_node for node in partition.kinds()):
            gpus = counted(partition.gpus_per_node or 0, "GPU")
            what = f"the nodes of partition '{name}' have {gpus}, but the job asks for none"
            yield Hit("partition", what, f"use --partition={free[0]}")


@RULES.add("SB235", "warning", "CPUs per task that are not whole cores")
def _whole_cores(job: Job) -> Iterator[Hit]:
    cpus = job.resources.cpus_per_task
    threads = max((partition.threads_per_core or 1 for partition in job.partitions.values()), default=1)
    if cpus and threads > 1 and cpus % threads:
        what = f"cores have {threads} threads here, and Slurm gives whole cores: {cpus} CPUs become "
        what += f"{-(-cpus // threads) * threads}"
        yield Hit("cpus-per-task", what, f"ask for a multiple of {threads}")


@RULES.add("SB236", "error", "shards on exclusive nodes")
def _shards_shared(job: Job) -> Iterator[Hit]:
    if job.resources.shards and "exclusive" in job.resources:
        what = "a job with --exclusive and shards waits for ever, even on an idle cluster"
        yield Hit("exclusive", what, "remove --exclusive")


@RULES.add("SB237", "error", "GPUs, CPUs and memory that no node has together", about_fit=True)
def _kind_of_node(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        asked = job.resources.spread(partition.nodes_max)
        cpus, memory, shapes = asked.cpus_on_node, asked.mem_on_node or 0, partition.shapes
        enough_cpus = [shape for shape in shapes if cpus <= (shape.cpus_per_node or cpus)]
        enough_memory = [shape for shape in shapes if memory <= (shape.mem_per_node or memory)]
        enough_gpus = [shape for shape in shapes if shape in partition.kinds(asked.gpus_on_node)]
        if not (enough_cpus and enough_memory and enough_gpus):
            continue  # other rules tell it
        fitting = [shape for shape in enough_gpus if shape in enough_cpus and shape in enough_memory]
        alike = asked.ntasks is None and asked.gpus is None  # else the others may get less than the busiest
        nodes = job.resources.nodes if alike else 1
        most = sum(shape.nodes or nodes for shape in fitting)
        what = f"{counted(asked.gpu_count, 'GPU')} and {counted(cpus, 'CPU')}"
        what += f" and {Memory(memory)} of memory" * bool(memory)
        if most < nodes:
            has = f"only {most} nodes" if most else "no node"
            why_not = f"{has} with {what}"
            if most > 0:
                what += f", but {nodes} nodes were asked for"
            kinds = "; ".join(_described(shape) for shape in shapes)
            what = f"partition '{name}' has {has} with {what}"
            yield Hit("partition", what, f"ask for what one kind of node has: {kinds}", why_not=why_not)


def _described(shape: NodeShape) -> str:
    """What a kind of node has, in words."""
    types = " and ".join(f"{count} {kind}" for kind, count in shape.gpu_types.items())
    facts = [f"{types or shape.gpus_per_node} GPUs"] if shape.gpus_per_node else []
    facts += [f"{shape.cpus_per_node} CPUs"] if shape.cpus_per_node else []
    facts += [str(shape.mem_per_node)] if shape.mem_per_node else []
    return f"{counted(shape.nodes, 'node') if shape.nodes else 'nodes'} with {', '.join(facts)}"


def _types(partition: Partition, gpus: Amounts = ()) -> tuple[str, ...]:
    """The types of GPUs on nodes that have so many."""
    named = (partition.gpu_type,) if partition.gpu_type else ()
    here = [kind for node in partition.kinds(gpus) for kind in node.gpu_types]
    return tuple(dict.fromkeys((*named, *here)))


def _memory_option(job: Job) -> str:
    """The option that asks for memory, or ""."""
    return next((name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in job.resources), "")
