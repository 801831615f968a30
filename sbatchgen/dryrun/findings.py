"""What only running shows to be wrong: values that are empty, processes that never meet, steps that wait."""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from sbatchgen.dryrun.found import RULE, at_once, found, may_follow, meetings, own_options
from sbatchgen.dryrun.launchers import apart, of_launchers
from sbatchgen.dryrun.missing import functions_of, last_line, option_of
from sbatchgen.dryrun.run import SCRIPT, DryRun, knows_cpus
from sbatchgen.dryrun.starts import Step, options_of_srun
from sbatchgen.dryrun.step import number_of
from sbatchgen.executables.launcher import LauncherCall
from sbatchgen.executables.program import LAUNCHERS, PROGRAMS, SHELLS, commands, programs
from sbatchgen.finding import Finding, Severity
from sbatchgen.inputs.settings import NETWORK_VARIABLES
from sbatchgen.quoting import counted
from sbatchgen.sandbox.box import BoxLimits

_LAST, _ROUNDS = 200, 5  # commands at the end of a script, and how often those of a loop are among them
_SPOOL = SCRIPT.rpartition("/")[0] + "/"
_READERS = SHELLS | {".", "perl", "source"}  # of files that hold commands
_SHELLS = re.compile(r"(?:^|/)(?:ba|da|k|)sh$|\.sh$")
_UNREADABLE = re.compile(
    r"^(?!/var/spool)(\S+: (?:-c: )?(?:line )?\d+: .*(?:yntax error|unexpected EOF|cannot open).*)$",
    re.MULTILINE,
)
_SSH = re.compile(r"ssh (?:-\S+ )*(?:\w+@)?(?!login|node\d+ )([a-z][a-z-]*\d[a-z]*\d\w+) ")
_CONTAINERS = commands("container")
_NO_IMAGES = commands("launcher", "interpreter", "shell")
_AT_LIMITS = {
    "memory": "needs more than 1 GiB of memory here",
    "processes": f"needs more than {BoxLimits().processes} processes here",
}
_AT_DAMAGE = "damages the sandbox, so that what it started is not known"
MANY = 30  # steps of a script that does not loop; of one that reached its limit, no more are shown


def findings(done: DryRun, failing: DryRun | None = None) -> tuple[Finding, ...]:
    """Return what is wrong with what a script starts; `failing` is its run when every program fails."""
    every = (*_findings(done), *(_lost(failing) if failing else ()))
    return tuple({finding.problem.what: finding for finding in reversed(every)}.values())[::-1]


def may_be_lost(done: DryRun) -> bool:
    """Whether a job that ends with 0 may do so although its programs fail: not if one of them comes last."""
    if not done.steps or done.ended.status or done.ended.limit:
        return False
    end, commands = done.script.body.last, done.script.body.commands
    if end is None or end.pipe or any(command.name in ("exit", "trap") for command in commands):
        return True
    lines = range(end.line, end.end_line + 1)
    return not any(step.line in lines and not step.background for step in done.steps)


def _lost(failing: DryRun) -> Iterator[Finding]:
    """A job that ends with 0 although all that it started failed."""
    if failing.ended.status or failing.ended.limit or not failing.steps or not failing.trace:
        return
    line, command, folder = failing.trace[-1]
    name = command.partition(" ")[0].strip("'").rpartition("/")[2]
    end = failing.script.body.last
    if end and any(step.background and step.line == line for step in failing.steps):
        line, name = end.line, end.name  # its trace may come before that of a process in the background
    if name in ("true", ":"):  # of || true: who writes it wants it
        return
    commands = failing.script.body.commands
    pipe = next((each.pipe for each in commands if each.line <= line <= each.end_line and each.pipe), None)
    if pipe:
        hides = pipe.stages[-1][-1]
        what = f"the job ends with 0 even if every program in it fails: the pipe to {hides.name} hides it"
        yield found(failing, hides.line, what, "set -o pipefail", severity="info", rule="SB311")
        return
    paths = {os.path.normpath(os.path.join(folder, part)) for part in command.split()}  # noqa: PTH118
    if name in _READERS and any(failing.given.files.get(path) == b"" for path in paths):
        return  # the plan made an empty file of it: what it would do is not known
    what = f"the job ends with 0 even if every program in it fails: {name} comes last"
    fix = "set -e at the start, or keep the status: rc=$?; ...; exit $rc"
    if name == "wait":
        fix = "wait for each process by its id: wait $id || exit"
    yield found(failing, line, what, fix, severity="info", rule="SB312")


