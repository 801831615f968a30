"""Rules about signals, successors and checkpoints. `logs` has the rules that only read options.

Sources: signals on Slurm 22.05.8; sbatch(1) (--signal), scancel(1) (--batch) and slurm.conf(5) (KillWait,
KillOnBadExit); for traps bash(1), SIGNALS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from signal import Signals
from typing import TYPE_CHECKING

from sbatchgen.base.finding import Edit
from sbatchgen.base.quoting import OR
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.values import read_signal
from sbatchgen.check.script.launches import HELPERS, TRAINING_WORDS
from sbatchgen.check.script.script import JobScript

if TYPE_CHECKING:
    from sbatchgen.check.bash import Body, Command

RULES: Rules[JobScript] = Rules()

_AGENT_SOURCE = "torch/distributed/elastic/multiprocessing/api.py"  # of SB614
LONG_JOB_S = 12 * 3600  # a longer job should save checkpoints
HARMLESS_SIGNALS = frozenset(("CONT", "CHLD", "WINCH", "URG"))  # a process without a handler ignores these
# A script that resumes its training, or saves it, holds one of these words.
RESUME_WORDS = ("resum", "restart", "checkpoint", "ckpt", "snapshot", "latest", "last.pt", "continue")
SAVE_WORDS = ("resum", "checkpoint", "ckpt", "snapshot", "save", "saving")
_SIGNAL_NAMES = {str(int(signal)): signal.name for signal in Signals}  # "15" -> "SIGTERM"
_AFTER_OK = re.compile(r"(?:^|[,?=])(?:afterok|aftercorr)\b")


def signal_of(script: JobScript, *, batch: bool) -> str | None:
    """Return the name of the signal that --signal sends: with `batch` to the batch shell, else to the steps.

    The result is None if --signal is missing or malformed (SB126), or if it names the other receiver.
    """
    setting = read_signal(script.option("signal"))
    return _signal_name(str(setting.number)) if setting and ("B" in setting.flags) == batch else None


def _signal_name(signal: str) -> str:
    """Return the name of a signal without SIG: TERM of SIGTERM, term or 15."""
    return _SIGNAL_NAMES.get(signal, signal.upper()).removeprefix("SIG")


def _trapped_signals(script: JobScript) -> set[str]:
    """Return the signals for which the script sets a trap; "?" for an unknown signal."""
    signals: set[str] = set()
    for command in script.named("trap"):
        words = command.trap_words
        if words and words[0].text != "-":
            signals |= {_signal_name(script.body.value(word) or "?") for word in words[1:]}
    return signals


def _runs_only_its_text(script: JobScript) -> bool:
    """Return whether a shell runs the script, and only its text: no sourced commands, and no exec."""
    if script.body.language not in SHELLS:
        return False
    if any(len(command.words) > 1 and command.context.top for command in script.named("exec")):
        return False
    return not script.sources_commands


@RULES.add("SB601", "warning", "a signal without a trap, which ends the script", words=("--si",))
def _untrapped_signal(script: JobScript) -> Iterator[Hit]:
    name = signal_of(script, batch=True)
    if name is None or name in HARMLESS_SIGNALS or name == "INT":  # a waiting bash survives INT
        return
    if {name, "?"} & _trapped_signals(script) or not _runs_only_its_text(script):
        return
    arguments = (word for command in script.commands for word in command.words[1:])
    if not any(_signal_name(word.text) == name for word in arguments):  # such as kill -s USR1
        what = f"bash gets {name} before the time limit and has no trap for it: the signal ends the script, "
        what += "and with it the job"
        fix = f"trap 'touch \"$STOP_FILE\"' {name} before the work, and the work in the background "
        yield Hit("signal", what, fix + "(see SB602)")


@RULES.add("SB602", "warning", "a trap that runs too late", source="bash(1)", words=("trap",))
def _late_trap(script: JobScript) -> Iterator[Hit]:
    requested, trapped = signal_of(script, batch=True), _trapped_signals(script)
    signal = requested if requested in trapped else "TERM" if "TERM" in trapped else None
    if signal is None:
        return
    trainings, commands = script.trainings, script.body.commands
    if not trainings or script.named("wait", "coproc") or any(command.background for command in commands):
        return
    last = trainings[-1]
    program = f"{(last.step or last.program).name} in line {last.command.line}"
    what = f"bash runs the trap for {signal} only when {program} has ended: "
    if is_requested := signal == requested:
        what += "by then the training is over, or was killed at the time limit"
    else:  # scancel, a preemption and the time limit also signal the program
        what += "if it still saves after KillWait, Slurm kills both, and no trap runs"
    fix = "end the line with &, then add: while kill -0 $! 2>/dev/null; do wait $!; done; wait $!"
    yield Hit(script.at_word(last.command), what, fix, None if is_requested else "info")


@RULES.add(
    "SB603", "warning", "a signal that does not reach its handler", source="sbatch(1)", words=("--si",)
)
def _unreached_handler(script: JobScript) -> Iterator[Hit]:
    signal = signal_of(script, batch=False)
    if signal is None or script.body.language not in SHELLS:
        return
    value = script.option("signal")
    to_batch = f"--signal=B:{value.partition(':')[2] or value}"
    if signal in _trapped_signals(script):
        what = f"--signal={value} goes to the steps, not to the script: its trap for {signal} never runs"
        yield Hit("signal", what, to_batch)
        return
    starts_step = any(launch.step or launch.mpi for launch in script.launches)
    if script.trainings and not script.may_start_hidden_programs and not starts_step:
        what = f"--signal={value} goes to srun's steps, but the script starts none: no process gets it"
        yield Hit("signal", what, f"srun {script.trainings[0].program.name}, or {to_batch} and a trap")


@RULES.add(
    "SB621",
    "warning",
    "a signal that a trainer does not survive",
    source="docs/design/slurm.md",
    words=("--si",),
    report="https://github.com/KempnerInstitute/KempnerForge/issues/177",
)
def _trainer_without_handler(script: JobScript) -> Iterator[Hit]:
    signal = signal_of(script, batch=False)
    if signal in (None, "INT", *HARMLESS_SIGNALS) or script.folder is None or script.named("cd"):
        return
    for launch in script.trainings:
        if not launch.step or launch.launcher or launch.container or not launch.program.name.endswith(".py"):
            continue
        source = script.source_of(launch)
        name, to_batch = launch.program.name, f"--signal=B:{signal}@300, and a trap that writes a stop file"
        if source and source.lacks_signal_handlers:
            what = f"{name} has no handler for {signal}, which it gets before the time limit: it ends then"
            yield Hit("signal", what, f"signal.signal(signal.SIG{signal}, ...) in {name}{OR}{to_batch}")
        elif source and signal == "TERM" and source.loses_data_workers:
            what = f"where Slurm has no cgroups, TERM ends the data loader's workers too: {name} fails at "
            what += "its next batch, before it saves"
            fix = "a worker_init_fn with signal.signal(signal.SIGTERM, signal.SIG_IGN)"
            yield Hit("signal", what, f"{fix}{OR}{to_batch}", "info")


@RULES.add(
    "SB619", "warning", "a trap for a signal that Slurm is not asked for", source="sbatch(1)", words=("trap",)
)
def _unsent_signal(script: JobScript) -> Iterator[Hit]:
    if "signal" in script.options or "SBATCH_SIGNAL" in script.environment or not script.directive_lines:
        return
    for command in script.named("trap"):
        words = command.trap_words
        for word in words[1:]:
            signal = _signal_name(script.body.value(word) or "?")
            if signal not in ("USR1", "USR2") or words[0].text in ("-", "''", '""'):
                continue
            rest = script.text.replace(script.body.source.text[command.at : command.end], "")
            if signal in rest or re.search(r"\b(?:kill|scancel)\b[^\n]*?[ =-]1[02]\b", rest):
                continue  # the script may send the signal itself, as with kill -10 or scancel -s USR1
            what = f"Slurm sends {signal} only if --signal asks for it: at the time limit this trap does not "
            yield Hit(script.at_word(word), f"{what}run", f"#SBATCH --signal=B:{signal}@300")


@RULES.add(
    "SB620",
    "warning",
    "a trap on EXIT that marks a cancelled job as done",
    source="docs/design/slurm.md",
    words=("trap",),
    report="https://github.com/BSC-ES/autosubmit/issues/2806",
)
def _false_mark_of_success(script: JobScript) -> Iterator[Hit]:
    if "TERM" in _trapped_signals(script) or not _runs_only_its_text(script):
        return
    for trap, body in script.body.traps:
        signals = {_signal_name(word.text) for word in trap.trap_words[1:]}
        if {"EXIT", "0"} & signals and _writes_mark(script, body):
            what = "bash runs a trap on EXIT at scancel, a preemption and the time limit too, mostly with $? "
            what += "0: a job that was ended is marked as done"
            yield Hit(script.at_word(trap), what, "write the mark in the script's last line, after its work")
            return


def _writes_mark(script: JobScript, body: Body) -> bool:
    """Return whether a trap's body or a function that it calls writes `done` or the like, also at scancel."""
    called = {command.name for command in body.commands} - {""}
    in_called = [command for command in script.body.commands if command.context.function in called]
    status_uses = [use for use in (*body.uses, *script.body.uses) if use.name == "?"]
    commands = [*body.commands, *in_called]
    sees_status = any(
        command.at <= use.at < command.end and command.source is use.source
        for command in commands
        for use in status_uses
    )
    for command in commands:
        if command.context.branch and not sees_status:
            continue  # the branch tests the work itself, not $?, which is mostly 0 at scancel
        files = [redirect.target for redirect in command.redirects if redirect.operator in (">", ">>", ">|")]
        files += command.words[1:] if command.name == "touch" else ()
        if any(file and _DONE_NAME.search(file.text) for file in files):
            return True
    return False


