"""How the body starts what uses the allocation: SB301 to SB327.

Sources: srun(1) and sbatch(1) of Slurm 22.05 and the release notes up to 26.05; torch/distributed/run.py of
torch 2.13; bash(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sbatchgen.finding import Edit, Place
from sbatchgen.rules.edits import after, before, line_after, line_before
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.rules.subject import Subject

if TYPE_CHECKING:
    from sbatchgen.rules.processes import Launch
    from sbatchgen.shell import Assignment, Command, Word
    from sbatchgen.shell.launch import Option, Tool

RULES: Rules[Subject] = Rules()

NO_INHERITANCE = ("22.05", "23.02")  # releases in which srun does not take --cpus-per-task over
EPHEMERAL_PORT = 32768
LONG_SLEEP_S = 3600
OTHER_LAUNCHERS = frozenset(
    (
        "ibrun",
        "aprun",
        "jsrun",
        "horovodrun",
        "prun",
        "fastsrun",
        "ssh",
        "pdsh",
        "clush",
        "parallel",
        "ray",
        "dask",
    )
)
KEEPERS = frozenset(("wait", "exec", "trap", "fg", "tail", "sleep", "kill", "read", "tee"))
WORDS_AT_THE_END = frozenset(
    (
        "echo",
        "date",
        "printf",
        "true",
        ":",
        "sleep",
        "ls",
        "squeue",
        "sacct",
        "nvidia-smi",
        "hostname",
        "seff",
    )
)
POLLS = frozenset(("squeue", "sacct", "sinfo", "sstat", "sbatch", "scontrol"))
LOOPBACK = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(?=:|$)")
OF_A_TASK = frozenset(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID"))
_ADDRESSES = {"torchrun": ("rdzv-endpoint", "master-addr"), "accelerate launch": ("main-process-ip",)}
_PORTS = {"torchrun": "master-port", "accelerate launch": "main-process-port", "deepspeed": "master-port"}
_ADDRESS_NAME = re.compile(
    r"(?:MASTER|HEAD|MAIN|MST|RDZV)_?(?:NODE_?)?(?:PROCESS_?)?(?:ADDR|IP|HOST|ENDPOINT)\w*", re.IGNORECASE
)


@RULES.add("SB301", "warning", "several tasks, and nothing that starts them")
def _tasks_started(script: Subject) -> Iterator[Hit]:
    tasks = _asked_tasks(script)
    if tasks < 2 or script.processes.steps or script.processes.unseen:
        return
    trainings = script.processes.trainings
    if any(launch.mpi or launch.launcher for launch in trainings) or script.named(*OTHER_LAUNCHERS):
        return
    for launch in trainings[:1]:
        what = (
            f"{tasks} tasks are asked for, but the script runs once, on the first node: {tasks - 1} of them "
        )
        what += "stay idle"
        word = launch.tools[0].words[0]
        yield Hit(script.at_word(word), what, f"srun {_head(launch)}", edits=before(script, word, "srun "))


@RULES.add("SB302", "warning", "several launchers on a node")
def _one_launcher_per_node(script: Subject) -> Iterator[Hit]:
    for launch in script.processes.trainings:
        tasks, workers = launch.tasks_per_node(script.job), launch.workers(script.job)
        if launch.launcher is None or launch.step is None or tasks is None or tasks < 2:
            continue
        name = launch.launcher.name
        if workers == 1 and name == "torchrun" and "standalone" not in launch.launcher.options:
            continue  # one agent for each process
        what = f"srun starts {name} {tasks} times on a node"
        if workers:
            gpus = f" for {script.job.gpu_count} GPUs" if script.job.gpu_count else ""
            what += f", and each starts {workers} processes: {tasks * workers} on a node{gpus}"
        else:
            what += ", and each starts the processes of the whole node"
        yield Hit(
            script.at_word(launch.launcher.words[0]),
            what,
            "srun --ntasks-per-node=1, and --nodes as the job's",
        )


@RULES.add("SB303", "error", "a launcher for several nodes that starts on one")
def _launcher_on_all_nodes(script: Subject) -> Iterator[Hit]:
    nodes = script.job.nodes
    if nodes < 2 or script.named(*OTHER_LAUNCHERS):
        return
    launches = script.processes.launches
    if any(
        launch.step and (launch.launcher or launch.program.name.startswith(("$", '"'))) for launch in launches
    ):
        return
    for launch in launches:
        launcher, context = launch.launcher, launch.command.context
        if launcher is None or launch.step or launch.mpi or context.function or context.loop:
            continue
        if launcher.name == "deepspeed" and "hostfile" in launcher.options:
            continue
        wanted = _group(launcher, script)
        what = f"{launcher.name} runs once, on the first of {nodes} nodes: "
        if wanted and wanted > 1:
            what += f"it waits for {wanted - 1} {_plural(wanted - 1, 'node')} on which nothing starts"
        else:
            what += (
                f"the other {_plural(nodes - 1, 'node')} of the job {'stay' if nodes > 2 else 'stays'} idle"
            )
        word = launch.tools[0].words[0]
        yield Hit(
            script.at_word(word),
            what,
            f"srun --ntasks-per-node=1 {_head(launch)}",
            None if wanted and wanted > 1 else "warning",
            before(script, word, "srun --ntasks-per-node=1 ") if wanted and wanted > 1 else (),
        )


@RULES.add("SB304", "warning", "the launcher counts other GPUs or nodes than the job has")
def _launcher_counts(script: Subject) -> Iterator[Hit]:
    job, trainings = script.job, script.processes.trainings
    if sum(launch.launcher is not None for launch in trainings) > 1:
        return  # they may share the job
    for launch in trainings:
        launcher = launch.launcher
        if launcher is None or any(one.name == "CUDA_VISIBLE_DEVICES" for one in script.body.sets):
            continue
        workers = launch.workers(job)
        option = (
            launcher.option("nproc-per-node")
            or launcher.option("num-gpus")
            or launcher.option("num-processes")
        )
        if workers and job.gpu_count and option and launch.step_gpus is None and workers != job.gpu_count:
            what = (
                f"{launcher.name} starts {workers} {_plural(workers, 'process')} on a node that the job has "
            )
            what += f"{job.gpu_count} {_plural(job.gpu_count, 'GPU')} of: "
            what += (
                "there is none for each"
                if workers > job.gpu_count
                else f"{job.gpu_count - workers} stay idle"
            )
            yield Hit(_at_value(script, option), what, f"--{option.name}=$SLURM_GPUS_ON_NODE")
        agents, group = launch.tasks(job), _group(launcher, script)
        told = launcher.option("nnodes")
        one_each = launch.tasks_per_node(job) == 1
        if launch.step and told and agents and group and one_each and agents != group:
            what = f"srun starts {agents} {_plural(agents, 'torchrun')}, but --nnodes says {group}: "
            what += "they wait for more" if agents < group else "they do not make one group"
            yield Hit(_at_value(script, told), what, "--nnodes=$SLURM_NNODES, and one task for each node")


@RULES.add("SB305", "warning", "srun gives each task one CPU")
def _cpus_inherited(script: Subject) -> Iterator[Hit]:
    cpus = script.job.cpus_per_task
    if not cpus or cpus < 2 or script.release not in NO_INHERITANCE:
        return
    if any(one.name == "SRUN_CPUS_PER_TASK" and one.exported for one in script.body.sets):
        return
    for launch in script.processes.steps:
        step = launch.step
        if step is None or launch.is_helper or {"cpus-per-task", "cpus-per-gpu"} & step.options.keys():
            continue
        if any(one.name == "SRUN_CPUS_PER_TASK" for one in launch.command.prefix):
            continue
        what = (
            f"--cpus-per-task={cpus} does not reach srun in Slurm {script.release}: where tasks are bound to "
        )
        what += "CPUs, each gets one"
        fix = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"'
        edits = after(script, step.words[0], ' --cpus-per-task="$SLURM_CPUS_PER_TASK"')
        yield Hit(script.at_word(step.words[0]), what, fix, edits=edits)


@RULES.add("SB306", "warning", "a port that is the same for every job")
def _port_of_the_job(script: Subject) -> Iterator[Hit]:
    job = script.job
    if "exclusive" in job or not script.processes.trainings or _has_whole_nodes(script):
        return
    for place, port in _ports(script):
        if re.fullmatch(r"[1-9]\d{0,4}", port, re.ASCII):
            what = (
                f"port {port} is the same for every job: two that share a node collide, or become one group"
            )
            yield Hit(place, what, "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))")


@RULES.add("SB307", "warning", "an address at which each node finds itself")
def _address_of_the_first_node(script: Subject) -> Iterator[Hit]:
    fix = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1), before srun'
    spread = [launch for launch in script.processes.trainings if _is_spread(launch, script)]
    if not spread:
        return
    for launch in spread:
        for option in _options_of(launch.launcher, _ADDRESSES):
            value = _value(option, launch.launcher)
            if LOOPBACK.match(value) and not (value.endswith(":0") and _group(launch.launcher, script) == 1):
                what = f"{value} is each node itself: the {launch.nodes(script.job)} nodes never meet"
                yield Hit(_at_value(script, option), what, fix, "error")
            elif "$(hostname" in value and option.word.source is not script.body.source:
                what = f"every node runs this hostname: the {launch.nodes(script.job)} nodes never meet"
                yield Hit(_at_value(script, option), what, fix)
    for one in script.body.sets:
        if _ADDRESS_NAME.fullmatch(one.name) and one.word is not None and not one.context.branch:
            value = script.body.value(one.word) or ""
            if LOOPBACK.match(value):
                what = (
                    f"{one.name}={value}: every node meets itself, where {script.job.nodes} nodes are to meet"
                )
                yield Hit(script.at(one.line, one.column), what, fix)
    yield from (Hit(place, what, fix) for place, what in _doubtful_addresses(script))


@RULES.add("SB308", "warning", "a variable of each task that the batch shell expands")
def _expanded_in_the_task(script: Subject) -> Iterator[Hit]:
    exported = False
    used = any(use.name in OF_A_TASK for use in script.body.uses)
    for launch in script.processes.steps if used else ():
        tasks, nodes = launch.tasks(script.job), launch.nodes(script.job)
        if tasks is None or tasks < 2:
            continue
        names = OF_A_TASK if nodes != 1 else OF_A_TASK - {"SLURM_NODEID"}
        for word, name in _expanded_early(script, launch, names):
            what = f"${name} is expanded before srun starts: all {tasks} tasks get the batch script's value"
            fix = f"single quotes: srun bash -c '... ${name} ...'"
            yield Hit(script.at_word(word), what, fix)
            break
        if launch.is_native and not exported:
            exported = True
            for one, name in _exported_early(script, launch, names):
                what = (
                    f"{one.name}=${name} is set before srun starts: all {tasks} tasks get the same value, 0"
                )
                fix = f"srun bash -c 'export {one.name}=${name}; exec python ...'"
                yield Hit(script.at(one.line, one.column), what, fix)


@RULES.add("SB309", "error", "the script ends before what runs in the background")
def _background_awaited(script: Subject) -> Iterator[Hit]:
    commands = script.body.commands
    last = [
        launch for launch in script.processes.launches if launch.command.background and not launch.is_helper
    ]
    if not last or last[-1].command.context.function or last[-1].command.context.substitution:
        return
    command = last[-1].command
    rest = [one for one in commands if one.at > command.at and not one.context.function]
    if any(one.name in KEEPERS or one.context.loop for one in rest if not _same_loop(one, command)):
        return
    if any(launch.command.at > command.at and not launch.is_helper for launch in script.processes.launches):
        return
    what = "the script ends while this runs in the background: Slurm then kills it"
    yield Hit(
        script.at_word(_first(command)),
        what,
        "wait, as the last line",
        edits=line_after(script, command, "wait"),
    )


@RULES.add("SB310", "warning", "steps that wait for each other")
def _steps_share(script: Subject) -> Iterator[Hit]:
    waiting = [
        launch
        for launch in script.processes.steps
        if launch.command.background and _takes_all(launch, script)
    ]
    count = sum(2 if launch.command.context.loop else 1 for launch in waiting)
    if count < 2:
        return
    step = waiting[0].step
    if step is not None:
        what = "each srun takes all CPUs of its nodes: the others wait, and the steps run one after another"
        yield Hit(
            script.at_word(step.words[0]), what, "srun --exact --ntasks=1 --cpus-per-task=N --gpus=N --mem=N"
        )


@RULES.add("SB311", "warning", "a pipe that hides how the training ended")
def _pipe_status(script: Subject) -> Iterator[Hit]:
    body = script.body
    for launch in (
        *script.processes.trainings,
        *(one for one in script.processes.steps if not one.is_training),
    ):
        command = launch.command
        pipe = command.pipe
        if (
            pipe is None
            or command.stage >= len(pipe.stages) - 1
            or launch.is_helper
            or command.context.substitution
        ):
            continue
        if body.option_at("pipefail", command.line) or any(use.name == "PIPESTATUS" for use in body.uses):
            continue
        behind = next((one.name for one in reversed(pipe.stages[-1]) if one.name), "")
        what = (
            f"the status of the pipe is that of {behind or 'its last command'}: Slurm shows a failed job as "
        )
        what += "COMPLETED"
        edits = line_before(script, command, "set -o pipefail") if body.language == "bash" else ()
        yield Hit(script.at_word(_first(command)), what, "set -o pipefail, before it", edits=edits)


@RULES.add("SB312", "warning", "the last command hides how the training ended")
def _last_status(script: Subject) -> Iterator[Hit]:
    body, last = script.body, script.body.last
    if last is None or last.name not in WORDS_AT_THE_END or last.context.branch or last.test:
        return
    for launch in script.processes.trainings[-1:]:
        command = launch.command
        context = command.context
        if (
            command.at >= last.at
            or command.background
            or context.condition
            or context.function
            or context.branch
        ):
            continue
        if body.option_at("errexit", command.line) or any(
            use.name in ("?", "PIPESTATUS") for use in body.uses
        ):
            continue
        if any("ERR" in inner.context.trap for _, inner in body.traps):
            continue
        what = f"the script ends with the status of {last.name}: Slurm shows a failed job as COMPLETED"
        yield Hit(
            script.at_word(_first(last)),
            what,
            "set -e at the start, or keep the status: rc=$?; ...; exit $rc",
        )


@RULES.add("SB313", "warning", "mpirun starts another number of processes than the job has tasks")
def _mpi_tasks(script: Subject) -> Iterator[Hit]:
    from sbatchgen.rules.processes import number

    for launch in script.processes.launches:
        mpi, step = launch.mpi, launch.step
        if mpi is None:
            continue
        tasks = launch.tasks(script.job)
        if (
            step is not None
            and tasks is not None
            and tasks > 1
            and launch.tools.index(step) < launch.tools.index(mpi)
        ):
            what = f"srun starts {mpi.name} {tasks} times, and each starts all processes"
            yield Hit(script.at_word(mpi.words[0]), what, f"either srun PROGRAM or {mpi.name} PROGRAM")
            continue
        option = next((one for name in ("np", "n", "c") if (one := mpi.option(name))), None)
        count, asked = number(option, mpi, script.job), _asked_tasks(script)
        given = {"ntasks", "ntasks-per-node"} & script.job.options.keys()
        if option and count and given and count != asked:
            fate = "it ends for lack of slots" if count > asked else f"{asked - count} stay idle"
            what = f"{mpi.name} starts {count} processes, but the job has {asked} tasks: {fate}"
            yield Hit(_at_value(script, option), what, f'{mpi.name} -np "$SLURM_NTASKS"')


@RULES.add("SB315", "warning", "the script chooses GPUs that Slurm has chosen")
def _gpus_chosen(script: Subject) -> Iterator[Hit]:
    for one in script.body.sets:
        if one.name != "CUDA_VISIBLE_DEVICES" or one.prefix or not script.job.gpu_count:
            continue
        value = one.value or ""
        if re.fullmatch(r"\d+(?:,\d+)*", value, re.ASCII):
            what = f"CUDA_VISIBLE_DEVICES={value} replaces what Slurm set: without cgroups these GPUs may be "
            what += "another job's"
            line = script.lines[one.line - 1] if one.line <= len(script.lines) else ""
            alone = line.strip() in (f"export CUDA_VISIBLE_DEVICES={value}", f"CUDA_VISIBLE_DEVICES={value}")
            edits = (Edit(one.line, 0, 0, ""),) if alone and one.context.top else ()
            yield Hit(script.at(one.line, one.column), what, "remove it", edits=edits)


@RULES.add("SB316", "info", "each rank sees one GPU only")
def _ranks_see_all(script: Subject) -> Iterator[Hit]:
    job = script.job
    bound = job.options.get("gpu-bind", "")
    binding = "gpu-bind" if bound.startswith("single") else ""
    if not bound and job.gpus_per_task and sum(count for _, count in job.gpus_per_task) == 1:
        binding = "gpus-per-task"
    if not bound and "ntasks-per-gpu" in job:
        binding = "ntasks-per-gpu"
    for launch in script.processes.trainings:
        tasks = launch.tasks_per_node(job)
        if not binding or not launch.is_native or tasks is None or tasks < 2:
            continue
        if launch.step and launch.step.option("gpu-bind") is None:
            what = f"--{binding} shows each of {tasks} tasks on a node one GPU, which is its number 0: a "
            what += "program that uses GPU SLURM_LOCALID fails, and NCCL may take a slower way between GPUs"
            yield Hit(binding, what, "--gpus-per-node=N, or --gpu-bind=none beside it")
            return


@RULES.add("SB317", "warning", "the script asks Slurm again and again")
def _polls(script: Subject) -> Iterator[Hit]:
    for command in script.named("watch", *POLLS):
        name = command.name
        if name == "watch" and len(command.words) > 1:
            name = next((word.value or "" for word in command.words[1:] if (word.value or "") in POLLS), "")
        elif not command.context.loop:
            continue
        verb = (command.words[1].value or "") if len(command.words) > 1 else ""
        if name == "scontrol" and (verb != "show" or "host" in command.text):
            continue
        if name:
            what = (
                f"{name} in a loop: each call is work for slurmctld, which all jobs of the cluster wait for"
            )
            fix = (
                "one job array: --array=0-9"
                if name == "sbatch"
                else "a dependency: --dependency=afterok:JOBID"
            )
            yield Hit(script.at_word(_first(command)), what, fix)


@RULES.add("SB318", "warning", "a command that leaves the job")
def _leaves_the_job(script: Subject) -> Iterator[Hit]:
    for command in script.named(*_LEAVING):
        if not command.words:
            continue
        first = next((word.text for word in command.words[1:] if not word.text.startswith("-")), "")
        if command.name == "docker" and first not in ("run", "exec"):
            continue
        if command.name == "ssh" and any(
            re.fullmatch(r"-\w*[LRDNV]\w*", word.text) for word in command.words[1:]
        ):
            continue
        what, fix = _LEAVING[command.name]
        yield Hit(
            script.at_word(_first(command)),
            f"{command.name}: {what}",
            fix,
            "info" if command.name == "nohup" else None,
        )


_ENDS_ALONE = ("the script goes on and ends, and what it started is killed", "start the program itself")
_LEAVING = {
    "sudo": ("a batch job has no terminal to ask for a password at", "remove it"),
    "ssh": (
        "what it starts belongs to no step: Slurm's variables, limits and end do not reach it",
        "srun --nodelist=HOST --ntasks=1 COMMAND",
    ),
    "docker": (
        "the container is a child of its daemon, outside of the job: limits and end do not reach it",
        "apptainer exec IMAGE, or srun --container-image=IMAGE",
    ),
    "screen": _ENDS_ALONE,
    "tmux": _ENDS_ALONE,
    "nohup": ("a batch job has no terminal that could hang up", "remove it"),
}


@RULES.add("SB319", "info", "GPUs that wait for somebody")
def _idle_gpus(script: Subject) -> Iterator[Hit]:
    if not script.job.gpu_count:
        return
    for command in script.named(*_WAITING):
        words = [word.value or "" for word in command.words]
        if command.name == "sleep" and _sleeps(words[1:]) < LONG_SLEEP_S:
            continue
        if command.name == "tail" and words[-1:] != ["/dev/null"]:
            continue
        if words:
            what = f"{' '.join(words[:2])} holds {script.job.nodes * script.job.gpu_count} GPUs, used or not"
            yield Hit(
                script.at_word(_first(command)), what, "end the job when the work is done: timeout 1h COMMAND"
            )


_WAITING = frozenset(("sleep", "tail", "jupyter", "jupyter-lab", "jupyter-notebook", "code-server"))


@RULES.add("SB320", "warning", "a number of GPUs that is no number")
def _typed_variable(script: Subject) -> Iterator[Hit]:
    from sbatchgen.rules.processes import variable

    job = script.job
    typed = {
        "SLURM_GPUS_PER_NODE": job.gpus_per_node,
        "SLURM_GPUS_PER_TASK": job.gpus_per_task,
        "SLURM_GPUS": job.gpus,
    }
    for launch in script.processes.trainings:
        option = launch.launcher.option("nproc-per-node") if launch.launcher else None
        asked = typed.get(variable(option, launch.launcher)) if option and launch.launcher else None
        if option and asked and asked[0][0]:
            name = variable(option, launch.launcher) if launch.launcher else ""
            held = ",".join(f"{kind}:{count}" for kind, count in asked)
            what = f"{name} holds '{held}', as it was asked for: torchrun takes no such number"
            yield Hit(_at_value(script, option), what, "--nproc-per-node=$SLURM_GPUS_ON_NODE")


@RULES.add("SB321", "warning", "Slurm spreads the tasks as it likes")
def _uneven(script: Subject) -> Iterator[Hit]:
    job = script.job
    nodes, tasks = job.nodes, job.ntasks
    if nodes < 2 or not tasks or job.ntasks_per_node or tasks <= nodes or "distribution" in job:
        return
    for launch in script.processes.trainings:
        if (
            launch.step
            and launch.step.option("ntasks-per-node") is None
            and launch.step.option("ntasks") is None
        ):
            each = -(-tasks // nodes)
            what = f"{tasks} tasks on {nodes} nodes may be laid out unevenly, as {tasks - nodes + 1} and 1"
            yield Hit("ntasks", what, f"--ntasks-per-node={each} in place of --ntasks")
            return


@RULES.add("SB322", "warning", "another number of tasks on a node than of GPUs")
def _rank_for_each_gpu(script: Subject) -> Iterator[Hit]:
    job = script.job
    gpus = job.gpu_count
    if not gpus or job.gpus_per_task or "ntasks-per-gpu" in job or job.shards:
        return
    for launch in script.processes.trainings:
        tasks = launch.tasks_per_node(job)
        if not launch.is_native or not tasks or tasks < 2 or launch.step_gpus:
            continue
        if tasks != gpus and not launch.command.background:
            fate = f"{gpus - tasks} stay idle" if tasks < gpus else "some share one"
            what = f"{tasks} tasks on a node with {gpus} {_plural(gpus, 'GPU')}: {fate}"
            yield Hit(script.at_word(_first(launch.command)), what, f"--ntasks-per-node={gpus}")
            return


@RULES.add("SB323", "warning", "the launchers do not agree on the name of their group")
def _rendezvous_id(script: Subject) -> Iterator[Hit]:
    for launch in script.processes.trainings:
        option = launch.launcher.option("rdzv-id") if launch.launcher else None
        if option is None or launch.step is None:
            continue
        tasks, value = launch.tasks(script.job), _value(option, launch.launcher)
        if "RANDOM" in value and option.word.source is not script.body.source and tasks and tasks > 1:
            what = f"each of {tasks} tasks draws its own --rdzv-id: they make {tasks} groups, all waiting"
            yield Hit(_at_value(script, option), what, "--rdzv-id=$SLURM_JOB_ID", "error")
        elif option.value and not _has_whole_nodes(script) and "exclusive" not in script.job:
            what = f"--rdzv-id={option.value} is the same for every job: two at one port become one group"
            yield Hit(_at_value(script, option), what, "--rdzv-id=$SLURM_JOB_ID", "info")


@RULES.add("SB324", "error", "--standalone on several nodes")
def _standalone(script: Subject) -> Iterator[Hit]:
    for launch in script.processes.trainings:
        option = launch.launcher.option("standalone") if launch.launcher else None
        nodes = launch.nodes(script.job)
        if option and launch.step and nodes and nodes > 1:
            what = (
                f"--standalone makes a group of each node alone: {nodes} nodes train {nodes} times the same"
            )
            fix = "--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
            yield Hit(script.at_word(option.word), what, fix)


@RULES.add("SB325", "warning", "as many processes as the whole node has CPUs")
def _cpu_workers(script: Subject) -> Iterator[Hit]:
    for launch in script.processes.trainings:
        option = launch.launcher.option("nproc-per-node") if launch.launcher else None
        if option and option.value == "cpu" and "exclusive" not in script.job:
            cpus = script.job.cpus_on_node
            what = f"--nproc-per-node=cpu counts all CPUs of the node, but the job has {cpus}"
            yield Hit(_at_value(script, option), what, "--nproc-per-node=$SLURM_CPUS_ON_NODE")


@RULES.add("SB326", "error", "an option of the trainer that torchrun takes for its own")
def _ambiguous(script: Subject) -> Iterator[Hit]:
    for launch in script.processes.trainings:
        launcher = launch.launcher
        if launcher is None or launcher.name != "torchrun" or not launch.program.words:
            continue
        own = launcher.words[: len(launcher.words) - len(launch.program.words)]
        if any(word.text == "--" for word in own):
            continue
        for word in launch.program.rest:
            name = launcher.body.text_of(word).partition("=")[0]
            if name == "--":
                break
            matching = (
                [one for one in _torchrun_options() if one.startswith(name)] if _LONG.fullmatch(name) else []
            )
            if len(matching) > 1 and name not in matching:
                what = f"torchrun reads {name} as a short form of {matching[0]} or {matching[1]}, and ends: "
                what += "ambiguous option"
                edits = before(script, launch.program.words[0], "-- ")
                yield Hit(
                    script.at_word(word),
                    what,
                    f"torchrun ... -- {launch.program.words[0].text} {name}",
                    edits=edits,
                )
                break


_LONG = re.compile(r"--[a-z][\w-]*", re.ASCII)
_FLAGS_OF_TORCHRUN = ("help", "standalone", "module", "no-python", "run-path")


def _torchrun_options() -> list[str]:
    """The long options of torchrun in both spellings; argparse takes any beginning of one for it."""
    from sbatchgen.shell.tools import SYNTAX

    names = sorted({*SYNTAX["torchrun"].values, *_FLAGS_OF_TORCHRUN})
    return [f"--{name}" for name in names] + [f"--{name.replace('-', '_')}" for name in names if "-" in name]


@RULES.add("SB327", "warning", "srun reads the list that a loop goes through")
def _reads_stdin(script: Subject) -> Iterator[Hit]:
    loop: Command | None = None
    readers = {id(launch.command): launch for launch in script.processes.steps}
    for command in script.body.commands if readers and script.named("read") else ():
        context = command.context
        if not context.loop:
            loop = None
        elif command.name == "read" and context.condition:
            loop = command
        elif loop is not None and id(command) in readers:
            step = readers[id(command)].step
            fed = any(one.operator in ("<", "<<<", "<<", "<<-") for one in command.redirects)
            if step and not fed and not (command.pipe and command.stage) and step.option("input") is None:
                what = "srun reads the input of the loop: only the first line is worked on"
                yield Hit(script.at_word(step.words[0]), what, "srun --input=none, or </dev/null behind it")


def _asked_tasks(script: Subject) -> int:
    """The tasks that the directives ask for."""
    job = script.job
    return job.ntasks or job.nodes * (job.ntasks_per_node or 1)


def _plural(count: int, name: str) -> str:
    return name if count == 1 else f"{name}es" if name.endswith("s") else f"{name}s"


def _head(launch: Launch) -> str:
    """The first words of a launch, to show how it goes on."""
    return " ".join(word.text for word in launch.command.words[:2]) + " ..."


def _first(command: Command) -> Word | Command:
    return command.words[0] if command.words else command


def _value(option: Option, tool: Tool | None) -> str:
    """The value of an option, with what can't be followed as it is written."""
    if option.value is not None or option.value_word is None or tool is None:
        return option.value or ""
    text = tool.body.text_of(option.value_word)
    return text.partition("=")[2] if option.value_word is option.word else text