def _findings(done: DryRun) -> Iterator[Finding]:
    yield from _ending(done)
    yield from _spool(done)
    yield from _strangers(done)
    for step in done.steps:
        if step.refusal and not any(_node_lists(done, step)):
            yield found(
                done, step.line, f"Slurm refuses this step: {step.refusal}", "see -n, -N and -c of srun"
            )
        yield from _empty(done, step)
        yield from _unreadable(done, step)
        yield from _images(done, step)
        yield from _ranks(done, step)
        yield from _interfaces(done, step)
    yield from of_launchers(done)
    yield from _waiting(done)
    yield from _same_gpu(done)


def _ending(done: DryRun) -> Iterator[Finding]:
    """The end before any program, or in the middle, and the end at a limit."""
    line = last_line(done.trace, functions_of(done.script.body))
    err = done.ended.files.get("err", "")
    unread = re.search(
        rf"^{re.escape(SCRIPT)}: (line (\d+): .*(?:syntax error(?!: op)|unexpected EOF).*)$",
        err,
        re.MULTILINE,
    )
    empty = re.search(rf"^{re.escape(SCRIPT)}: line (\d+): (.*: syntax error: op.*)$", err, re.MULTILINE)
    if done.ended.limit == "time" and len(done.steps) >= MANY:
        what = f"the plan ends at its time limit: the script may start more than these {MANY} steps"
        yield found(done, done.steps[-1].line, what, "plan a loop of fewer rounds", severity="info")
    elif done.ended.limit == "time":
        what = "the script still ran after some seconds here, where every program ends at once"
        fix = "see the loop there: it waits for something that did not happen"
        yield found(done, _loop_line(done) or line, what, fix, severity="info")
    elif done.ended.limit:
        after = f"after {counted(len(done.steps), 'step')}" if done.steps else "before any program"
        what = f"the plan ends early, {after}: the script {_AT_LIMITS.get(done.ended.limit, _AT_DAMAGE)}"
        yield found(done, line, what, "see the loop there", severity="warning" if not done.steps else "info")
    elif unread:
        before = "before it starts a program" if not done.steps else "before its end"
        what = f"the script ends with {done.ended.status} {before}: {unread[1]}"
        yield found(
            done, number_of(unread[2]), what, "close what is open, or fill in what is missing", rule="SB814"
        )
    elif not done.steps and done.ended.status and not done.needed:
        what = f"the script ends with {done.ended.status} before it starts a program"
        said = f"{what}: {done.said}" if done.said else what
        yield found(done, line, said, "see this line", severity="info")
    elif not done.steps and not done.needed and done.script.launches:
        launch = done.script.launches[-1]
        what = f"{launch.program.name} is never reached: the script ends with 0 at line {line}"
        yield found(done, launch.command.line, what, "see the conditions around it", severity="info")
    if empty and not may_follow(done):
        what = f"bash can't compute this: {empty[2]}"
        yield found(
            done, number_of(empty[1]), what, "print its variables before this line: one of them is empty"
        )


def _loop_line(done: DryRun) -> int:
    """The first line of those that were run again and again at the end; 0 without such lines."""
    times = Counter(entry.line for entry in done.trace[-_LAST:])
    return min((line for line, count in times.items() if count >= _ROUNDS), default=0)


def _empty(done: DryRun, step: Step) -> Iterator[Finding]:
    """Options without the value that a variable should have given, and values with line breaks."""
    yield from _node_lists(done, step)
    if may_follow(done):
        return
    said = set()
    for words in dict.fromkeys(process.argv for process in step.processes):
        for word, following in zip(words, (*words[1:], None), strict=True):
            name, equals, value = word.partition("=")
            variable = _variable_of(done, name) if name.startswith("--") and name not in said else ""
            given = value if equals else following
            if not variable:
                continue
            if not given or (not equals and given.startswith("--")):
                said.add(name)
                yield _without(done, step, name, variable)
            elif "\n" in given.strip() and name.lstrip("-").replace("_", "-") in _ONE_LINE:
                said.add(name)
                yield _lines(done, step, name, given)