# The name of a file such as job.done or SUCCESS.
_DONE_NAME = re.compile(
    r"(?i)(?:^|[^a-z])(?:done|success(?:ful)?|succeeded|completed?|finished|ok)(?:$|[^a-z])"
)


@RULES.add("SB605", "warning", "a requeue that starts training from scratch", pedantic=True, words=("--req",))
def _requeue_from_scratch(script: JobScript) -> Iterator[Hit]:
    if "requeue" not in script.options or not script.trainings or script.may_start_hidden_programs:
        return
    if not any(word in script.text.lower() for word in RESUME_WORDS):
        what = "--requeue starts the script again from its first line, but nothing in it looks for a "
        what += "checkpoint: training starts from scratch, and may overwrite what it has saved"
        yield Hit("requeue", what, "add the trainer's resume option, or --no-requeue")


@RULES.add("SB608", "info", "a long job without checkpoints", words=TRAINING_WORDS)
def _long_without_checkpoints(script: JobScript) -> Iterator[Hit]:
    time = script.resources.time
    if time is None or time <= LONG_JOB_S or not script.trainings or script.may_start_hidden_programs:
        return
    if "signal" not in script.options and not any(word in script.text.lower() for word in SAVE_WORDS):
        what = f"a job of up to {script.option('time')}, but the script does not mention checkpoints: a "
        what += "failure loses all of it"
        yield Hit("time", what, "save a checkpoint each hour, and resume from the newest")


