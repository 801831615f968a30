"""Rules about the steps of a script: their variables, their ends, their statuses and what they share.

Sources: srun(1) and sbatch(1) of Slurm 22.05 and the release notes up to 26.05; torch/distributed/run.py of
torch 2.13; bash(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.quoting import counted
from sbatchgen.check.bash import Assignment, Command, Word
from sbatchgen.check.executables.program import programs
from sbatchgen.check.rules.edits import line_after, line_before
from sbatchgen.check.rules.printed_status import only_printed
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.script.launches import HELPERS, Launch
from sbatchgen.check.script.resource_request import GPU_OPTIONS
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

KEEPERS = programs("keeps")
SMALL_PROGRAMS = programs("last")
POLLS = programs("polls")
OF_A_TASK = frozenset(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID"))
OF_A_NODE = frozenset(("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"))
MANY_GPUS = 4  # a job with this number of GPUs on a node usually has whole nodes, with equal numbers
_ENDS_ALONE = (
    "returns at once: bash continues, the script ends, and Slurm kills what it started",
    "start the program itself",
)
_LEAVING = {
    "sudo": ("may ask for a password, which a batch job can't type", "remove it"),
    "ssh": (
        "starts processes outside the job: Slurm neither limits nor ends them, nor sets their variables",
        "srun --nodelist=HOST --ntasks=1 COMMAND",
    ),
    "docker": (
        "starts the container outside the job: Slurm neither limits nor ends it",
        "apptainer exec IMAGE, or srun --container-image=IMAGE",
    ),
    "screen": _ENDS_ALONE,
    "tmux": _ENDS_ALONE,
    "nohup": ("does nothing in a batch job, which has no terminal", "remove it"),
}
USUALLY_MEANT = frozenset(("nohup", "sudo", "ssh"))  # sites may allow sudo, ssh may leave the cluster
_AN_HOUR = re.compile(
    r"inf(?:inity)?|(?:3[6-9]\d\d|[4-9]\d{3}|\d{5,})(?:\.\d+)?s?|(?:[6-9]\d|\d{3,})(?:\.\d+)?m|[1-9]\d*(?:\.\d+)?[hd]",
    re.ASCII,
)
_NODES = re.compile(r"show hostnames|SLURM_(?:JOB_)?NODELIST|SLURM_LAUNCH_NODE")
_SERVER = re.compile(r"\bjupyter|\brserver\b|\bcode-server\b|\btensorboard\b|--NotebookApp")
_WAITING = programs("waits")


@RULES.add(
    "SB308", "warning", "a per-task variable that the batch shell expands", words=(*OF_A_TASK, *OF_A_NODE)
)
def _expanded_in_the_task(script: JobScript) -> Iterator[Hit]:
    exported = False
    used = any(use.name in OF_A_TASK | OF_A_NODE for use in script.body.uses)
    for launch in script.steps if used else ():
        tasks, nodes = launch.tasks, launch.nodes
        if tasks is None or tasks < 2:
            continue
        names = OF_A_TASK if nodes != 1 else OF_A_TASK - {"SLURM_NODEID"}
        if nodes and nodes > 1 and 0 < script.resources.gpu_count < MANY_GPUS and not script.has_nodes_alone:
            names |= OF_A_NODE
        for word, name in _expanded_early(script, launch, names):
            c10d = launch.launcher and launch.launcher.option("rdzv-backend")
            if c10d and re.search("node[-_]rank", launch.command.text):
                continue  # the rendezvous gives the agents their ranks
            gets = "the GPUs of the first node" if name in OF_A_NODE else "the batch script's value"
            what = f"${name} is expanded before srun starts: all {tasks} tasks get {gets}"
            fix = f"single quotes: srun bash -c '... ${name} ...'"
            yield Hit(script.at_word(word), what, fix)
            break
        if launch.is_native and not exported:
            exported = True
            for assignment, name in _exported_early(script, launch, names):
                what = f"{assignment.name}=${name} is set before srun starts: all {tasks} tasks get the same "
                what += "value, 0"
                fix = f"srun bash -c 'export {assignment.name}=${name}; exec python ...'"
                yield Hit(script.at_start(assignment), what, fix)


@RULES.add("SB309", "error", "a script that ends before its background processes", words=("&",))
def _background_awaited(script: JobScript) -> Iterator[Hit]:
    last = [launch for launch in script.launches if launch.command.background and not launch.is_helper]
    if not last or not last[-1].command.background:
        return
    command = last[-1].command
    context = command.context
    alone = not command.pipe or len(command.pipe.stages) == 1
    if context.function or context.substitution or context.trap or (context.branch and not context.loop):
        return
    unseen = script.body.traps or script.sources_commands
    if unseen or script.named("eval", "wait", "coproc", "fg", "exec"):
        return
    same = {id(each) for stage in command.pipe.stages for each in stage} if command.pipe else set()
    after = (each for each in script.body.commands if each.at > command.at)
    rest = [each for each in after if id(each) not in same and not each.context.function]
    if rest and not alone:
        return
    # A loop may start the other programs in the background too.
    later = [each for each in rest if each.name in KEEPERS or not (each.context.loop and each.background)]
    if any(each.context.loop or not (each.test or each.name in QUICK) for each in later):
        return
    if any(launch.command.at > command.at and not launch.is_helper for launch in script.launches):
        return
    what = "the script ends while this runs in the background: Slurm then kills it"
    edits = line_after(script, command, "wait")
    yield Hit(script.at_command(command), what, "add a last line: wait", edits=edits)


QUICK = programs("quick")


@RULES.add("SB310", "warning", "job steps that block each other", words=("&",))
def _steps_share(script: JobScript) -> Iterator[Hit]:
    behind = [launch for launch in script.steps if launch.command.background]
    waiting = [launch for launch in behind if _takes_all(launch, script) or _takes_gpus(launch, script)]
    text = script.body.source.text
    alone = [launch for launch in waiting if _IS_AWAITED.match(text, launch.command.end)]
    count = sum(2 if launch.command.context.loop and launch not in alone else 1 for launch in waiting)
    if count == 1:
        yield from _waits_in_front(script, waiting[0])
    if count < 2:
        return
    if step := waiting[0].step:
        takes = "CPUs" if any(_takes_all(launch, script) for launch in waiting) else "GPUs"
        what = f"each srun takes all {takes} of its nodes: the steps run one after another"
        fix = "srun --exact --ntasks=1 --cpus-per-task=N --mem=N"
        if option := script.resources.gpu_option:  # with other options, 22.05 gives a step all GPUs
            fix += f" --{option}={'gpu:' * (option == 'gres')}N"
        yield Hit(script.at_word(step.words[0]), what, fix)


_IS_AWAITED = re.compile(r"\s*&\s*(?:#.*\s*)?wait\b")  # a loop that waits before the next step


def _waits_in_front(script: JobScript, first: Launch) -> Iterator[Hit]:
    """Find a step in the foreground that waits for the CPUs of a step in the background."""
    ends = [end.at for end in script.named("wait", "kill", "scancel") if end.at > first.command.at]
    for launch in script.steps:
        command = launch.command
        later = command.at > first.command.at and not command.background and not command.context.substitution
        if not later or (ends and ends[0] < command.at) or not _takes_all(launch, script):
            continue
        if launch.step is not None and not command.context.branch and not first.command.context.branch:
            what = f"the srun in line {first.command.line} holds all CPUs of its nodes while it runs in the "
            what += "background: this one waits for it"
            fix = "srun --overlap --mem=0, or --exact for both"
            yield Hit(script.at_word(launch.step.words[0]), what, fix)
            return


@RULES.add(
    "SB311", "warning", "a pipe that hides a failed program", applies=Applies.NOT_WRITERS, words=("|",)
)
def _pipe_status(script: JobScript) -> Iterator[Hit]:
    body = script.body
    seen: set[int] = set()
    for launch in reversed(script.launches):
        command = launch.command
        pipe = command.pipe
        if pipe is None or id(pipe) in seen or command.stage >= len(pipe.stages) - 1:
            continue
        if not (launch.is_training or launch.step or launch.mpi) or launch.is_helper:
            continue
        if command.context.substitution or body.option_at("pipefail", command.line):
            continue
        if any(use.name == "PIPESTATUS" for use in body.uses):
            continue
        if any(each.name == "set" and "+e" in each.arguments for each in pipe.stages[command.stage]):
            continue  # the script checks the status itself, or ignores it
        seen.add(id(pipe))
        last = next((each.name for each in reversed(pipe.stages[-1]) if each.name), "")
        if command.context.condition and last.endswith("grep"):
            continue  # grep tests the program's output
        aside = _is_aside(script, command)
        what = f"the pipe ends with the status of {last or 'its last command'}: if {_name(command)} fails, "
        what += "the script continues" if aside else "the job is shown as COMPLETED"
        stops, ends = body.option_at("errexit", command.line), body.last in pipe.stages[-1]
        fix = f"set -{'o' if stops or ends else 'eo'} pipefail on a line before it"
        safe = body.language == "bash" and not stops and ends
        edits = line_before(script, command, "set -o pipefail") if safe else ()
        yield Hit(script.at_command(command), what, fix, "info" if aside else None, edits)
    yield from _pipes_of_tasks(script)


def _pipes_of_tasks(script: JobScript) -> Iterator[Hit]:
    """Find pipes that end a task with another status, such as bash -c 'python train.py | tee log'."""
    for launch in script.steps:
        for shell, body in launch.strings if not launch.is_helper else ():
            texts = [*shell.options.values(), body.source.text]
            if any("pipefail" in str(text) or "PIPESTATUS" in str(text) for text in texts):
                continue
            first = launch.program.words[0].at
            pipes = (command.pipe for command in body.commands if command.at <= first < command.end)
            pipe = next((pipe for pipe in pipes if pipe and len(pipe.stages) > 1), None)
            last = pipe.stages[-1][-1] if pipe else None
            if pipe and last and last.name in PASSES_ON and _ENDS_TASK.match(body.source.text, last.end):
                name = launch.program.name if first < last.at else pipe.stages[0][0].name
                what = f"a task ends with the status of {last.name}: if {name} fails, srun ends with 0, and "
                what += "the job is shown as COMPLETED"
                yield Hit(script.at_command(launch.command), what, "set -o pipefail in front, in the string")


# The texts that may follow the last command of a string, also within an if.
_ENDS_TASK = re.compile(r"[\s;]*(?:(?:fi|esac)\b[\s;]*)*\Z|[\s;]*(?:else|elif)\b[^\0]*\bfi[\s;]*\Z")


def _is_aside(script: JobScript, command: Command) -> bool:
    """Return whether a command is a check in an if before the work, such as a test of the network."""
    context = command.context
    later = (launch for launch in script.launches if launch.command.at > command.at and not launch.is_helper)
    work = (launch.command.context for launch in later)
    return context.branch and not context.loop and any(each.loop or not each.branch for each in work)


@RULES.add("SB312", "warning", "a last command that hides a failed program", applies=Applies.NOT_WRITERS)
def _last_status(script: JobScript) -> Iterator[Hit]:
    hits = [*_hidden_by_the_last(script)]
    yield from hits or only_printed(script)


def _hidden_by_the_last(script: JobScript) -> Iterator[Hit]:
    body, last = script.body, script.body.last
    if last is None or any("ERR" in inner.context.trap for _, inner in body.traps):
        return
    always = last.name == "exit" and last.arguments == ["0"]
    small = (last.name in SMALL_PROGRAMS or always) and not last.context.branch and not last.test
    statuses = [use for use in body.uses if use.name in ("?", "PIPESTATUS")]
    is_kept = any(not last.at <= use.at < last.end for use in statuses)  # a printed status is lost
    wait = _wait_for_all(script)
    if wait and (wait is last or (small and not is_kept)):
        kind = (
            "for several processes ends with that of the last"
            if wait.arguments
            else "without a process ends with status 0"
        )
        what = f"wait {kind}: a failed job is shown as COMPLETED"
        fix = "pids+=($!) after each &, and wait $pid for each"
        yield Hit(script.at_command(wait), what, fix, "info" if wait is last else None)
        return
    work = last_work(script)
    if work is None or _SERVER.search(work.text) or body.option_at("errexit", work.line):
        return  # a server only ends when it is killed
    if late := _status_of_another(script, work):
        what = f"$? is the status of {late.name}, not of {work.name}: a failed job is shown as COMPLETED"
        yield Hit(script.at_command(late), what, f"rc=$? right after {work.name}")
        return
    if small and work.at < last.at and not is_kept:
        what = "the script ends with status 0, even if a program failed: a failed job is shown as COMPLETED"
        if not always:
            what = f"the script ends with the status of {last.name}: if {_name(work)} in line {work.line} "
            what += "fails, the job is shown as COMPLETED"
        fix = "set -e at the start, or keep the status: rc=$?; ...; exit $rc"
        yield Hit(script.at_command(last), what, fix)


def _wait_for_all(script: JobScript) -> Command | None:
    """Return the `wait` for several programs in the background that ends the work, if any."""
    waits = script.named("wait")
    at = [launch.command.at for launch in script.launches if not launch.is_helper]
    background = any(launch.command.background and not launch.is_helper for launch in script.launches)
    if not background or not waits or any(wait.context.branch or wait.context.loop for wait in waits):
        return None
    if any(len(wait.words) == 2 and "[@]" not in wait.words[1].text for wait in waits):
        return None  # the wait is for one process
    return waits[-1] if waits[-1].at > at[-1] else None


def _name(command: Command) -> str:
    return command.name[:30] or (command.words[0].text[:30] if command.words else "the command")


def last_work(script: JobScript) -> Command | None:
    """Return the last command that does work: a launch, or any program that always runs and is not small."""
    launched = {id(launch.command) for launch in script.launches if not launch.is_helper}
    if not launched and script.named("sbatch"):
        return None  # the script only submits other scripts
    for command in reversed(script.body.commands):
        context = command.context
        is_launch = id(command) in launched
        sometimes = context.branch and not is_launch
        elsewhere = context.condition or context.function or sometimes or context.substitution
        if is_launch and (elsewhere or command.background):
            return None  # the script may check the status
        if elsewhere or command.background or command.test or (command.pipe and command.stage):
            continue
        does_work = is_launch or (command.name and command.name not in _NO_WORK)
        if does_work and command.arguments != ["--version"] and (command.name != "wait" or command.arguments):
            return command
    return None


def _status_of_another(script: JobScript, work: Command) -> Command | None:
    """Return the small command whose status the script takes for the status of the work, if any."""
    for use in script.body.uses if "$?" in script.text else ():
        if use.name != "?":
            continue
        before = [each for each in script.body.commands if work.at <= each.at and each.end <= use.at]
        nearest = max(before, key=lambda each: each.end, default=None)
        if nearest is not None:
            is_word = nearest is not work and nearest.name in ("date", "echo", "printf")
            return nearest if is_word and nearest.context.top else None
    return None


_NO_WORK = HELPERS | SMALL_PROGRAMS | programs("builtin", "environment")


@RULES.add(
    "SB315",
    "warning",
    "CUDA_VISIBLE_DEVICES with GPUs that the job does not have",
    words=("CUDA_VISIBLE_DEVICES",),
)
def _gpus_chosen(script: JobScript) -> Iterator[Hit]:
    for assignment in script.body.sets:
        if assignment.name != "CUDA_VISIBLE_DEVICES" or assignment.prefix or not script.resources.gpu_count:
            continue
        value = assignment.value or ""
        gpus = script.resources.gpu_count
        if re.fullmatch(r"\d{1,3}(?:,\d{1,3})*", value, re.ASCII) and max(map(int, value.split(","))) >= gpus:
            has = "has one GPU on a node, number 0" if gpus == 1 else f"has GPUs 0 to {gpus - 1} on a node"
            what = f"CUDA_VISIBLE_DEVICES={value}, but the job {has}: "
            what += "others don't exist, or are another job's"
            yield Hit(script.at_start(assignment), what, "remove it: Slurm sets it")


@RULES.add("SB317", "warning", "Slurm commands in a loop", pedantic=True, words=("watch", *POLLS))
def _polls(script: JobScript) -> Iterator[Hit]:
    for command in script.named("watch", *POLLS):
        name = command.name
        if name == "watch" and command.arguments:
            name = next((word for word in command.arguments if word in POLLS), "")
        elif not command.context.loop:
            continue
        if name == "scontrol" and ("show" not in command.arguments or "host" in command.text):
            continue
        if name:
            what = f"{name} in a loop: each call is work for slurmctld, which serves the whole cluster"
            fix = "use a dependency: --dependency=afterok:JOBID"
            fix = "use one job array: --array=0-9" if name == "sbatch" else fix
            yield Hit(script.at_command(command), what, fix)


@RULES.add("SB318", "warning", "a command that runs outside the job", words=(*_LEAVING,))
def _leaves_the_job(script: JobScript) -> Iterator[Hit]:
    for launch in script.steps:
        if program := launch.step_program:
            name = program.name.partition(" ")[0]
            if name in ("sudo", "docker"):
                what, fix = _LEAVING[name]
                yield Hit(script.at_word(program.words[0]), f"{name} {what}", fix)
    for command in script.named(*_LEAVING) if not script.submits else ():
        if not command.words:
            continue
        name, words = command.name, command.words[1:]
        target = next((word for word in words if not word.text.startswith("-")), None)
        first = target.text if target else ""
        if name == "docker" and first not in ("run", "exec"):
            continue
        if name == "ssh" and any(re.fullmatch(r"-(?=\w*[LRDNV])\w+", word.text) for word in words):
            continue
        if name == "sudo" and first.startswith("/"):
            continue  # the site may let all users run this program
        flags = "".join(word.text[1:] for word in words if re.fullmatch("-[it]{1,2}", word.text))
        if name == "docker" and {"i", "t"} <= set(flags):
            what = f"docker {first} -it needs a terminal, which a batch job does not have: it ends at once"
            yield Hit(script.at_command(command), what, f"docker {first} without -t")
            continue
        what, fix = _LEAVING[name]
        to_a_node = name == "ssh" and target and target.variables and _NODES.search(script.text)
        meant = name in USUALLY_MEANT and not to_a_node
        yield Hit(script.at_command(command), f"{name} {what}", fix, "info" if meant else None)


@RULES.add("SB319", "info", "a job that holds idle GPUs", words=(*_WAITING,))
def _idle_gpus(script: JobScript) -> Iterator[Hit]:
    if not script.resources.gpu_count:
        return
    for command in script.named(*_WAITING):
        words = command.arguments
        if command.name == "sleep" and not any(map(_AN_HOUR.fullmatch, words)):
            continue
        if command.name == "tail" and words[-1:] != ["/dev/null"]:
            continue
        if command.words:
            gpus = script.resources.nodes * script.resources.gpu_count
            shown = " ".join((command.path, *words[:1]))
            what = f"{shown} holds {counted(gpus, 'GPU')} all the time, even if idle"
            yield Hit(script.at_command(command), what, "limit it: timeout 1h COMMAND")


@RULES.add("SB327", "warning", "srun in a loop that reads the loop's input", words=("read",))
def _reads_stdin(script: JobScript) -> Iterator[Hit]:
    loop: Command | None = None
    readers = {id(launch.command): launch for launch in script.steps}
    for command in script.body.commands if readers and script.named("read") else ():
        context = command.context
        if not context.loop:
            loop = None
        elif command.name == "read" and context.condition:
            loop = command
        elif loop is not None and id(command) in readers:
            step = readers[id(command)].step
            if command.background:
                continue  # a background command has no stdin
            fed = any(redirect.operator in ("<", "<<<", "<<", "<<-") for redirect in command.redirects)
            if step and not fed and not (command.pipe and command.stage) and step.option("input") is None:
                what = "srun reads the loop's input: only the first line is processed"
                yield Hit(script.at_word(step.words[0]), what, "srun --input=none, or </dev/null after it")


def _expanded_early(script: JobScript, launch: Launch, names: frozenset[str]) -> Iterator[tuple[Word, str]]:
    """Yield the words of a step in which the batch shell expands a task's variable, with its name."""
    body = script.body
    step = launch.step
    for word in step.words[1:] if step else ():
        if word.source is body.source and "$" in word.text:
            for piece in body.followed(word).pieces:
                if piece.kind == "variable" and piece.name in names:
                    yield word, piece.name