def _without(done: DryRun, step: Step, name: str, variable: str) -> Finding:
    option = option_of(variable) if variable not in done.batch else ""
    if option in done.script.options:
        what = f"{name} has no value: {variable} is empty, because Slurm {done.script.slurm} does not set it"
        fix = f"{name} $SLURM_GPUS_ON_NODE" if "GPUS" in variable else f"{name} with the value of --{option}"
        return found(done, step.line, what, fix, rule="SB408")
    if option:
        what = f"{name} has no value: {variable} is empty, because the job has no --{option}"
        return found(done, step.line, what, f"add #SBATCH --{option}=...", rule="SB408")
    what = f"{name} has no value: {variable} is empty here"
    return found(done, step.line, what, f"print {variable} before this line, and see what sets it")


def _node_lists(done: DryRun, step: Step) -> Iterator[Finding]:
    """The lists of nodes of a step: empty, or names on several lines, which Slurm does not read."""
    for option, value, at, _ in options_of_srun(step.command) if step.is_srun else ():
        if option not in ("nodelist", "nodes", "ntasks"):
            continue
        name = step.command[at].partition("=")[0]
        if not value and not may_follow(done):
            what = f"srun {name} has no value: the variable in it is empty here"
            yield found(done, step.line, what, "print the variable before this line, and see what sets it")
        elif "\n" in value.strip():
            yield _lines(done, step, f"srun {name}", value)


def _lines(done: DryRun, step: Step, name: str, value: str) -> Finding:
    first, second = value.strip().split("\n")[:2]
    what = f"{name} has a value of several lines: '{first}', then '{second}'"
    fix = "nodes=($(scontrol show hostnames ...)), without quotes, is an array"
    return found(done, step.line, what, fix, rule="SB331")


_VALUES = {name for launcher in LAUNCHERS for name in PROGRAMS[launcher].values}
_ONE_LINE = {"nodelist", "nproc-per-node"} | {
    name
    for launcher in LAUNCHERS
    for role in ("NODES", "RANK", "PORT", "HOST")
    for name in PROGRAMS[launcher].roles.get(role, ())
}


def _variable_of(done: DryRun, option: str) -> str:
    """The variable that is the whole value of an option in the script, unless it may well be empty."""
    takes_one = (
        option.lstrip("-").replace("_", "-") in _VALUES
    )  # of another, what follows may be more options
    before = r'(?:=|[ \t]+)"?' if takes_one else r'(?:="?|[ \t]+")'
    pattern = rf"{re.escape(option)}{before}\$\{{?(\w+)\}}?\"?(?=[\s\"']|$)"
    names = {*re.findall(pattern, done.script.text)}
    name = names.pop() if len(names) == 1 else ""
    return name if _is_computed(done, name) else ""


def _is_computed(done: DryRun, name: str, depth: int = 4) -> bool:
    """Whether the script alone, with what Slurm says, computes the value of a variable."""
    if name in done.batch or option_of(name) not in ("", "array"):
        return True
    sets = [each for each in done.script.body.sets if each.name == name]
    needed = {need.name for need in done.needed}
    if not sets or not depth or name in needed or any(each.value == "" or each.by == "for" for each in sets):
        return False
    for each in sets:
        text = each.source.text[each.at : each.end]
        programs = {command.name for command in done.script.body.commands if each.at <= command.at < each.end}
        own = each.word.variables if each.word else ()
        if each.by in ("read", "readarray", "mapfile", "getopts"):  # the words after <<<, or a file
            line = each.source.text[each.at :].partition("\n")[0]
            own = tuple(re.findall(r"<<<[^$]*\$\{?(\w+)", line))
            if not own:
                return False
        if (
            not programs <= _COMPUTING
            or ":-" in text
            or ":=" in text
            or re.search(r"[<{]\(|\$\{?[*@#\d]", text)
        ):
            return False
        if not all(other == name or _is_computed(done, other, depth - 1) for other in own):
            return False
    return True