@RULES.add("SB610", "warning", "a script that submits itself", words=("sbatch",))
def _self_submission(script: JobScript) -> Iterator[Hit]:
    file_name = script.file.rpartition("/")[2]
    for command in script.named("sbatch"):
        for word in command.words[1:]:
            if {"0", "BASH_SOURCE"} & set(word.variables):
                if command.context.branch or command.context.function or "depend" in command.text:
                    continue  # usually if [ -z "$SLURM_JOB_ID" ]; then sbatch "$0"
                what = f"{word.text} is Slurm's copy of the script, which is gone when the job ends; and "
                what += "only scancel stops a job that submits itself"
                yield Hit(script.at_word(word), what, _SUCCESSOR_FIX)
            elif command.context.top and (script.body.value(word) or "").rpartition("/")[2] == file_name:
                what = "each job submits the next one, even if it failed: only scancel stops this"
                yield Hit(script.at_word(command), what, _SUCCESSOR_FIX)


_SUCCESSOR_FIX = "--requeue with a limit on SLURM_RESTART_COUNT, or --array=1-10%1"


@RULES.add(
    "SB611",
    "warning",
    "a dependency that may keep the job pending for ever",
    applies=Applies.ANY_TEXT,
    words=("after",),
)
def _unsatisfied_dependency(script: JobScript) -> Iterator[Hit]:
    what = "if the other job fails, this job stays pending for ever (DependencyNeverSatisfied)"
    option = "--kill-on-invalid-dep=yes"
    if _AFTER_OK.search(script.option("dependency")) and "kill-on-invalid-dep" not in script.options:
        at = script.at_option("dependency")
        edits = (Edit(at.line, at.end, at.end, f" {option}"),) if at.end else ()
        yield Hit(at, what, f"add {option}", edits=edits)
    for command in script.named("sbatch"):
        has_option = any("kill-on-invalid-dep" in word.text for word in command.words)
        if has_option or _submits_own_successor(command, script):
            continue
        for word in command.words[1:]:
            pieces = script.body.resolve(word).pieces  # a $( ) may submit other jobs
            if _AFTER_OK.search("".join(piece.text for piece in pieces if piece.kind != "command")):
                yield Hit(script.at_word(word), what.replace("this job", "the new job"), f"add {option}")