def _at_value(script: Subject, option: Option) -> Place:
    return script.at_word(option.value_word or option.word)


def _options_of(launcher: Tool | None, names: dict[str, tuple[str, ...]]) -> Iterator[Option]:
    for name in names.get(launcher.name, ()) if launcher else ():
        if launcher and (option := launcher.option(name)):
            yield option


def _group(launcher: Tool | None, script: Subject) -> int | None:
    """How many nodes a launcher is told of; None where that can't be told."""
    from sbatchgen.rules.processes import number

    if launcher is None:
        return None
    names = {"torchrun": "nnodes", "accelerate launch": "num-machines", "deepspeed": "num-nodes"}
    option = launcher.option(names.get(launcher.name, ""))
    if option is None:
        return 1 if launcher.name != "deepspeed" else None
    return number(option, launcher, script.job)


def _is_spread(launch: Launch, script: Subject) -> bool:
    nodes = launch.nodes(script.job)
    return launch.step is not None and nodes is not None and nodes > 1


def _has_whole_nodes(script: Subject) -> bool:
    """Whether the job takes all GPUs of its nodes, so that no other training shares them."""
    profile = script.profile
    known = {str(name): one for name, one in profile.partitions.items()} if profile else {}
    partitions = [known.get(name) for name in script.job.partitions]
    gpus = script.job.gpu_count
    return bool(partitions and gpus) and all(
        one and one.gpus_per_node and gpus >= one.gpus_per_node for one in partitions
    )