_COMPUTING = programs("computes")


def _spool(done: DryRun) -> Iterator[Finding]:
    """What the script looks for beside itself, where Slurm's copy of it is alone."""
    for need in done.needed:
        if need.name.startswith(_SPOOL):
            what = f"Slurm runs a copy of the script in its spool folder, where there is no {need.name}"
            fix = 'write "$SLURM_SUBMIT_DIR", the folder in which sbatch is called, or the full path'
            yield found(done, need.line, what, fix, rule="SB401")
            return


def _strangers(done: DryRun) -> Iterator[Finding]:
    """Nodes that the script names, as it was written for another job, and connects to."""
    for line, command, _ in done.trace:
        match = _SSH.match(command)
        if match and match[1] in done.script.text and match[1] not in done.script.option("nodelist"):
            what = f"ssh goes to {match[1]}, which the script names: the job may run on other nodes"
            yield found(done, line, what, "head=$(scontrol show hostnames | head -n 1)", severity="info")
            return


def _unreadable(done: DryRun, step: Step) -> Iterator[Finding]:
    """Tasks of a step whose shell can't read its command."""
    is_shell = any(_SHELLS.search(word) for word in step.command if not word.startswith("-"))
    said = _UNREADABLE.search(done.ended.files.get("err", ""))
    if step.is_srun and is_shell and not step.processes and said:
        what = f"no task of this step starts a program: {said[1]}"
        yield found(done, step.line, what, "the text in quotes is a script: close or fill in what is missing")


def _images(done: DryRun, step: Step) -> Iterator[Finding]:
    """Containers without an image, which take the next word for it."""
    if may_follow(done, variables=False) or any(done.script.named("module", "ml")):
        return  # which may set the variable of the image
    for process in step.processes:
        image = process.container
        needs = image in _CONTAINERS and not (image == "shifter" and "image" in done.script.options)
        if needs or image in _NO_IMAGES:
            taken = f"{image} has no image" if needs else f"the container takes '{image}' for its image"
            what = f"{taken}: the variable before it is empty"
            yield found(done, step.line, what, "print the variable of the image before this line")
            return


def _ranks(done: DryRun, step: Step) -> Iterator[Finding]:
    """Processes without a launcher whose variables do not fit together."""
    of = [process for process in step.processes if not LauncherCall.from_argv(process.argv)]
    if not step.is_srun or len(of) < 2 or not all(process.env.get("WORLD_SIZE") for process in of):
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        values = {str(process.env.get(name)): f"rank {process.rank}" for process in of}
        if len(values) > 1:
            yield found(done, step.line, *apart(name, values, name), rule="SB307")
    ranks = {process.env.get("RANK") for process in of}
    if len(ranks) == 1 and None not in ranks:
        what = (
            f"all {step.tasks} processes get RANK={ranks.pop()}: the batch script expands it, not the tasks"
        )
        fix = "srun bash -c 'RANK=$SLURM_PROCID ...', in single quotes"
        yield found(done, step.line, what, fix, rule="SB308")
    size = of[0].env["WORLD_SIZE"] or ""
    each_is_rank = all(process.env.get("LOCAL_RANK") for process in of)
    if number_of(size) not in (0, step.tasks) and (each_is_rank or number_of(size) < step.tasks):
        what = f"WORLD_SIZE is {size}, and this step starts {counted(step.tasks, 'process')}"
        yield found(done, step.line, what, "export WORLD_SIZE=$SLURM_NTASKS")


def _interfaces(done: DryRun, step: Step) -> Iterator[Finding]:
    """Interfaces of the network with other names than the profile has."""
    profile, env = done.script.profile, step.processes[0].env if step.processes else {}
    for fact in NETWORK_VARIABLES:
        value = env.get(fact.upper()) or ""
        settings = (profile, *profile.partitions.values())
        known = {str(own) for each in settings if (own := getattr(each.network, fact))}
        if not value or value[0] in "^=" or any(own[0] in "^=" for own in known):
            continue
        names = [name for own in known for name in own.split(",")]
        wrong = [name for name in value.split(",") if not any(_alike(name, own) for own in names)]
        if names and wrong:
            has = " or ".join(sorted(known))
            what = f"{fact.upper()} is {value}, but the profile '{profile.name}' says {has}"
            yield found(done, step.line, what, f"{fact.upper()}={min(known)}", severity="info")