def _exported_early(
    script: JobScript, launch: Launch, names: frozenset[str]
) -> Iterator[tuple[Assignment, str]]:
    """Yield exported variables with a per-task variable in their value, and the per-task variable's name."""
    for assignment in script.body.sets:
        exported = assignment.exported and not assignment.context.branch and assignment.at < launch.command.at
        reaches = assignment in launch.command.prefix if assignment.prefix else exported
        pieces = assignment.word.pieces if assignment.word and reaches else ()
        if name := next((piece.name for piece in pieces if piece.name in names), None):
            yield assignment, name


# Options with which a step shares its nodes, uses other nodes, or becomes a job of its own.
_SHARING_OPTIONS = "exact overlap exclusive cpus-per-task nodelist relative het-group partition account"
SHARING_OPTIONS = frozenset(_SHARING_OPTIONS.split())


def _takes_all(launch: Launch, script: JobScript) -> bool:
    """Return whether a step takes all CPUs of the job's nodes."""
    step = launch.step
    if step is None or SHARING_OPTIONS & step.options.keys() or _is_exact(launch, script):
        return False
    nodes = launch.nodes
    return nodes >= script.resources.nodes if nodes is not None else "nodes" not in step.options


def _takes_gpus(launch: Launch, script: JobScript) -> bool:
    """Return whether a step with --exact takes all GPUs of the nodes, as no option gives a number."""
    step, job = launch.step, script.resources
    if step is None or "exact" not in step.options or job.gpus_per_task or not job.gpu_count:
        return False
    others = (SHARING_OPTIONS - {"exact", "cpus-per-task"}) | {*GPU_OPTIONS}
    return not others & step.options.keys() and (launch.nodes is None or launch.nodes >= job.nodes)