BRIEF_PROGRAMS = programs("brief")  # programs that end in a moment


def _submits_own_successor(command: Command, script: JobScript) -> bool:
    """Return whether a job submits a successor of itself, and then runs only brief commands.

    The job then almost certainly succeeds, so its successor starts.
    """
    later = (other for other in script.body.commands if other.at > command.end)
    names = {name for word in command.words for name in word.variables}
    names_own_job = not names.isdisjoint(("SLURM_JOB_ID", "SLURM_JOBID"))
    return names_own_job and command.context.top and all(other.name in BRIEF_PROGRAMS for other in later)


@RULES.add(
    "SB614",
    "warning",
    "a signal that kills torchrun",
    source=_AGENT_SOURCE,
    words=("--si",),
    report="https://github.com/pytorch/pytorch/issues/154849",
)
def _killed_torchrun(script: JobScript) -> Iterator[Hit]:
    signal = signal_of(script, batch=False)
    if signal is None or signal not in ("USR1", "USR2"):
        return
    for launch in script.trainings:
        agent = launch.launcher
        if launch.step is None or agent is None or agent.name != "torchrun":
            continue
        handled = agent.option("signals-to-handle")
        if handled is None or (handled.value is not None and signal not in handled.value):
            what = f"torchrun gets {signal} before the time limit and has no handler for it: it dies, and "
            what += "its workers too"
            fix = f"--signal=B:{signal}@300, a trap that writes a stop file, and torchrun in the background "
            fix += "(see SB602)"
            yield Hit("signal", what, fix)


@RULES.add(
    "SB615",
    "warning",
    "a shell that keeps the signal from the program",
    source="cgroup.conf(5)",
    words=("--si",),
    report="https://github.com/aws/deep-learning-containers/issues/632",
)
def _shell_that_keeps_signal(script: JobScript) -> Iterator[Hit]:
    signal = signal_of(script, batch=False)
    if signal is None or signal in HARMLESS_SIGNALS:
        return
    for launch in script.trainings:
        tools = launch.tools[launch.tools.index(launch.step) :] if launch.step else ()
        if any(tool.name == "exec" for tool in tools):
            continue
        for shell, tool in pairwise(tools):
            if shell.name not in SHELLS or "trap" in tool.body.source.text:
                continue
            commands = [command for command in tool.body.commands if not command.context.substitution]
            if len(commands) < 2 and not any(command.context.loop for command in commands):
                continue  # the shell replaces itself by its only command
            what = f"{signal} reaches only {shell.name}, which dies of it; {launch.program.name} runs on"
            last = commands[-1]
            is_simple = last.context.top and not last.pipe
            # Newer releases of bash exec the last command of a string.
            replaces_itself = shell.name == "bash" and is_simple and last.at == tool.words[0].at
            if replaces_itself:
                what += ", unless this bash replaces itself by its last command, as newer ones do"
            fix = f"exec {tool.name} ... as its last command"
            yield Hit(script.at_word(launch.command), what, fix, "info" if replaces_itself else None)


