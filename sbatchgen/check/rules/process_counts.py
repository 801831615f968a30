"""Rules about the number of processes that a script starts.

Sources: srun(1) and sbatch(1) of Slurm 22.05 and the release notes up to 26.05; torch/distributed/run.py of
torch 2.13; bash(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from sbatchgen.base.finding import Edit, Severity
from sbatchgen.base.quoting import ALSO, counted
from sbatchgen.check.bash.chain import Tool
from sbatchgen.check.executables.program import PROGRAMS
from sbatchgen.check.rules import rendezvous_fixes
from sbatchgen.check.rules.edits import insert_after, insert_before
from sbatchgen.check.rules.environment import arguments
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.rules.statuses import last_work
from sbatchgen.check.script.launches import (
    LAUNCHER_WORDS,
    OTHER_LAUNCHERS,
    TRAINING_WORDS,
    Launch,
    fixed_nodes,
)
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

RELEASES_WITHOUT_CPUS = ("22.05", "23.02")  # releases in which srun does not inherit --cpus-per-task
# The start of a command with one task on each node. It needs --ntasks, because otherwise srun ignores
# --ntasks-per-node in a job with another number of tasks.
ONE_ON_EACH_NODE = "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1"


@RULES.add("SB301", "warning", "several tasks, but nothing starts them")
def _unstarted_tasks(script: JobScript) -> Iterator[Hit]:
    resources = script.resources
    tasks = resources.ntasks or resources.nodes * (resources.ntasks_per_node or 1)
    if tasks < 2 or script.steps or script.may_start_hidden_programs:
        return
    if any(launch.mpi or launch.launcher for launch in script.launches):
        return
    if script.named("srun", *OTHER_LAUNCHERS):
        return
    if resources.nodes < 2:  # on one node, a single process can use the CPUs of all tasks
        yield from _gpu_binding_without_step(script, tasks)
        return
    for launch in script.trainings:
        only_prints_version = {"V", "version"} & launch.tools[0].options.keys()
        if not only_prints_version:
            what = f"the job asks for {tasks} tasks, but this command runs once, on the first node: "
            what += f"nothing starts the other {counted(tasks - 1, 'task')}"
            fix = f"srun {_command_start(launch)}"
            has_gpu_per_task = resources.gpu_count and resources.gpu_count == resources.ntasks_per_node
            if not _RANK_SIGN.search(script.text) and not has_gpu_per_task:
                # Nothing shows that the program is made for several processes, so it may need one task only.
                cpus = -(-tasks // resources.nodes) * (resources.cpus_per_task or 1)  # of one node's tasks
                one_task = f"--nodes=1 --ntasks=1 --cpus-per-task={cpus}"
                fix = f"{one_task} for one process{ALSO}{fix} if each task is to be a rank of it"
            yield Hit(script.at_word(launch.tools[0].words[0]), what, fix)
            return


# A script with such a text starts a program that is made for several processes.
_RANK_SIGN = re.compile(r"\b(?:MASTER_ADDR|RANK|WORLD_SIZE)\b|PROCID|mpi4py|horovod", re.IGNORECASE)


def _gpu_binding_without_step(script: JobScript, tasks: int) -> Iterator[Hit]:
    """Find a program without srun in a job with --gpu-bind or --ntasks-per-gpu, which only steps obey."""
    binding = next((name for name in ("gpu-bind", "ntasks-per-gpu") if script.option(name)), "")
    work = last_work(script) if binding and "none" not in script.option(binding) else None
    if work and not script.named("parallel", "xargs"):
        what = f"--{binding} is about the {tasks} tasks of a step, and nothing starts them: this runs once, "
        what += "and sees all GPUs"
        words = " ".join(word.text for word in work.words[:2])
        fix = f"leave --{binding} out, or srun {words} ... to start it {tasks} times"
        yield Hit(script.at_word(work.words[0]), what, fix)


@RULES.add(
    "SB302",
    "warning",
    "several launchers on a node",
    source="torch/distributed/run.py",
    words=LAUNCHER_WORDS,
    report="https://github.com/awslabs/awsome-distributed-ai/pull/1112",
)
def _repeated_launcher(script: JobScript) -> Iterator[Hit]:
    for launch in script.trainings:
        tasks, workers = launch.tasks_per_node, launch.workers
        if launch.launcher is None or launch.step is None or tasks is None or tasks < 2:
            continue
        name = launch.launcher.name
        if workers == 1 and name == "torchrun" and "standalone" not in launch.launcher.options:
            continue  # each torchrun starts one process, and all form one group
        what = f"srun starts {name} {tasks} times on a node"
        per_node = None if "ntasks" in launch.step.options else launch.step.option("ntasks-per-node")
        if per_node and launch.option_number(per_node, launch.step) != tasks:
            what = f"srun ignores --ntasks-per-node beside the job's number of tasks: it starts {name} "
            what += f"{tasks} times on a node"
        if workers:
            gpus = script.resources.gpu_count
            what += f", and each starts {counted(workers, 'process')}: {tasks * workers} on a node"
            what += f" with {counted(gpus, 'GPU')}" if gpus else ""
        else:
            what += ", and each starts processes for the whole node"
        yield Hit(script.at_word(launch.launcher.words[0]), what, f"{ONE_ON_EACH_NODE} {name} ...")


@RULES.add(
    "SB326",
    "warning",
    "an option that torchrun takes for its own",
    source="torch/distributed/run.py",
    words=LAUNCHER_WORDS,
)
def _ambiguous_option(script: JobScript) -> Iterator[Hit]:
    """Find an option of the program, such as --no, that is the start of several options of torchrun.

    torchrun takes the start of an option for the option, even in the words after the program, and ends if
    several options have the same start.
    """
    for launch in script.trainings:
        launcher = launch.launcher
        if launcher is None or launcher.name != "torchrun" or not launch.program.words:
            continue
        own_words = launcher.words[: len(launcher.words) - len(launch.program.words)]
        if any(word.text == "--" for word in own_words):
            continue  # torchrun reads no options after --
        for word in launch.program.words[1:]:
            name = launcher.body.text_of(word).partition("=")[0]
            if name == "--":
                break
            options = _torchrun_options() if name.startswith("--") and len(name) > 2 else ()
            candidates = [option for option in options if option.startswith(name)]
            if len(candidates) > 1 and name not in candidates:
                what = f"torchrun reads {name} as short for {candidates[0]} or {candidates[1]}, and ends: "
                what += "ambiguous option"
                program = launch.program.words[0]
                fix = f"-- before {program.text}: torchrun ... -- {program.text} ... {name}"
                yield Hit(script.at_word(word), what, fix, edits=insert_before(script, program, "-- "))
                break


@cache
def _torchrun_options() -> list[str]:
    """Return the long options of torchrun, each also with _ for -.

    The options --duplicate-... are left out, as only torch 2.10 and later have them.
    """
    torchrun = PROGRAMS["torchrun"]
    names = [name for name in torchrun.values | torchrun.flags if not name.startswith("duplicate-")]
    return sorted({f"--{spelling}" for name in names for spelling in (name, name.replace("-", "_"))})


@RULES.add("SB303", "error", "a multi-node launcher that starts on one node only", words=LAUNCHER_WORDS)
def _launcher_on_one_node(script: JobScript) -> Iterator[Hit]:
    yield from _launcher_for_more_nodes(script)
    nodes = script.resources.nodes
    if nodes < 2 or script.named(*OTHER_LAUNCHERS):
        return
    if any(step.launcher or step.program.name.startswith(("$", '"')) for step in script.steps):
        return
    for launch in script.launches:
        launcher, context = launch.launcher, launch.command.context
        if launcher is None or launch.step or launch.mpi or context.function or context.in_loop:
            continue
        has_no_nodes_option = not PROGRAMS[launcher.name].option_with_role("NODES")
        if has_no_nodes_option or "hostfile" in launcher.options:
            continue
        yield _single_start_hit(script, launch, launcher, nodes)


def _launcher_for_more_nodes(script: JobScript) -> Iterator[Hit]:
    """Find a launcher that waits for more nodes than the job asks for."""
    nodes, launches = fixed_nodes(script.resources), [launch for launch in script.launches if launch.launcher]
    has_size_option = {"nodes", "ntasks-per-node"} & script.options.keys()
    if not nodes or not has_size_option or len(launches) != 1:
        return
    if "array" in script.options or script.is_submitted_by_script or script.named("sbatch"):
        return  # other jobs may have the other nodes
    launch = launches[0]
    launcher, wanted, context = launch.launcher, launch.launcher_nodes or 0, launch.command.context
    always_runs = not (context.function or context.in_loop or context.in_background or context.in_branch)
    if launcher and wanted > nodes and always_runs and launcher.name != "deepspeed":
        option = PROGRAMS[launcher.name].option_with_role("NODES")
        what = f"{launcher.name} waits for {wanted} nodes (--{option}), and the job has "
        what += f"{counted(nodes, 'node')}"
        fix = f"--{option}=$SLURM_JOB_NUM_NODES, or ask for --nodes={wanted}"
        yield Hit(script.at_word(launcher.words[0]), what, fix, "warning")


def _single_start_hit(script: JobScript, launch: Launch, launcher: Tool, nodes: int) -> Hit:
    """Return the hit for a launcher that runs only once, on the first of `nodes` nodes.

    The fix starts the launcher on each node, with a rank for each node or with a common rendezvous.
    """
    program, call = PROGRAMS[launcher.name], launch.launcher_call
    what = f"{launcher.name} runs only once, on the first of {nodes} nodes: "
    word = launch.tools[0].words[0]
    at, fix = script.at_word(word), f"{ONE_ON_EACH_NODE} {_command_start(launch)}"
    rank_option = launcher.option(program.option_with_role("RANK"))
    has_static_ranks = (
        call is not None and call.has_static_ranks
    )  # whether the nodes take their ranks from an option
    if launcher.name == "deepspeed":  # a deepspeed on each node would train alone
        fix = rendezvous_fixes.deepspeed_fix(f"{ONE_ON_EACH_NODE} ")
    elif rank_option or (has_static_ranks and launcher.name not in rendezvous_fixes.TORCH_LAUNCHERS):
        option = rank_option.name if rank_option else program.option_with_role("RANK").replace("-", "_")
        fix += f", with --{option}=$SLURM_NODEID in bash -c '...'"
    elif has_static_ranks:
        fix += f", with {rendezvous_fixes.RDZV_OPTIONS}"
    if not launch.launcher_nodes or launch.launcher_nodes < 2:
        what += f"{counted(nodes - 1, 'node')} {'stay' if nodes > 2 else 'stays'} idle"
        if launcher.name != "deepspeed":
            option = program.option_with_role("NODES")
            fix += f"{' and' if ', with' in fix else ', with'} --{option}=$SLURM_NNODES"
        return Hit(at, what, fix, "warning")
    what += f"it waits for {counted(launch.launcher_nodes - 1, 'node')}, where nothing starts it"
    edits: tuple[Edit, ...] = ()
    if launch.launcher_nodes == nodes and not rank_option and "ntasks-per-gpu" not in script.resources:
        start = insert_before(script, word, f"{ONE_ON_EACH_NODE} ")
        address_edits = rendezvous_fixes.rendezvous_edits(script, launcher) if has_static_ranks else ()
        has_address = address_edits if has_static_ranks else call and call.role_option("HOST")[0]
        edits = (*start, *address_edits) if start and has_address else ()
    return Hit(at, what, fix, edits=edits)


@RULES.add(
    "SB304",
    "warning",
    "a launcher with other GPUs or nodes than the job has",
    applies=Applies.USUALLY & ~Applies.RENDERED,
    source="torch/distributed/run.py",
    words=LAUNCHER_WORDS,
)
def _launcher_counts(script: JobScript) -> Iterator[Hit]:
    yield from _too_few_visible_gpus(script)
    resources, trainings = script.resources, script.trainings
    may_share_job = any(launch.command.in_background for launch in trainings)
    for launch in trainings:
        launcher = launch.launcher
        if launcher is None or may_share_job or "CUDA_VISIBLE_DEVICES" in script.assigned_names:
            continue
        workers, gpus = launch.workers, resources.gpu_count
        option = launcher.option(PROGRAMS[launcher.name].option_with_role("PROCESSES"))
        if workers and gpus and option and launch.step_gpus is None and workers != gpus:
            what = f"{launcher.name} starts {counted(workers, 'process')} per node, but the job has "
            what += f"{counted(gpus, 'GPU')}: "
            what += "not enough for all" if workers > gpus else f"{gpus - workers} stay idle"
            yield Hit(script.at_option_of(option), what, f"--{option.name}=$SLURM_GPUS_ON_NODE")
        if gpus > 1 and _has_one_process(launch) and "PET_NPROC_PER_NODE" not in script.text:
            what = f"torchrun without --nproc-per-node starts one process: of {gpus} GPUs on a node, "
            what += f"{gpus - 1} {'stays' if gpus == 2 else 'stay'} idle"
            yield Hit(script.at_word(launcher.words[0]), what, "--nproc-per-node=$SLURM_GPUS_ON_NODE")
        tasks, nnodes = launch.tasks, launch.launcher_nodes
        option = launcher.option("nnodes")
        is_one_per_node = launch.tasks_per_node == 1 and not launch.runs_in_some_tasks
        if launch.step and option and tasks and nnodes and is_one_per_node and tasks != nnodes:
            what = f"srun starts torchrun {tasks} times, but --nnodes says {nnodes}: "
            what += "they wait for more" if tasks < nnodes else "they do not form one group"
            yield Hit(script.at_option_of(option), what, "--nnodes=$SLURM_NNODES, and one task for each node")


def _too_few_visible_gpus(script: JobScript) -> Iterator[Hit]:
    """Find a CUDA_VISIBLE_DEVICES that names fewer GPUs than the launcher starts processes."""
    for launch in script.trainings:
        earlier = [
            assignment
            for assignment in script.body.assignments_of("CUDA_VISIBLE_DEVICES")
            if assignment.at < launch.command.end
        ]
        assignment, workers = earlier[-1] if earlier else None, launch.workers
        if not assignment or not workers or not launch.launcher:
            continue
        if assignment.is_prefix:
            reaches_launcher = assignment in launch.command.prefix_assignments
        else:
            reaches_launcher = assignment.is_exported and assignment.context.is_top_level
        if reaches_launcher and re.fullmatch(r"\d+(?:,\d+)*", assignment.value or "", re.ASCII):
            count = (assignment.value or "").count(",") + 1
            if count < workers:
                what = f"CUDA_VISIBLE_DEVICES leaves {counted(count, 'GPU')} for the "
                what += f"{workers} processes that {launch.launcher.name} starts on a node"
                yield Hit(script.at_start(assignment), what, "remove it: Slurm sets it")


def _has_one_process(launch: Launch) -> bool:
    """Return whether a torchrun starts one process by default, and no other task of its node starts more."""
    is_only_task = launch.step_gpus is None and launch.tasks_per_node in (None, 1)
    may_have_options = "$" in launch.program.name  # torchrun $OPTIONS train.py
    call = launch.launcher_call if is_only_task and not may_have_options else None
    return call is not None and call.starts_one_by_default


@RULES.add(
    "SB352",
    "warning",
    "a program that expects other nodes or GPUs than the job has",
    source="sbatch(1)",
    words=TRAINING_WORDS,
    report="https://github.com/Lightning-AI/pytorch-lightning/issues/10098",
)
def _expected_counts(script: JobScript) -> Iterator[Hit]:
    """Find options such as --num_nodes=4, by which a program without a launcher expects a number of units."""
    resources, nodes = script.resources, fixed_nodes(script.resources)
    for launch in script.trainings:
        if launch.command.in_background or launch.launcher or nodes is None:
            continue  # SB304 is about launchers; programs in the background share the job
        for name, word, value in arguments(launch):
            if not _COUNT.fullmatch(value):
                continue
            wanted, key = int(value), name.rpartition(".")[2]  # num_nodes of trainer.num_nodes
            unit = next((unit for unit, pattern in _OPTION_NAMES.items() if pattern.fullmatch(key)), "")
            available = 0  # the number of units that the job has; 0 if it is not known
            if unit == "node" and "nodes" in resources:
                available = nodes
            if unit == "GPU":
                available = resources.gpu_count
            if unit == "process":  # Lightning compares `devices` with the tasks of srun
                available = (launch.tasks_per_node or 0) if launch.runs_rank_per_task else 0
            # If the launch uses fewer nodes, other steps may have the rest.
            has_all_nodes = launch.nodes == nodes or "ray start" in script.text
            uses_less = wanted < available and unit != "GPU" and has_all_nodes
            if available and (wanted > available or uses_less):
                what = f"{name}: {launch.program.name} expects {counted(wanted, unit)}, and the job has "
                what += f"{available}{' on a node' * (unit != 'node')}: "
                what += "it waits for more" if wanted > available else "the others are idle, or do the same"
                yield Hit(script.at_word(word), what, _count_fix(name, word.text, unit))


def _count_fix(name: str, word: str, unit: str) -> str:
    """Return the fix for an option that counts a unit: a variable or an option of Slurm with the number.

    `word` is the word of the command that holds the option.
    """
    if unit == "process":
        return "--ntasks-per-node=N, a task for each"
    variable = "$SLURM_NNODES" if unit == "node" else "$SLURM_GPUS_ON_NODE"
    return f"{name}{'=' if '=' in word else ' '}{variable}"


_COUNT = re.compile(r"[1-9]\d{0,3}", re.ASCII)
# A unit -> the names of the options by which programs expect a number of this unit.
_OPTION_NAMES = {
    "node": re.compile(r"(?:--|\+)?(?:n_?nodes|num[-_]nodes)"),
    "GPU": re.compile(r"(?:--|\+)?(?:n_?|num[-_])?gpus[-_]per[-_]node"),
    "process": re.compile(r"(?:--)?devices"),
}


@RULES.add(
    "SB305",
    "warning",
    "srun gives each task one CPU only",
    source="srun(1)",
    words=("srun",),
    report="https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/41",
)
def _cpus_not_inherited(script: JobScript) -> Iterator[Hit]:
    cpus, variable = script.resources.cpus_per_task, "SRUN_CPUS_PER_TASK"  # srun reads the variable
    if not cpus or cpus < 2 or script.release not in RELEASES_WITHOUT_CPUS:
        return
    if any(assignment.is_exported for assignment in script.body.assignments_of(variable)):
        return
    for launch in script.steps:
        step = launch.step
        if step is None or launch.is_helper or {"cpus-per-task", "cpus-per-gpu"} & step.options.keys():
            continue
        if any(assignment.name == variable for assignment in launch.command.prefix_assignments):
            continue
        what = f"--cpus-per-task={cpus} does not reach srun in Slurm {script.release}: if tasks are bound to "
        what += "CPUs, each gets only one"
        fix = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"'
        edits = insert_after(script, step.words[0], ' --cpus-per-task="$SLURM_CPUS_PER_TASK"')
        yield Hit(script.at_word(step.words[0]), what, fix, edits=edits)


@RULES.add("SB316", "info", "each rank sees only one GPU", words=("srun",))
def _ranks_with_one_gpu(script: JobScript) -> Iterator[Hit]:
    resources = script.resources
    gpu_bind = script.option("gpu-bind")
    # The option that hides from each task the GPUs of the other tasks; "" without such an option.
    binding = "gpu-bind" if gpu_bind.startswith("single") else ""
    if not gpu_bind and resources.gpus_per_task and sum(count for _, count in resources.gpus_per_task) == 1:
        binding = "gpus-per-task"
    if not gpu_bind and "ntasks-per-gpu" in resources:
        binding = "ntasks-per-gpu"
    for launch in script.trainings:
        tasks = launch.tasks_per_node
        if not binding or not launch.runs_rank_per_task or tasks is None or tasks < 2:
            continue
        if launch.step and launch.step.option("gpu-bind") is None:
            what = f"with --{binding} each task sees only its own GPU, as number 0: a program that uses GPU "
            what += "$SLURM_LOCALID fails, and NCCL may be slower"
            yield Hit(binding, what, "--gpus-per-node=N, or add --gpu-bind=none")
            return


@RULES.add(
    "SB321",
    "warning",
    "tasks that Slurm may spread unevenly",
    pedantic=True,
    source="sbatch(1)",
    words=("srun",),
)
def _uneven_tasks(script: JobScript) -> Iterator[Hit]:
    resources = script.resources
    nodes, tasks = resources.nodes, resources.ntasks
    if nodes < 2 or not tasks or resources.ntasks_per_node or tasks <= nodes or "distribution" in resources:
        return
    for launch in script.trainings:
        if launch.step and not {"ntasks-per-node", "ntasks"} & launch.step.options.keys():
            per_node = -(-tasks // nodes)
            what = f"{tasks} tasks on {nodes} nodes may be spread unevenly, as {tasks - nodes + 1} and 1"
            yield Hit("ntasks", what, f"--ntasks-per-node={per_node} instead of --ntasks")
            return


@RULES.add("SB322", "info", "tasks per node and GPUs per node differ", words=("srun",))
def _ranks_unlike_gpus(script: JobScript) -> Iterator[Hit]:
    resources = script.resources
    gpus = resources.gpu_count
    if not gpus or resources.gpus_per_task or "ntasks-per-gpu" in resources or resources.shards:
        return
    for launch in script.trainings:
        tasks = launch.tasks_per_node
        if not launch.runs_rank_per_task or not tasks or tasks < 2 or launch.step_gpus:
            continue
        if tasks != gpus and not launch.command.in_background:
            fate = f"{counted(gpus - tasks, 'GPU')} stay idle" if tasks < gpus else "some share a GPU"
            what = f"{tasks} tasks on a node with {counted(gpus, 'GPU')}: {fate}"
            uses_mps = "mps" in script.text.lower()  # with NVIDIA MPS, tasks share GPUs on purpose
            severity: Severity | None = "warning" if tasks > gpus and not uses_mps else None
            fix = f"--ntasks-per-node={gpus}"
            yield Hit(script.at_command(launch.command), what, fix, severity)
            return


def _command_start(launch: Launch) -> str:
    """Return the first two words of a launch and an ellipsis, for a fix."""
    return " ".join(word.text for word in launch.command.words[:2]) + " ..."
