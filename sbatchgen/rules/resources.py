"""Tasks, GPUs, CPUs and memory of a job, and what its nodes have of them: SB131 to SB133, SB207 to SB236.

A fact that the profile does not give is not judged. Limits that hold whatever the profile says are those of
Slurm: sbatch(1), slurm.conf(5), gres.html.
"""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.errors import did_you_mean
from sbatchgen.inputs.profile import Partition
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.subject.ask import Ask
from sbatchgen.units import Memory

RULES: Rules[Ask] = Rules()

GENEROUS = 1.5  # times the GPUs' share of a node

# Options which exclude each other: since which release sbatch refuses them, and what older ones do.
EXCLUSIVE = (
    ("mem", "mem-per-cpu", "20.11", ""),
    ("mem", "mem-per-gpu", "20.11", ""),
    ("mem-per-cpu", "mem-per-gpu", "20.11", ""),
    ("cpus-per-gpu", "cpus-per-task", "21.08", ""),
    ("exclusive", "oversubscribe", "23.02", "the last one counts"),
    ("ntasks-per-gpu", "gpus-per-task", "20.11", ""),
    ("ntasks-per-gpu", "tres-per-task", "23.02", ""),
    ("ntasks-per-gpu", "gpus-per-socket", "20.11", ""),
    ("ntasks-per-gpu", "ntasks-per-node", "20.11", ""),
    ("core-spec", "thread-spec", "21.08", "the last one counts"),
    ("bb", "bbf", "20.11", ""),
)