def _is_exact(launch: Launch, script: JobScript) -> bool:
    """Return whether a step only takes a part of the job, as srun reads SLURM_CPUS_PER_TASK from 23.11 on.

    Source: such steps wait for each other on 22.05, and run at the same time on 26.05.
    """
    job = script.resources
    if launch.step is None or script.release < "23.11" or not job.cpus_per_task:
        return False
    has_gpus = any(name in launch.step.options for name in GPU_OPTIONS)
    all_tasks = job.ntasks or job.nodes * (job.ntasks_per_node or 1)
    return (has_gpus or not job.gpu_option) and (launch.tasks is None or launch.tasks < all_tasks)


@RULES.add(
    "SB353",
    "warning",
    "a step within a step",
    source="srun(1)",
    words=("srun",),
    report="https://github.com/skypilot-org/skypilot/pull/10309",
)
def _nested(script: JobScript) -> Iterator[Hit]:
    for launch in script.steps:
        if [tool.name for tool in launch.tools].count("srun") > 1 and "unset" not in launch.command.text:
            what = "the inner srun takes the step's SLURM_ variables for its options, as CPUs and tasks for "
            what += "each node, and without --overlap it waits for what the step itself holds"
            yield Hit(
                script.at_command(launch.command), what, "start it from the script, on a line of its own"
            )


