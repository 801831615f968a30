"""Rules about Slurm steps: their variables, steps in the background, steps that block or repeat each other.

Sources: srun(1) and sbatch(1) of Slurm 22.05 and the release notes up to 26.05; torch/distributed/run.py of
torch 2.13; bash(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.quoting import counted
from sbatchgen.check.bash import Assignment, Command, Word
from sbatchgen.check.executables.program import programs
from sbatchgen.check.rules.edits import insert_line_after
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.rules.step_resources import takes_all_cpus, takes_all_gpus
from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

_AWAITED_PROGRAMS = programs("keeps")  # programs for which the script waits, such as sleep
POLLING_PROGRAMS = programs("polls")  # programs that ask slurmctld, such as squeue
# Variables that Slurm sets to another value for each task or each node.
TASK_VARIABLES = frozenset(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID"))
# Variables with the numbers of a node's GPUs, which may differ between nodes.
NODE_VARIABLES = frozenset(
    ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
)
# A job with this number of GPUs on a node or more usually has whole nodes, where the numbers are the same.
MANY_GPUS = 4
_RETURNS_AT_ONCE = (
    "returns at once: bash continues, the script ends, and Slurm kills what it started",
    "start the program itself",
)
# Programs whose processes leave the job, or that need a terminal -> the message without the program's name at
# its start, and the fix.
_LEAVING_PROGRAMS = {
    "sudo": ("may ask for a password, which a batch job can't type", "remove it"),
    "ssh": (
        "starts processes outside the job: Slurm neither limits nor ends them, nor sets their variables",
        "srun --nodelist=HOST --ntasks=1 COMMAND",
    ),
    "docker": (
        "starts the container outside the job: Slurm neither limits nor ends it",
        "apptainer exec IMAGE, or srun --container-image=IMAGE",
    ),
    "screen": _RETURNS_AT_ONCE,
    "tmux": _RETURNS_AT_ONCE,
    "nohup": ("does nothing in a batch job, which has no terminal", "remove it"),
}
# Programs that scripts often start on purpose: a site may allow sudo, and ssh may go to another cluster.
USUALLY_MEANT_PROGRAMS = programs("usually-meant")
# Arguments of sleep from an hour on: 3600, 90m, 1h, infinity.
_HOUR_OR_MORE = re.compile(
    r"inf(?:inity)?|(?:3[6-9]\d\d|[4-9]\d{3}|\d{5,})(?:\.\d+)?s?|(?:[6-9]\d|\d{3,})(?:\.\d+)?m|[1-9]\d*(?:\.\d+)?[hd]",
    re.ASCII,
)
# A script with such a text starts something on each node of its job.
_LISTS_NODES = re.compile(r"show hostnames|SLURM_(?:JOB_)?NODELIST|SLURM_LAUNCH_NODE")
_IDLE_PROGRAMS = programs("waits")  # programs that run on while the GPUs are idle, such as sleep


@RULES.add(
    "SB308",
    "warning",
    "a per-task variable that the batch shell expands",
    words=(*TASK_VARIABLES, *NODE_VARIABLES),
)
def _variable_expanded_early(script: JobScript) -> Iterator[Hit]:
    has_seen_native = False  # whether a launch without a launcher was judged, for which exports are reported
    if not any(use.name in TASK_VARIABLES | NODE_VARIABLES for use in script.body.variable_uses):
        return
    for launch in script.steps:
        tasks, nodes = launch.tasks, launch.nodes
        if tasks is None or tasks < 2:
            continue
        names = TASK_VARIABLES if nodes != 1 else TASK_VARIABLES - {"SLURM_NODEID"}
        shares_nodes = 0 < script.resources.gpu_count < MANY_GPUS and not script.has_own_nodes
        if nodes and nodes > 1 and shares_nodes:
            names |= NODE_VARIABLES
        for word, name in _expanded_early(script, launch, names):
            has_rendezvous = launch.launcher and launch.launcher.option("rdzv-backend")
            if has_rendezvous and re.search("node[-_]rank", launch.command.text):
                continue  # the rendezvous gives each node its rank, whatever --node-rank says
            value = "the GPUs of the first node" if name in NODE_VARIABLES else "the batch script's value"
            what = f"${name} is expanded before srun starts: all {tasks} tasks get {value}"
            fix = f"single quotes: srun bash -c '... ${name} ...'"
            yield Hit(script.at_word(word), what, fix)
            break
        if launch.runs_rank_per_task and not has_seen_native:
            has_seen_native = True
            for assignment, name in _exported_early(script, launch, names):
                what = f"{assignment.name}=${name} is set before srun starts: all {tasks} tasks get the same "
                what += "value, 0"
                fix = f"srun bash -c 'export {assignment.name}=${name}; exec python ...'"
                yield Hit(script.at_start(assignment), what, fix)


@RULES.add("SB309", "error", "a script that ends before its background processes", words=("&",))
def _unawaited_background(script: JobScript) -> Iterator[Hit]:
    """Find the last program in the background, if the script ends without waiting for it."""
    in_background = [
        launch for launch in script.launches if launch.command.in_background and not launch.is_helper
    ]
    if not in_background:
        return
    command = in_background[-1].command
    context = command.context
    is_single_stage = not command.pipe or len(command.pipe.stages) == 1
    is_conditional = context.in_branch and not context.in_loop
    if context.function or context.in_substitution or context.trap_signals or is_conditional:
        return
    may_wait = script.body.traps or script.sources_commands
    if may_wait or script.named("eval", "wait", "coproc", "fg", "exec"):
        return
    same_pipe = {id(other) for stage in command.pipe.stages for other in stage} if command.pipe else set()
    following = (other for other in script.body.commands if other.at > command.at)
    later = [other for other in following if id(other) not in same_pipe and not other.context.function]
    if later and not is_single_stage:
        return
    # Of the later commands, those for which the script waits.
    in_foreground = [
        other
        for other in later
        if other.name in _AWAITED_PROGRAMS or not (other.context.in_loop and other.in_background)
    ]
    if any(other.context.in_loop or not _is_quick(other) for other in in_foreground):
        return  # the background program may end before a loop or a slow command does
    if any(launch.command.at > command.at and not launch.is_helper for launch in script.launches):
        return
    what = "the script ends while this runs in the background: Slurm then kills it"
    edits = insert_line_after(script, command, "wait")
    yield Hit(script.at_command(command), what, "add a last line: wait", edits=edits)


QUICK_PROGRAMS = programs("quick")  # programs that end in a moment, such as echo


def _is_quick(command: Command) -> bool:
    """Return whether a command ends before a process in the background does."""
    return command.is_test or command.name in QUICK_PROGRAMS


@RULES.add("SB310", "warning", "job steps that block each other", words=("&",))
def _blocking_steps(script: JobScript) -> Iterator[Hit]:
    in_background = [launch for launch in script.steps if launch.command.in_background]
    greedy = [
        launch for launch in in_background if takes_all_cpus(launch, script) or takes_all_gpus(launch, script)
    ]
    text = script.body.source.text
    awaited = [launch for launch in greedy if _WAIT_AFTER_STEP.match(text, launch.command.end)]
    # The number of greedy steps. A loop starts its step several times, for which 2 is enough here.
    count = sum(2 if launch.command.context.in_loop and launch not in awaited else 1 for launch in greedy)
    if count == 1:
        yield from _blocked_foreground(script, greedy[0])
    if count < 2:
        return
    if step := greedy[0].step:
        takes = "CPUs" if any(takes_all_cpus(launch, script) for launch in greedy) else "GPUs"
        what = f"each srun takes all {takes} of its nodes: the steps run one after another"
        fix = "srun --exact --ntasks=1 --cpus-per-task=N --mem=N"
        if option := script.resources.gpu_option:  # with other options, 22.05 gives a step all GPUs
            fix += f" --{option}={'gpu:' * (option == 'gres')}N"
        yield Hit(script.at_word(step.words[0]), what, fix)


_WAIT_AFTER_STEP = re.compile(r"\s*&\s*(?:#.*\s*)?wait\b")  # the text after the step in: srun ... & wait


def _blocked_foreground(script: JobScript, first: Launch) -> Iterator[Hit]:
    """Find a step in the foreground that waits for CPUs which the step `first` in the background holds."""
    # The offsets of commands after which the first step has ended.
    ends = [end.at for end in script.named("wait", "kill", "scancel") if end.at > first.command.at]
    for launch in script.steps:
        command = launch.command
        is_in_foreground = not (command.in_background or command.context.in_substitution)
        if command.at <= first.command.at or not is_in_foreground:
            continue
        if (ends and ends[0] < command.at) or not takes_all_cpus(launch, script):
            continue
        if launch.step is not None and not command.context.in_branch and not first.command.context.in_branch:
            what = f"the srun in line {first.command.line} holds all CPUs of its nodes while it runs in the "
            what += "background: this one waits for it"
            fix = "srun --overlap --mem=0, or --exact for both"
            yield Hit(script.at_word(launch.step.words[0]), what, fix)
            return


@RULES.add(
    "SB315",
    "warning",
    "CUDA_VISIBLE_DEVICES with GPUs that the job does not have",
    words=("CUDA_VISIBLE_DEVICES",),
)
def _gpus_of_others(script: JobScript) -> Iterator[Hit]:
    gpus = script.resources.gpu_count
    if not gpus:
        return
    for assignment in script.body.assignments_of("CUDA_VISIBLE_DEVICES"):
        if assignment.is_prefix:
            continue
        value = assignment.value or ""
        if re.fullmatch(r"\d{1,3}(?:,\d{1,3})*", value, re.ASCII) and max(map(int, value.split(","))) >= gpus:
            own_gpus = "one GPU on a node, number 0" if gpus == 1 else f"GPUs 0 to {gpus - 1} on a node"
            what = f"CUDA_VISIBLE_DEVICES={value}, but the job has {own_gpus}: "
            what += "others don't exist, or are another job's"
            yield Hit(script.at_start(assignment), what, "remove it: Slurm sets it")


@RULES.add("SB317", "warning", "Slurm commands in a loop", pedantic=True, words=("watch", *POLLING_PROGRAMS))
def _polling_loop(script: JobScript) -> Iterator[Hit]:
    for command in script.named("watch", *POLLING_PROGRAMS):
        name = command.name
        if name == "watch" and command.arguments:
            name = next((word for word in command.arguments if word in POLLING_PROGRAMS), "")
        elif not command.context.in_loop:
            continue
        # `scontrol show hostnames` does not ask slurmctld.
        if name == "scontrol" and ("show" not in command.arguments or "host" in command.text):
            continue
        if name:
            what = f"{name} in a loop: each call is work for slurmctld, which serves the whole cluster"
            fix = "use a dependency: --dependency=afterok:JOBID"
            fix = "use one job array: --array=0-9" if name == "sbatch" else fix
            yield Hit(script.at_command(command), what, fix)


@RULES.add("SB318", "warning", "a command that runs outside the job", words=(*_LEAVING_PROGRAMS,))
def _commands_outside_job(script: JobScript) -> Iterator[Hit]:
    for launch in script.steps:
        if program := launch.step_program:
            name = program.name.partition(" ")[0]
            if name in ("sudo", "docker"):
                what, fix = _LEAVING_PROGRAMS[name]
                yield Hit(script.at_word(program.words[0]), f"{name} {what}", fix)
    commands = [] if script.submits else script.named(*_LEAVING_PROGRAMS)
    for command in commands:
        if not command.words:
            continue
        name, words = command.name, command.words[1:]
        # The first operand: the host of ssh, the verb of docker, the program of sudo.
        operand = next((word for word in words if not word.text.startswith("-")), None)
        operand_text = operand.text if operand else ""
        if name == "docker" and operand_text not in ("run", "exec"):
            continue
        if name == "ssh" and any(re.fullmatch(r"-(?=\w*[LRDNV])\w+", word.text) for word in words):
            continue  # ssh makes a tunnel (-L, -R, -D, -N) or shows its version (-V)
        if name == "sudo" and operand_text.startswith("/"):
            continue  # the site may let all users run this program
        flags = "".join(word.text[1:] for word in words if re.fullmatch("-[it]{1,2}", word.text))
        if name == "docker" and {"i", "t"} <= set(flags):
            what = f"docker {operand_text} -it needs a terminal, which a batch job does not have: "
            what += "it ends at once"
            yield Hit(script.at_command(command), what, f"docker {operand_text} without -t")
            continue
        what, fix = _LEAVING_PROGRAMS[name]
        goes_to_own_node = (
            name == "ssh" and operand and operand.variables and _LISTS_NODES.search(script.text)
        )
        is_meant = name in USUALLY_MEANT_PROGRAMS and not goes_to_own_node
        yield Hit(script.at_command(command), f"{name} {what}", fix, "info" if is_meant else None)


@RULES.add("SB319", "info", "a job that holds idle GPUs", words=(*_IDLE_PROGRAMS,))
def _idle_gpus(script: JobScript) -> Iterator[Hit]:
    if not script.resources.gpu_count:
        return
    for command in script.named(*_IDLE_PROGRAMS):
        arguments = command.arguments
        if command.name == "sleep" and not any(map(_HOUR_OR_MORE.fullmatch, arguments)):
            continue
        if command.name == "tail" and arguments[-1:] != ["/dev/null"]:  # tail -f /dev/null never ends
            continue
        if command.words:
            gpus = script.resources.nodes * script.resources.gpu_count
            command_start = " ".join((command.path, *arguments[:1]))
            what = f"{command_start} holds {counted(gpus, 'GPU')} all the time, even if idle"
            yield Hit(script.at_command(command), what, "limit it: timeout 1h COMMAND")


@RULES.add("SB327", "warning", "srun in a loop that reads the loop's input", words=("read",))
def _step_that_reads_loop_input(script: JobScript) -> Iterator[Hit]:
    steps = {id(launch.command): launch.step for launch in script.steps}
    in_read_loop = False  # whether the loop around the command is a `while read`
    if not steps or not script.named("read"):
        return
    for command in script.body.commands:
        context = command.context
        if not context.in_loop:
            in_read_loop = False
        elif command.name == "read" and context.is_tested:
            in_read_loop = True
        elif in_read_loop and id(command) in steps:
            step = steps[id(command)]
            if command.in_background:
                continue  # a background command has no stdin
            has_input = any(redirect.operator in ("<", "<<<", "<<", "<<-") for redirect in command.redirects)
            is_piped = command.pipe is not None and command.stage > 0
            if step and not has_input and not is_piped and step.option("input") is None:
                what = "srun reads the loop's input: only the first line is processed"
                yield Hit(script.at_word(step.words[0]), what, "srun --input=none, or </dev/null after it")


def _expanded_early(script: JobScript, launch: Launch, names: frozenset[str]) -> Iterator[tuple[Word, str]]:
    """Yield the words of a step in which the batch shell expands a per-task variable, and the variable."""
    body = script.body
    step = launch.step
    if not step:
        return
    for word in step.words[1:]:
        if word.source is body.source and "$" in word.text:
            for piece in body.resolve(word).pieces:
                if piece.kind == "variable" and piece.name in names:
                    yield word, piece.name


def _exported_early(
    script: JobScript, launch: Launch, names: frozenset[str]
) -> Iterator[tuple[Assignment, str]]:
    """Yield the assignments that a launch inherits, with a per-task variable as value, and this variable."""
    for assignment in script.body.assignments:
        if assignment.is_prefix:
            is_inherited = assignment in launch.command.prefix_assignments
        else:
            is_earlier = assignment.at < launch.command.at
            is_inherited = assignment.is_exported and is_earlier and not assignment.context.in_branch
        pieces = assignment.word.pieces if assignment.word and is_inherited else ()
        if name := next((piece.name for piece in pieces if piece.name in names), None):
            yield assignment, name


@RULES.add(
    "SB353",
    "warning",
    "a step within a step",
    source="srun(1)",
    words=("srun",),
    report="https://github.com/skypilot-org/skypilot/pull/10309",
)
def _nested_step(script: JobScript) -> Iterator[Hit]:
    for launch in script.steps:
        # With `unset`, the task removes the step's variables first.
        if [tool.name for tool in launch.tools].count("srun") > 1 and "unset" not in launch.command.text:
            what = "the inner srun takes the step's SLURM_ variables for its options, as CPUs and tasks for "
            what += "each node, and without --overlap it waits for what the step itself holds"
            fix = "start it from the script, on a line of its own"
            yield Hit(script.at_command(launch.command), what, fix)


@RULES.add("SB328", "warning", "a serial program that every task runs", words=("srun",))
def _serial_step(script: JobScript) -> Iterator[Hit]:
    for launch in script.steps:
        tasks, program = launch.tasks, launch.program
        name = program.name.rpartition("/")[2]
        gmx_command = program.body.value(program.rest[0]) if name == "gmx" and program.rest else ""
        if not tasks or tasks < 2:
            continue
        if launch.step and name in SERVER_PROGRAMS:
            what = f"srun starts {name} {tasks} times: each is a server of its own, on the same port"
            yield Hit(script.at_word(launch.step.words[0]), what, f"srun --ntasks=1 {name} ...")
        if not (name in SERIAL_PROGRAMS or gmx_command in _SERIAL_GMX_VERBS):
            continue
        is_on_node_disk = any(_NODE_DISK.search(program.body.text_of(word)) for word in program.rest)
        fills_each_node = launch.tasks_per_node == 1 and name in _STAGING_PROGRAMS
        if fills_each_node or is_on_node_disk or launch.mpi:
            continue
        if launch.step:
            what = f"srun starts {name} {tasks} times, with the same arguments each: they write the same "
            what += "files"
            yield Hit(script.at_word(launch.step.words[0]), what, f"srun --ntasks=1 {name} ...")
    yield from _repeated_preparation(script)
    yield from _repeated_training(script)


def _repeated_training(script: JobScript) -> Iterator[Hit]:
    """Find a program for one process that srun starts as several tasks, which all write the same file."""
    native = [launch for launch in script.trainings if launch.runs_rank_per_task and (launch.tasks or 0) > 1]
    if not native or script.named("cd") or _TASK_MARK.search(script.text):
        return
    for launch in native:
        tasks, source = launch.tasks, script.source_of(launch)
        if source and source.trains_alone and source.saved_files:
            name = launch.program.name
            what = f"srun starts {name} {tasks} times, and {name} knows nothing of other processes: each "
            what += f"does the same work and writes {source.saved_files[0].name}"
            yield Hit(script.at_command(launch.command), what, f"srun --ntasks=1 ... {name}")
            return


def _repeated_preparation(script: JobScript) -> Iterator[Hit]:
    """Find commands such as rm -r, git clone or pip install that all tasks of a step run in one place."""
    for launch in script.steps:
        tasks, has_shared_node = launch.tasks or 0, (launch.tasks_per_node or 1) > 1
        # Pyxis starts one container for all tasks of a node. Other containers are made for each task, and
        # their tasks share nothing.
        has_shared_container = has_shared_node and all(container.is_pyxis for container in script.containers)
        if tasks < 2 or launch.mpi or (script.containers and not has_shared_container):
            continue
        commands = (command for _, body in launch.shell_strings for command in body.commands)
        for command in commands:
            text = command.text + "".join(_variable_values(script, command.text))
            has_own_place = _TASK_MARK.search(command.source.text) or _NODE_DISK.search(text)
            if command.context.is_top_level and not has_own_place and _ONCE_COMMAND.match(command.text):
                what = f"each of the {tasks} tasks runs {' '.join(command.text.split())[:50]}, in the same "
                what += "place, while others already use it"
                yield Hit(script.at_command(launch.command), what, "run it once, on a line before srun")
                return


def _variable_values(script: JobScript, text: str) -> Iterator[str]:
    """Yield the values that the script gives to the variables in a text of bash, each after a blank."""
    for assignment in script.body.assignments:
        if assignment.word and assignment.name in text and re.search(rf"\$\{{?{assignment.name}\b", text):
            yield " " + script.body.text_of(assignment.word).strip('"')


# Commands that one task should run for all.
_ONCE_COMMAND = re.compile(
    r"(?:rm -[a-zA-Z]*[rR][a-zA-Z]*|git clone|(?:python\S* -m )?pip\S* install|uv sync"
    r"|conda (?:create|install))\b"
)
# A script with such a text makes its tasks do different things, or wait for each other.
_TASK_MARK = re.compile(r"PROCID|LOCALID|NODEID|\bRANK\b|LOCAL_RANK|hostname|HOSTNAME|mktemp|flock|\$\$")
# Folders on a node's own disk.
_NODE_DISK = re.compile(r"(?:^|=|\s)(?:/tmp|/var/tmp|/dev/shm)\b|\$\{?(?:SLURM_|JOB)?TMP(?:DIR)?\b")
_STAGING_PROGRAMS = programs("stages")  # programs that fill the local disk of each node
SERIAL_PROGRAMS = programs("serial")  # programs that a step should start once
SERVER_PROGRAMS = programs("waits") - programs("helper")  # such as jupyter, but not sleep
# Commands of GROMACS that run as one process, such as gmx grompp.
_SERIAL_GMX_VERBS = ("pdb2gmx", "editconf", "solvate", "genion", "grompp", "trjconv", "energy", "make_ndx")
