"""The conversion of the shape of a training into keys of the job: mode, launcher, nodes and tasks.

The shape is the number of processes, the nodes that they run on, and the launcher that starts them.
"""

import re

from sbatchgen.check.executables.program import PROGRAMS, programs
from sbatchgen.check.script.launches import Launch, fixed_nodes
from sbatchgen.lab.adopt.draft import Draft

COUNT_OPTIONS = ("nodes", "ntasks", "ntasks-per-node")  # Slurm's options for counts of nodes and tasks
# Values of torchrun's --nproc-per-node that mean the number of a node's GPUs.
_GPU_COUNT_WORDS = ("gpu", "auto", "$SLURM_GPUS_PER_NODE", "${SLURM_GPUS_PER_NODE}")
# Variables from which PyTorch learns the rank of a process and its master. The rendered script sets them.
RANK_VARIABLES = frozenset(
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "WORLD_SIZE")
)
RAY_ADVICE = "write the command as a program of a job file, with preset: ray"
# A line of a script that starts Ray, such as `srun ray start --head`.
_STARTS_RAY = re.compile(r"(?m)^[^#\n]*\bray\s+(?:start|symmetric-run)\b")
# The Python modules of launchers, by the launchers' names. A job can start such a module as its trainer, and
# the module then starts the processes of the node.
MODULES = {
    name: PROGRAMS[name].modules[0]
    for name in programs("launcher") - {"tune run"}  # tune run has the modules of torchrun
    if PROGRAMS[name].modules
}


def launcher_module(launch: Launch) -> str | None:
    """Return the Python module of a launcher, such as accelerate, that the job starts as its trainer.

    The result is None for a launch without a launcher, and for torchrun, which a job names as its launcher.
    But the job starts torchrun as its trainer if only the running job knows the number of processes, or for
    torch.distributed.launch, which gives the program the argument --local-rank.
    """
    launcher = launch.launcher
    if launcher is None or launcher.name != "torchrun":
        return MODULES.get(launcher.name) if launcher else None
    if launcher.words[0].text.endswith("distributed.launch") and not launcher.option("use-env"):
        return "torch.distributed.launch"
    return None if _workers_per_node(launch) else "torch.distributed.run"


def _workers_per_node(launch: Launch) -> int:
    """Return how many processes torchrun starts on a node; 0 if only the running job knows the number.

    --nproc-per-node=$SLURM_GPUS_PER_NODE means the number of GPUs, although Slurm may leave the variable
    empty, or put the type of the GPUs into it.
    """
    launcher = launch.launcher
    option = launcher.option("nproc-per-node") if launcher else None
    if launch.workers or not launcher or not option:
        return launch.workers or 0
    counts_gpus = launcher.text_of(option).strip('"') in _GPU_COUNT_WORDS
    return launch.resources.gpu_count if counts_gpus else 0


def adopt_shape(draft: Draft, launch: Launch) -> None:
    """Put the mode, the launcher and the numbers of nodes and tasks into the job."""
    resources, tasks = draft.script.resources, launch.tasks or 1
    nodes = fixed_nodes(resources)
    if not nodes or launch.tasks is None:
        draft.lose("the script does not say how many processes start on how many nodes")
        nodes = nodes or 1
    if "nodes" not in resources.options:
        if (resources.ntasks or 1) > 1 and not resources.ntasks_per_node:
            draft.lose(f"--ntasks={resources.ntasks} without --nodes: add '#SBATCH --nodes=N' to the script")
        elif nodes > 1 or resources.gpus_per_task:  # without --ntasks, sbatch would refuse --gpus-per-task
            draft.options["nodes"] = nodes
            draft.changed_options.add("nodes")
            draft.add(draft.launch_lines, "understood", f"nodes: {nodes}, which follows from the tasks")
    _convert_ntasks(draft, nodes)
    _lose_ntasks_per_gpu_and_mpi(draft, launch)
    launcher, module = launch.launcher.name if launch.launcher else "", launcher_module(launch)
    can_be_task = launcher in ("accelerate launch", "accelerate-launch", "torchrun")
    if launcher == "torchrun" and not module:
        _adopt_torchrun(draft, launch, nodes)
    # A launcher that srun starts once on each node becomes one task of srun on each node.
    elif can_be_task and launch.step and tasks == nodes > 1:
        draft.job |= {"mode": "ddp", "launcher": "srun", "nproc_per_node": 1}
        _merge_tasks(draft)
    elif launcher and (nodes > 1 or tasks > 1):
        draft.job["mode"] = "ddp"
        draft.lose(
            f"{launcher} on several nodes: write torchrun, which sets the variables that {launcher} reads"
        )
    elif launch.step and tasks > 1:
        _adopt_srun(draft, launch, nodes)
    else:
        _adopt_one_process(draft, launch, nodes)


def _lose_ntasks_per_gpu_and_mpi(draft: Draft, launch: Launch) -> None:
    """Note --ntasks-per-gpu and mpirun as lost, because no key of a job expresses them."""
    resources = draft.script.resources
    if per_gpu := resources.ntasks_per_gpu:
        number = per_gpu * resources.gpu_count or "N"
        replacement = f"--ntasks-per-node={number} --gpu-bind=single:{per_gpu}"
        draft.lose(f"--ntasks-per-gpu={per_gpu}: write {replacement} for it")
    if launch.mpi:
        draft.lose(f"{launch.mpi.name}: write srun for it, which knows the nodes and the tasks")