@RULES.add("SB328", "warning", "a serial program that every task runs", words=("srun",))
def _serial_step(script: JobScript) -> Iterator[Hit]:
    for launch in script.steps:
        tasks, program = launch.tasks, launch.program
        name = program.name.rpartition("/")[2]
        verb = program.body.value(program.rest[0]) if name == "gmx" and program.rest else ""
        if not tasks or tasks < 2:
            continue
        if launch.step and name in SERVERS:
            what = f"srun starts {name} {tasks} times: each is a server of its own, on the same port"
            yield Hit(script.at_word(launch.step.words[0]), what, f"srun --ntasks=1 {name} ...")
        if not (name in SERIAL or verb in _SERIAL_GROMACS):
            continue
        own_disk = any(_NODE_DISK.search(program.body.text_of(word)) for word in program.rest)
        once_a_node = launch.tasks_per_node == 1 and name in _STAGING
        if once_a_node or own_disk or launch.mpi:
            continue
        if launch.step:
            what = f"srun starts {name} {tasks} times, with the same arguments each: they write the same "
            what += "files"
            yield Hit(script.at_word(launch.step.words[0]), what, f"srun --ntasks=1 {name} ...")
    yield from _once_for_all(script)
    yield from _alone_in_each_task(script)


def _alone_in_each_task(script: JobScript) -> Iterator[Hit]:
    """Find a program that srun starts several times, each a training of its own, with the same saved file."""
    native = [each for each in script.trainings if each.is_native and (each.tasks or 0) > 1]
    if not native or script.named("cd") or _TASK_MARKS.search(script.text):
        return
    for launch in native:
        tasks, source = launch.tasks, script.source_of(launch)
        if source and source.trains_alone and source.saved:
            name = launch.program.name
            what = f"srun starts {name} {tasks} times, and {name} knows nothing of other processes: each "
            what += f"does the same work and writes {source.saved[0].name}"
            yield Hit(script.at_command(launch.command), what, f"srun --ntasks=1 ... {name}")
            return