def _alike(name: str, other: str) -> bool:
    """Whether one of two names of interfaces is the start of the other, as NCCL compares them."""
    return name.startswith(other) or other.startswith(name)


def _same_gpu(done: DryRun) -> Iterator[Finding]:
    """Programs that the script puts on the same GPU while another of its node is idle."""
    chosen = [
        (step, process.gpus)
        for step in done.steps
        for process in step.processes
        if not step.is_srun and process.gpus and "CUDA_VISIBLE_DEVICES" in process.env
    ]
    for (first, mine), (second, other) in combinations(chosen, 2):
        used = {gpu for step, gpus in chosen if step.waits == first.waits for gpu in gpus}
        idle = {*range(done.grant.gpus)} - used
        shared = {*mine} & {*other}
        if at_once(first, second) and shared and idle:
            what = f"this program and that of line {first.line} want GPU {min(shared)} at once"
            fix = f"CUDA_VISIBLE_DEVICES={min(idle)} for one of them: this GPU is idle"
            yield found(done, second.line, what, fix)
            return


def _waiting(done: DryRun) -> Iterator[Finding]:
    """Steps that are meant to run at the same time, and run one after the other."""
    steps = [step for step in done.steps if step.is_srun and not step.refusal]
    if any([*_node_lists(done, step)] for step in steps):
        return
    said = set()
    for first, second, shared in meetings(done):
        node = min(shared)
        if first.line in said or not all(node in step.takes for step in (first, second)):
            continue
        if (why := _why_waiting(done, first, second, node)) is not None:
            said.add(first.line)
            where, taken, fix = why
            what = f"{where}this step waits until that of line {first.line} ends: each {taken}"
            severity: Severity = "info" if where else "warning"
            yield found(done, second.line, what, fix, severity=severity, rule=RULE if where else "SB310")


def _why_waiting(done: DryRun, first: Step, second: Step, node: str) -> tuple[str, str, str] | None:
    """Where the second of two steps waits, what each takes, and the fix; None if it starts at once."""
    parts = [step.takes[node] for step in (first, second)]
    sharing, held = {first.sharing, second.sharing}, min(part.gpus for part in parts)
    if "overlap" in sharing:
        return None
    if "whole" in sharing:
        fix = "srun --overlap --mem=0 to share, or --exact with -n, -c and the GPUs of each step"
        return "", f"takes all of {node}", fix
    if 2 * held > done.grant.asked_gpus and held > (asked := _asked_gpus(second, node)):
        option = done.script.resources.gpu_option
        fix = f"srun --{option}={'gpu:' * (option == 'gres')}{asked or 1}, the option of the job"
        return "", f"gets {counted(held, 'GPU')} of {node}", fix
    cpus = done.grant.cpus[done.grant.nodes.index(node)]
    if knows_cpus(done.script) and any(part.cpus >= cpus for part in parts):
        where = "where a job gets only the CPUs that it asks for, "
        return where, f"takes all of {node}", "srun -n and -c of each step, its part of them"
    if _takes_memory(done, first) and _takes_memory(done, second):
        return "where Slurm counts memory, ", "gets all of --mem", "srun --mem=..., the part of each step"
    return None


def _takes_memory(done: DryRun, step: Step) -> bool:
    """Whether a step gets all the memory of the job on a node."""
    own = any(name.startswith("mem") for name in own_options(step) if name != "mem-bind")
    return bool(done.script.resources.mem) and not own


def _asked_gpus(step: Step, node: str) -> int:
    """How many GPUs a step itself asks for on a node; 0 if it does not say."""
    options = own_options(step)
    if {"gres", "gpus-per-node"} & options.keys():
        return step.takes[node].gpus
    of_step = number_of(options.get("gpus", "").rpartition(":")[2]) // len(step.takes)
    here = sum(process.node == node for process in step.processes)
    return of_step or number_of(options.get("gpus-per-task", "").rpartition(":")[2]) * here