def _ports(script: Subject) -> Iterator[tuple[Place, str]]:
    """Each place where a port is written out, and the port."""
    used = script.processes.trainings
    if all(launch.launcher and "standalone" in launch.launcher.options for launch in used):
        return
    for one in script.body.sets:
        if one.word is not None and re.fullmatch(r"(?:MASTER|MAIN_PROCESS|RDZV)_PORT", one.name):
            yield script.at(one.line, one.column), one.value or ""
    for launch in used:
        launcher = launch.launcher
        if launcher is None or "standalone" in launcher.options:
            continue
        for name in ("rdzv-endpoint", _PORTS[launcher.name]):
            option = launcher.option(name)
            if option and option.value_word and _is_written(option.value_word):
                yield _at_value(script, option), _value(option, launcher).rpartition(":")[2]


def _is_written(word: Word) -> bool:
    """Whether the end of a word is written in it, and is no variable's."""
    return bool(word.pieces) and word.pieces[-1].kind == "text"


def _doubtful_addresses(script: Subject) -> Iterator[tuple[Place, str]]:
    """Commands in an assignment of an address that give what other nodes can't use."""
    names = [one for one in script.body.sets if one.word is not None and _ADDRESS_NAME.fullmatch(one.name)]
    if not names:
        return
    started = {id(launch.command): launch.program.words for launch in script.processes.steps}
    for command in script.named("hostname", "echo", "srun"):
        own = command.context.substitution and not command.context.trap
        if not own or not any(one.at <= command.at < one.end for one in names):
            continue
        words = started.get(id(command), command.words)
        name = words[0].text if words else ""
        values = [word.value or "" for word in words[1:]]
        if name == "echo" and values and LOOPBACK.match(values[0]):
            what = (
                f"{values[0]} in place of the first node hides that it was not found: every node trains alone"
            )
            yield script.at_word(words[0]), what
        elif name == "hostname" and _ADDRESS_OPTIONS & set(values):
            what = (
                f"{' '.join(['hostname', *values])} may be 127.0.1.1, or several addresses: then every node "
            )
            what += "waits for itself"
            yield script.at_word(words[0]), what