@RULES.add("SB131", "error", "two options exclude each other")
def _exclusive_options(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    pairs = [pair for pair in EXCLUSIVE if pair[0] in job and pair[1] in job]
    if "gpus-per-node" in job and any(_is_gpu(name, ask.slurm) for name, _, _ in job.gres):
        pairs.append(("gpus-per-node", "gres", "26.05", "--gres counts and --gpus-per-node is ignored"))
    for one, other, since, before in pairs:
        refused = ask.slurm >= since
        what = f"--{one} and --{other} exclude each other: "
        what += (
            f"Slurm refuses the job{' since ' + since if before else ''}"
            if refused
            else f"in Slurm {ask.slurm} {before}"
        )
        what += "" if refused else f", {since} refuses the job"
        yield Hit(other, what, "keep one of them", "warning" if ask.script and not refused else None)
    if "gpus-per-socket" in job and "sockets-per-node" not in job:
        what = "--gpus-per-socket needs --sockets-per-node: Slurm refuses the job"
        yield Hit("gpus-per-socket", what, "add --sockets-per-node=N, or use --gpus-per-node")
    for name in ("mem-per-gpu", "cpus-per-gpu"):
        none = name == "mem-per-gpu" and job.mem_per_gpu == 0  # which asks for nothing
        if (
            name in job
            and not none
            and not job.gpu_option
            and (name == "mem-per-gpu" or ask.slurm >= "23.02")
        ):
            yield Hit(
                name, f"--{name} needs GPUs, and the job asks for none: Slurm refuses it", f"remove --{name}"
            )


@RULES.add("SB132", "warning", "more tasks than the nodes hold at so many a node")
def _tasks_fit_nodes(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    most = job.nodes_max or job.nodes_min
    if job.ntasks and job.ntasks_per_node and most and job.ntasks > most * job.ntasks_per_node:
        what = f"{job.ntasks} tasks do not fit {most} nodes with {job.ntasks_per_node} each"
        fix = f"remove --ntasks; --nodes and --ntasks-per-node give {most * job.ntasks_per_node} tasks"
        yield Hit("ntasks", f"{what}; beside --ntasks, --ntasks-per-node is only an upper bound", fix)


@RULES.add("SB133", "warning", "fewer tasks than nodes")
def _nodes_have_tasks(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    if job.ntasks and job.nodes_min and job.ntasks < job.nodes_min:
        what = f"{job.ntasks} task{'s' * (job.ntasks > 1)} on {job.nodes_min} nodes: Slurm cuts the job "
        what += f"to {job.ntasks}"
        yield Hit("nodes", what, "set --ntasks-per-node instead of --ntasks")


@RULES.add("SB207", "error", "more GPUs on a node than it has", about_fit=True)
def _gpus_within_node(ask: Ask) -> Iterator[Hit]:
    for name, partition in ask.partitions.items():
        job, most = ask.job.spread(partition.nodes_max), partition.gpus_per_node
        if most is not None and job.gpu_count > most:
            what = f"partition '{name}' has {most} GPUs a node, but {job.gpu_count} were asked for"
            fix = "use a partition with GPUs, or ask for none"
            if most:
                fix = f"set --gpus-per-node {most} and --nodes {-(-job.nodes * job.gpu_count // most)}"
            if most and job.gpu_option == "gres":
                what += "; --gres counts for each node"
            yield Hit(job.gpu_option, what, fix)
            continue
        counts = {str(kind): count for kind, count in partition.gpu_types.items()}
        for kind, asked in job.gpus_on_node:
            if asked > counts.get(kind, asked):
                what = f"a node of partition '{name}' has {counts[kind]} GPUs of type '{kind}', "
                what += f"but {asked} were asked for"
                yield Hit(job.gpu_option, what, f"ask for at most {kind}:{counts[kind]}")


@RULES.add("SB208", "error", "a type of GPU that the partition does not have", about_fit=True)
def _gpu_type_known(ask: Ask) -> Iterator[Hit]:
    for name, partition in ask.partitions.items():
        here = _types(partition)
        if not partition.gpus_typed and ask.job.gpu_types:
            what = f"the GPUs of partition '{name}' have no type, so that none is of the one asked for"
            yield Hit(ask.job.gpu_option, what, "ask for a number of GPUs only")
        for kind, option in ask.job.gpu_types.items() if here else ():
            if kind not in here:
                what = f"partition '{name}' has GPUs of type '{', '.join(here)}', not '{kind}'"
                yield Hit(option, what, f"ask for {' or '.join(here)}")


@RULES.add("SB209", "warning", "any type of GPU will do, where there are several")
def _gpu_type_given(ask: Ask) -> Iterator[Hit]:
    for name, partition in ask.partitions.items():
        here = _types(partition)
        if len(here) > 1 and any(not kind for kind, _ in ask.job.gpus_on_node):
            what = f"partition '{name}' has GPUs of types {', '.join(here)}: the job gets whichever is free"
            yield Hit(ask.job.gpu_option, what, f"name one, as {here[0]}:{max(1, ask.job.gpu_count)}")


@RULES.add("SB210", "error", "a generic resource that the cluster does not have", about_fit=True)
def _gres_known(ask: Ask) -> Iterator[Hit]:
    known = ask.profile.gres_types
    asked = [("gres", name) for name, _, _ in ask.job.gres]
    asked += [("tres-per-task", name) for name in _gres_of_tasks(ask)]
    for option, name in asked if known else ():
        if name not in known:
            what = f"cluster '{ask.profile.name}' has no generic resource '{name}'"
            yield Hit(option, what, did_you_mean(name, known))


def _gres_of_tasks(ask: Ask) -> list[str]:
    """The names of generic resources in --tres-per-task; none of what sbatch can't read."""
    text = ask.job.options.get("tres-per-task")
    if not text:
        return []
    from sbatchgen.sbatch import tres  # few jobs have it

    try:
        return [item.name for item in tres.items(text, slurm=ask.slurm) if item.name]
    except tres.BadItemError:
        return []


@RULES.add("SB211", "error", "shards together with whole GPUs")
def _shards_or_gpus(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    shared = next((name for name, _, count in job.gres if name in ("shard", "mps") and count), "")
    if shared and (job.gpu_count or (job.gpu_option and job.gpu_option != "gres")):
        noun = "shards of a GPU" if shared == "shard" else "a part of a GPU by MPS"
        what = f"a job can have {noun} or whole GPUs, not both: Slurm refuses it"
        yield Hit("gres", what, f"keep --gres={shared}:N or the GPUs")


@RULES.add("SB212", "error", "more shards than one GPU has", about_fit=True)
def _shards_within_gpu(ask: Ask) -> Iterator[Hit]:
    for partition in ask.partitions.values():
        most = partition.shards_per_gpu
        if most and ask.job.shards > most and not ask.profile.limits.several_gpus_per_sharing_job:
            what = f"{ask.job.shards} shards must lie on one GPU, which has {most}: "
            what += "Slurm refuses the job" if ask.slurm >= "23.11" else "the job would wait for ever"
            yield Hit("gres", what, f"ask for at most {most}, or for whole GPUs")


@RULES.add("SB213", "warning", "several processes that share one GPU")
def _shards_for_one(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    processes = job.processes_per_node or job.tasks_per_node
    if job.shards and processes > 1:
        what = "shards lie on one GPU, but several ranks or replicas want one each (NCCL: duplicate GPU)"
        known = job.processes_per_node is not None
        fix = "use one process a node, or whole GPUs"
        # The tasks of a script may be meant as its CPUs.
        yield Hit("gres", what, fix, "error" if known else None, pedantic=ask.script)


@RULES.add("SB214", "info", "shards do not divide the memory of a GPU")
def _shards_share_memory(ask: Ask) -> Iterator[Hit]:
    if ask.job.shards:
        what = "shards do not divide the GPU's memory: another job's process can use it up"
        yield Hit("gres", what, "limit it in the trainer: torch.cuda.set_per_process_memory_fraction")


@RULES.add("SB215", "error", "more CPUs on a node than it has", about_fit=True)
def _cpus_within_node(ask: Ask) -> Iterator[Hit]:
    for name, partition in ask.partitions.items():
        job = ask.job.spread(partition.nodes_max)
        if partition.cpus_per_node is not None and job.cpus_on_node > partition.cpus_per_node:
            what = f"partition '{name}' has {partition.cpus_per_node} CPUs a node, but "
            what += f"{job.cpus_on_node} were asked for"
            if job.tasks_per_node > 1 and job.cpus_per_task:
                what += f": {job.tasks_per_node} tasks with {job.cpus_per_task} each"
            option = next(
                (
                    name
                    for name in ("cpus-per-task", "cpus-per-gpu", "ntasks-per-node", "ntasks")
                    if name in job
                ),
                "",
            )
            yield Hit(option, what, f"ask for at most {partition.cpus_per_node}")


@RULES.add("SB216", "error", "more memory on a node than it has", about_fit=True)
def _memory_within_node(ask: Ask) -> Iterator[Hit]:
    for name, partition in ask.partitions.items():
        job = ask.job.spread(partition.nodes_max)
        cpus, gpus = job.cpus_on_node, job.gpu_count
        if job.options.get("exclusive") in ("", "exclusive"):  # all that a node has is the job's
            cpus, gpus = max(cpus, partition.cpus_per_node or 0), max(gpus, partition.gpus_per_node or 0)
        asked = job.mem or (job.mem_per_cpu or 0) * cpus or (job.mem_per_gpu or 0) * gpus
        if partition.mem_per_node and asked > partition.mem_per_node:
            what = f"a node of partition '{name}' has {partition.mem_per_node} of memory, but "
            what += f"{Memory(asked)} were asked for"
            if job.mem_per_cpu:
                what += f": {cpus} CPUs with {Memory(job.mem_per_cpu)} each"
            elif job.mem_per_gpu:
                what += f": {gpus} GPUs with {Memory(job.mem_per_gpu)} each"
            yield Hit(_memory_option(ask), what, f"set --mem {partition.mem_per_node} or less")


@RULES.add("SB217", "info", "no memory is asked for, and the default is small")
def _memory_given(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    for name, partition in ask.partitions.items():
        each = partition.mem_per_cpu_default
        if each and not _memory_option(ask) and "exclusive" not in job:
            total = Memory(each * job.cpus_on_node)
            what = f"no --mem: partition '{name}' gives {each} a CPU, {total} on each node"
            yield Hit(
                "mem", f"{what}; a process that needs more is killed", "add --mem=N with what the job needs"
            )


@RULES.add("SB218", "warning", "a whole node without its memory")
def _exclusive_memory(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    given = any(partition.mem_per_cpu_default for partition in ask.partitions.values())
    if job.options.get("exclusive") == "" and not _memory_option(ask) and (given or not ask.known):
        what = "--exclusive gives all CPUs and GPUs of the nodes, but only the default memory"
        yield Hit("exclusive", what, "add --mem=0 for all of it", None if given else "info")


@RULES.add("SB219", "warning", "all memory of a node that others could use")
def _memory_of_others(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    if job.mem != 0 or "exclusive" in job:
        return
    for name, partition in ask.partitions.items():
        most = partition.gpus_per_node
        if not partition.exclusive and most and 0 < job.gpu_count < most:
            share = (
                f", about {Memory(partition.mem_per_node * job.gpu_count // most)}"
                if partition.mem_per_node
                else ""
            )
            what = f"--mem=0 takes all memory of a node of partition '{name}', with {job.gpu_count} of "
            what += f"its {most} GPUs: "
            yield Hit("mem", f"{what}no other job fits beside it", f"ask for what the job needs{share}")


@RULES.add("SB220", "warning", "more memory for a CPU than the partition allows")
def _memory_per_cpu(ask: Ask) -> Iterator[Hit]:
    asked = ask.job.mem_per_cpu
    for name, partition in ask.partitions.items():
        most = partition.mem_per_cpu_max
        if asked and most and asked > most:
            cpus = (ask.job.cpus_per_task or 1) * -(-asked // most)
            what = f"{Memory(asked)} a CPU is over the {most} of partition '{name}': Slurm gives {cpus} "
            what += "CPUs a task instead"
            yield Hit("mem-per-cpu", what, f"set --mem-per-cpu {most} or less, or --cpus-per-task {cpus}")


@RULES.add("SB221", "warning", "CPUs or memory that leave GPUs of the node without any")
def _fair_share(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    for name, partition in ask.partitions.items():
        gpus = partition.gpus_per_node
        if not gpus or not 0 < job.gpu_count < gpus or "exclusive" in job or partition.exclusive:
            continue
        left, share = gpus - job.gpu_count, job.gpu_count / gpus
        for option, asked, most, unit in (
            ("cpus-per-task", job.cpus_on_node, partition.cpus_per_node, "CPUs"),
            (_memory_option(ask), job.mem_on_node or 0, partition.mem_per_node, "memory"),
        ):
            if (
                option in job
                and most
                and most >= asked > GENEROUS * share * most
                and (most - asked) / left < most / gpus / 2
            ):
                of = f"{asked} of {most} CPUs" if unit == "CPUs" else f"{Memory(asked)} of {most}"
                fair = int(share * most)
                what = f"{of} for {job.gpu_count} of {gpus} GPUs of a node of partition '{name}': "
                what += f"the other {left} GPU{'s' * (left > 1)} can hardly be used"
                yield Hit(option, what, f"a fair share is {fair if unit == 'CPUs' else Memory(fair)}")


@RULES.add("SB228", "warning", "GPU nodes for a job without GPUs")
def _gpus_used(ask: Ask) -> Iterator[Hit]:
    job = ask.job
    free = [str(name) for name, one in ask.profile.partitions.items() if one.gpus_per_node == 0]
    wanted = bool(job.gpu_option or job.gres)
    for name, partition in ask.partitions.items():
        if partition.gpus_per_node and free and not wanted and ask.profile.gpu_request != "none":
            what = f"the nodes of partition '{name}' have {partition.gpus_per_node} GPUs, "
            what += "and the job asks for none"
            yield Hit("partition", what, f"use --partition={free[0]}")


@RULES.add("SB235", "warning", "a task with part of a core")
def _whole_cores(ask: Ask) -> Iterator[Hit]:
    cpus = ask.job.cpus_per_task
    threads = max((one.threads_per_core or 1 for one in ask.partitions.values()), default=1)
    if cpus and threads > 1 and cpus % threads:
        what = f"cores here have {threads} threads, and Slurm gives whole cores: {cpus} CPUs become "
        what += f"{-(-cpus // threads) * threads}"
        yield Hit("cpus-per-task", what, f"ask for a multiple of {threads}")


@RULES.add("SB236", "error", "shards on nodes of one's own")
def _shards_shared(ask: Ask) -> Iterator[Hit]:
    if ask.job.shards and "exclusive" in ask.job:
        what = "--exclusive with shards waits for ever, even on an idle cluster"
        yield Hit("exclusive", what, "remove --exclusive")


def _is_gpu(name: str, slurm: str) -> bool:
    """Whether sbatch takes it for one beside --gpus-per-node; since 26.05 it compares the start only."""
    return name == "gpu" or (slurm >= "26.05" and name.startswith("gpu"))


def _types(partition: Partition) -> tuple[str, ...]:
    one = (partition.gpu_type,) if partition.gpu_type else ()
    return tuple(dict.fromkeys((*one, *partition.gpu_types)))


def _memory_option(ask: Ask) -> str:
    """The option that asks for memory; empty if none does."""
    return next((name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in ask.job), "")