@RULES.add(
    "SB622",
    "warning",
    "a server that keeps a step from its end",
    source="docs/design/slurm.md",
    words=("&",),
    report="https://github.com/ascii-supply-networks/dagster-slurm/issues/43",
)
def _server_that_keeps_step(script: JobScript) -> Iterator[Hit]:
    """Find a program in the background of a task that holds srun's output and never ends by itself."""
    for launch in script.steps:
        for _, body in launch.shell_strings:
            if any(command.name in _ENDING_PROGRAMS or command.name == "exec" for command in body.commands):
                continue
            if all(command.background for command in body.commands):
                continue
            servers = [
                command
                for command in body.commands
                if command.background and SERVER_COMMAND.search(command.text)
            ]
            for command in servers:
                if _has_own_output(command):
                    continue  # the step does not wait for the program
                what = f"{command.name} has the output of the task and never ends: the step waits for it, "
                what += "until the time limit"
                yield Hit(script.at_command(launch.command), what, "in the string: kill $! after the work")
                return


def _has_own_output(command: Command) -> bool:
    """Return whether a command redirects stdout and stderr; a step waits until both are closed."""
    redirected = set()  # the descriptors that do not belong to the task any more
    for redirect in command.redirects:
        target = redirect.target.text if redirect.target else ""
        if redirect.operator in ("&>", "&>>"):
            return True
        if redirect.operator in (">", ">>", ">|") or (redirect.operator == ">&" and target in redirected):
            redirected.add(redirect.descriptor or "1")
        elif redirect.operator == ">&" and not target.isdecimal():
            return True
    return {"1", "2"} <= redirected


@RULES.add(
    "SB623",
    "info",
    "a program of a task whose end no task sees",
    source="bash(1)",
    words=("&",),
    report="https://github.com/NVIDIA-NeMo/RL/pull/3386",
)
def _unseen_end(script: JobScript) -> Iterator[Hit]:
    """Find a program in the background of a task that may end while the task continues."""
    for launch in script.steps:
        if (launch.tasks or 0) < 2 or launch.is_helper:
            continue
        for _, body in launch.shell_strings:
            if any(command.name in _ENDING_PROGRAMS for command in body.commands):
                continue
            background = (other for other in body.commands if other.background)
            working = (other for other in background if other.name not in HELPERS | {""})
            command = next((other for other in working if not _MONITORS.search(other.text)), None)
            if command and not all(command.background for command in body.commands):
                what = f"if {command.name} in the background of a task ends, no other program is ended: the "
                what += "step runs on without it"
                fix = "all programs with &, then wait -n; and srun --kill-on-bad-exit=1"
                yield Hit(script.at_command(launch.command), what, fix)
                return


# Programs that only watch others, so that nothing is lost when one ends.
_MONITORS = re.compile(r"smi\b|\bd?cgm|top\b|monitor|[vm]mstat|sar\b|tail -f|while ")
_ENDING_PROGRAMS = programs("ends-others")  # programs that end other processes, or wait for their end
# Programs that never end by themselves.
SERVER_COMMAND = re.compile(
    r"(?:^|[\s/])(?:(?:vllm|ollama) serve|nats-server|redis-server|tritonserver|etcd|mlflow (?:server|ui)"
    r"|tensorboard|python[\d.]* -m (?:vllm\.entrypoints|sglang\.launch_server|http\.server)[\w.]*"
    r"|ray start .*--block|nvidia-smi (?:dmon|pmon)|nvidia-smi .*(?:-l|--loop)|jupyter[ -]\w+"
    r"|text-generation-launcher)(?:\s|=|$)"
)


@RULES.add("SB617", "info", "tasks that keep running when one has failed", words=("srun",))
def _tasks_after_failure(script: JobScript) -> Iterator[Hit]:
    if "KILL_BAD_EXIT" in script.text:  # SLURM_KILL_BAD_EXIT, a variable that srun reads
        return
    for launch in script.trainings:
        step = launch.step
        if step is None or launch.mpi or step.option("kill-on-bad-exit"):
            continue
        tasks = launch.tasks
        if tasks is not None and tasks > 1:
            what = f"if one of the {tasks} tasks fails, srun lets the others run, and they wait for it until "
            what += "a timeout"
            yield Hit(script.at_word(step.words[0]), what, "srun --kill-on-bad-exit=1")