def _once_for_all(script: JobScript) -> Iterator[Hit]:
    """Find commands such as rm -r, git clone or pip install that each task of a step runs in one place."""
    for launch in script.steps:
        tasks, together = launch.tasks or 0, (launch.tasks_per_node or 1) > 1
        shared = together and all(container.pyxis for container in script.containers)
        if tasks < 2 or launch.mpi or (script.containers and not shared):  # each node has its own image
            continue
        commands = (command for _, body in launch.strings for command in body.commands)
        for command in commands:
            text = command.text + "".join(_values(script, command.text))
            is_its_own = _TASK_MARKS.search(command.source.text) or _NODE_DISK.search(text)
            if command.context.top and not is_its_own and _ONCE.match(command.text):
                what = f"each of the {tasks} tasks runs {' '.join(command.text.split())[:50]}, in the same "
                what += "place, while others already use it"
                yield Hit(script.at_command(launch.command), what, "run it once, on a line before srun")
                return


def _values(script: JobScript, text: str) -> Iterator[str]:
    """Yield the values that the script gives the variables in a text of bash."""
    for made in script.body.sets:
        if made.word and made.name in text and re.search(rf"\$\{{?{made.name}\b", text):
            yield " " + script.body.text_of(made.word).strip('"')


# Commands to run once for all tasks, and texts that tell tasks apart.
_ONCE = re.compile(
    r"(?:rm -[a-zA-Z]*[rR][a-zA-Z]*|git clone|(?:python\S* -m )?pip\S* install|uv sync"
    r"|conda (?:create|install))\b"
)
_TASK_MARKS = re.compile(r"PROCID|LOCALID|NODEID|\bRANK\b|LOCAL_RANK|hostname|HOSTNAME|mktemp|flock|\$\$")
_NODE_DISK = re.compile(r"(?:^|=|\s)(?:/tmp|/var/tmp|/dev/shm)\b|\$\{?(?:SLURM_|JOB)?TMP(?:DIR)?\b")
_STAGING = frozenset(("tar", "unzip", "gunzip", "cp", "rsync"))  # commands that fill each node's own disk
SERIAL = programs("serial")
SERVERS = programs("waits") - programs("helper")
_SERIAL_GROMACS = ("pdb2gmx", "editconf", "solvate", "genion", "grompp", "trjconv", "energy", "make_ndx")


@RULES.add("SB329", "warning", "a pipe that hides a failure from ||", words=("||",))
def _pipe_and_or(script: JobScript) -> Iterator[Hit]:
    body = script.body
    for command in script.named(*PASSES_ON):
        pipe = command.pipe
        if pipe is None or command.stage == 0 or command.stage != len(pipe.stages) - 1:
            continue
        if not command.context.condition or body.option_at("pipefail", command.line):
            continue
        rest = body.source.text[command.end : command.end + 40]
        if re.match(r"[ \t]*\|\|[ \t]*(?:exit|\{[ \t]*echo[^;}]*;[ \t]*exit)\b", rest):
            first = next((command.name for command in pipe.stages[0] if command.name), "")
            if first in ("echo", "printf", "cat", "ls", ""):
                continue
            what = f"|| sees the status of {command.name}: the exit is not reached when {first} fails"
            yield Hit(script.at_command(command), what, "set -o pipefail on a line before it")


PASSES_ON = programs("passes-on")