def _convert_ntasks(draft: Draft, nodes: int) -> None:
    """Replace --ntasks by the number of tasks on each node."""
    options, tasks = draft.options, draft.script.resources.ntasks
    if "ntasks" not in options or not tasks:
        return
    if tasks % nodes:
        draft.lose(f"--ntasks={tasks} on {nodes} nodes: not the same number on each")
        return
    del options["ntasks"]
    options["ntasks_per_node"] = tasks // nodes
    line = draft.script.resources.place("ntasks").line
    draft.add((line,), "understood", "options", f"ntasks_per_node {tasks // nodes}")
    draft.changed_options |= {"ntasks", "ntasks-per-node"}


def _adopt_torchrun(draft: Draft, launch: Launch, nodes: int) -> None:
    """Put torchrun into the job. The job starts it once on each of its `nodes` nodes."""
    nnodes = launch.launcher_nodes  # the value of --nnodes
    torchrun_count = launch.tasks or 1  # how many times the old script starts torchrun
    draft.job |= {"mode": "ddp", "launcher": "torchrun", "nproc_per_node": _workers_per_node(launch)}
    if torchrun_count < nodes and nnodes != nodes:
        draft.lose(f"the job has {nodes} nodes, and torchrun runs on {torchrun_count}: correct --nodes")
    elif nnodes not in (nodes, None) and nodes > 1:
        draft.lose(f"torchrun has --nnodes={nnodes}, and the job has {nodes} nodes: correct one of them")
    _merge_tasks(draft)


def _adopt_srun(draft: Draft, launch: Launch, nodes: int) -> None:
    """Put a trainer into the job that srun starts several times, once for each task."""
    resources, step = draft.script.resources, launch.step
    gpu_bindings = [option.value for option in step.uses if option.name == "gpu-bind"] if step else []
    tasks, per_node = launch.tasks or 1, launch.tasks_per_node or 1
    draft.job |= {"mode": "ddp", "launcher": "srun", "nproc_per_node": per_node}
    # --gpus-per-task shows each task its own GPUs only, except with --gpu-bind=none.
    is_bound = "none" not in (draft.script.option("gpu-bind"), *gpu_bindings)  # to GPUs of its own
    if resources.gpus_per_task and per_node > 1 and is_bound:
        draft.profile["gpu_visibility"] = "task"
        draft.add(draft.launch_lines, "understood", "gpu_visibility: task, by --gpus-per-task")
    requested_tasks = nodes * resources.tasks_per_node
    # A srun with its own counts may start only some of the tasks that the directives request.
    has_counts = step and any(step.option(name) for name in COUNT_OPTIONS)
    may_be_part = has_counts and (resources.ntasks or requested_tasks > nodes)
    if tasks != nodes * per_node or (may_be_part and tasks != (resources.ntasks or requested_tasks)):
        draft.lose(f"srun starts {tasks} tasks, not the same number on each of the job's {nodes} nodes")


def _adopt_one_process(draft: Draft, launch: Launch, nodes: int) -> None:
    """Put a trainer that is started once into the job, with the mode that fits its GPUs."""
    resources = draft.script.resources
    # A container without an option for GPUs, such as --nv of apptainer, hides the GPUs.
    is_in_container = launch.container or (launch.step and launch.step.option("container-image"))
    options = {option.name for option in launch.container.uses} if launch.container else set()
    shows_gpus = bool(options & {"nv", "rocm", "gpu"}) or not is_in_container
    if resources.gpu_count > 1:
        draft.job["mode"] = "dataparallel"
    elif resources.gpu_count or resources.shards or shows_gpus:
        draft.job["mode"] = "single"
    else:
        draft.job["mode"] = "cpu"
        draft.job.pop("gpu_request", None)
    if nodes > 1:
        draft.lose(_why_one_process(draft, nodes))
    _merge_tasks(draft)


def _why_one_process(draft: Draft, nodes: int) -> str:
    """Return the reason why one process can't become a job of several nodes, with advice."""
    if _STARTS_RAY.search(draft.body.source.text):
        return f"Ray runs on {nodes} nodes: {RAY_ADVICE}"
    if any(launch.command.in_background and not launch.is_helper for launch in draft.script.launches):
        return f"other programs also run on the {nodes} nodes: write each as a program of a job file"
    return f"the job has {nodes} nodes, and one process runs: write --nodes=1 if it needs no other node"


def _merge_tasks(draft: Draft) -> None:
    """Replace the tasks of each node by a single task with the CPUs and GPUs of all these tasks."""
    resources, options = draft.script.resources, draft.options
    tasks = resources.tasks_per_node
    if tasks <= 1:
        return
    cpus = tasks * (resources.cpus_per_task or 1)
    options |= {"ntasks_per_node": 1, "cpus_per_task": cpus}
    draft.changed_options |= {"ntasks", "ntasks-per-node", "cpus-per-task"}
    if resources.gpus_per_task:
        (kind, count), *_ = resources.gpus_per_task
        options["gpus_per_task"] = f"{kind}:{tasks * count}" if kind else str(tasks * count)
        draft.changed_options.add("gpus-per-task")
    lines = {resources.place(name).line for name in ("ntasks", "ntasks-per-node", "cpus-per-task")}
    lines -= {0, 1}  # the lines of options that the script does not have
    reason = f"one task of {cpus} CPUs on each node replaces {tasks} tasks, because one process starts there"
    draft.add(tuple(sorted(lines)), "mended", reason)