_ADDRESS_OPTIONS = frozenset(("-i", "-I", "--ip-address", "--all-ip-addresses"))


def _expanded_early(script: Subject, launch: Launch, names: frozenset[str]) -> Iterator[tuple[Word, str]]:
    """The words of a step in which the batch shell expands a variable of each task, with the variable."""
    body = script.body
    step = launch.step
    for word in step.words[1:] if step else ():
        if word.source is body.source and "$" in word.text:
            for piece in body.followed(word).pieces:
                if piece.kind == "variable" and piece.name in names:
                    yield word, piece.name


def _exported_early(
    script: Subject, launch: Launch, names: frozenset[str]
) -> Iterator[tuple[Assignment, str]]:
    """The variables that a step gets from the batch script with what is each task's own, with that name."""
    for one in (*script.body.sets, *launch.command.prefix):
        is_given = one.prefix or (one.exported and not one.context.branch and one.at < launch.command.at)
        if not is_given or one.word is None or (one.prefix and one not in launch.command.prefix):
            continue
        found = next((piece.name for piece in one.word.pieces if piece.name in names), None)
        if found:
            yield one, found


def _same_loop(one: Command, command: Command) -> bool:
    """Whether a command in a loop is one of those that the loop starts in the background."""
    return one.context.loop and one.background and command.context.loop and one.name not in KEEPERS


def _takes_all(launch: Launch, script: Subject) -> bool:
    """Whether a step takes all CPUs of the job's nodes."""
    step = launch.step
    if (
        step is None
        or {"exact", "overlap", "exclusive", "cpus-per-task", "nodelist", "relative"} & step.options.keys()
    ):
        return False
    nodes = launch.nodes(script.job)
    return nodes is None or nodes >= script.job.nodes


def _sleeps(words: list[str]) -> float:
    """The seconds of sleep(1)."""
    total = 0.0
    for word in words:
        if word in ("inf", "infinity"):
            return float("inf")
        if match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", word, re.ASCII):
            total += float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    return total
