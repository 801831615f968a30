"""Rules about jobs that end early: their signals and traps, their checkpoints, and the jobs after them.

`logs` has the rules about requeues and signals that only read options.

Sources: signals on Slurm 22.05.8; sbatch(1) (--signal), scancel(1) (--batch) and slurm.conf(5) (KillWait,
KillOnBadExit); for traps bash(1), SIGNALS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from sbatchgen.base.finding import Edit
from sbatchgen.base.quoting import OR
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.rules.signals import (
    HARMLESS_SIGNALS,
    runs_only_its_text,
    signal_name,
    signal_of,
    trapped_signals,
)
from sbatchgen.check.script.launches import HELPERS, TRAINING_WORDS
from sbatchgen.check.script.script import JobScript

if TYPE_CHECKING:
    from sbatchgen.check.bash import Body, Command

RULES: Rules[JobScript] = Rules()

LONG_JOB_S = 12 * 3600  # a longer job should save checkpoints
# A script whose training resumes from a checkpoint holds one of these words.
RESUME_WORDS = ("resum", "restart", "checkpoint", "ckpt", "snapshot", "latest", "last.pt", "continue")
# A script whose training saves checkpoints holds one of these words.
SAVE_WORDS = ("resum", "checkpoint", "ckpt", "snapshot", "save", "saving")
_AFTER_OK = re.compile(r"(?:^|[,?=])(?:afterok|aftercorr)\b")


@RULES.add("SB601", "warning", "a signal without a trap, which ends the script", words=("--si",))
def _untrapped_signal(script: JobScript) -> Iterator[Hit]:
    name = signal_of(script, to_batch_shell=True)
    if name is None or name in HARMLESS_SIGNALS or name == "INT":  # INT does not end a bash that waits
        return
    if {name, "?"} & trapped_signals(script) or not runs_only_its_text(script):
        return
    arguments = (word for command in script.commands for word in command.words[1:])
    # A command that names the signal, such as kill -s USR1, shows that the script knows it.
    if not any(signal_name(word.text) == name for word in arguments):
        what = f"bash gets {name} before the time limit and has no trap for it: the signal ends the script, "
        what += "and with it the job"
        fix = f"trap 'touch \"$STOP_FILE\"' {name} before the work, and the work in the background "
        yield Hit("signal", what, fix + "(see SB602)")


@RULES.add("SB602", "warning", "a trap that runs too late", source="bash(1)", words=("trap",))
def _late_trap(script: JobScript) -> Iterator[Hit]:
    requested, trapped = signal_of(script, to_batch_shell=True), trapped_signals(script)
    signal = requested if requested in trapped else "TERM" if "TERM" in trapped else None
    if signal is None:
        return
    trainings, commands = script.trainings, script.body.commands
    if not trainings or script.named("wait", "coproc") or any(command.in_background for command in commands):
        return
    last = trainings[-1]
    program = f"{(last.step or last.program).name} in line {last.command.line}"
    what = f"bash runs the trap for {signal} only when {program} has ended: "
    is_requested = signal == requested
    if is_requested:
        what += "by then the training is over, or was killed at the time limit"
    else:  # TERM of scancel, a preemption or the time limit, which the program gets too
        what += "if it still saves after KillWait, Slurm kills both, and no trap runs"
    fix = "end the line with &, then add: while kill -0 $! 2>/dev/null; do wait $!; done; wait $!"
    yield Hit(script.at_word(last.command), what, fix, None if is_requested else "info")


@RULES.add(
    "SB603", "warning", "a signal that does not reach its handler", source="sbatch(1)", words=("--si",)
)
def _unreached_handler(script: JobScript) -> Iterator[Hit]:
    signal = signal_of(script, to_batch_shell=False)
    if signal is None or script.body.language not in SHELLS:
        return
    value = script.option("signal")
    to_batch = f"--signal=B:{value.partition(':')[2] or value}"
    if signal in trapped_signals(script):
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
    signal = signal_of(script, to_batch_shell=False)
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
            signal = signal_name(script.body.value(word) or "?")
            if signal not in ("USR1", "USR2") or words[0].text in ("-", "''", '""'):
                continue
            other_text = script.text.replace(script.body.source.text[command.at : command.end], "")
            if signal in other_text or re.search(r"\b(?:kill|scancel)\b[^\n]*?[ =-]1[02]\b", other_text):
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
    if "TERM" in trapped_signals(script) or not runs_only_its_text(script):
        return
    for trap, body in script.body.traps:
        signals = {signal_name(word.text) for word in trap.trap_words[1:]}
        if {"EXIT", "0"} & signals and _writes_mark(script, body):
            what = "bash runs a trap on EXIT at scancel, a preemption and the time limit too, mostly with $? "
            what += "0: a job that was ended is marked as done"
            yield Hit(script.at_word(trap), what, "write the mark in the script's last line, after its work")
            return


def _writes_mark(script: JobScript, body: Body) -> bool:
    """Return whether a trap also marks a cancelled job as done, by writing a file such as job.done.

    `body` is the body of the trap. The functions that it calls are searched too.
    """
    called = {command.name for command in body.commands} - {""}
    in_functions = [command for command in script.body.commands if command.context.function in called]
    status_uses = [use for use in (*body.variable_uses, *script.body.variable_uses) if use.name == "?"]
    commands = [*body.commands, *in_functions]
    sees_status = any(
        command.at <= use.at < command.end and command.source is use.source
        for command in commands
        for use in status_uses
    )
    for command in commands:
        # A branch may test $?, which is mostly 0 at scancel too. Other branches test the work itself.
        if command.context.in_branch and not sees_status:
            continue
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
                # In a branch, it is usually if [ -z "$SLURM_JOB_ID" ]; then sbatch "$0", and not in the job.
                if command.context.in_branch or command.context.function or "depend" in command.text:
                    continue
                what = f"{word.text} is Slurm's copy of the script, which is gone when the job ends; and "
                what += "only scancel stops a job that submits itself"
                yield Hit(script.at_word(word), what, _SUCCESSOR_FIX)
                continue
            submitted_name = (script.body.value(word) or "").rpartition("/")[2]
            if command.context.is_top_level and submitted_name == file_name:
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
    """Return whether a job submits a job that waits for it, and then runs only brief commands.

    The first job then almost certainly succeeds, so the second one starts.
    """
    variables = {name for word in command.words for name in word.variables}
    if variables.isdisjoint(("SLURM_JOB_ID", "SLURM_JOBID")) or not command.context.is_top_level:
        return False
    return all(other.name in BRIEF_PROGRAMS for other in script.body.commands if other.at > command.end)


@RULES.add(
    "SB614",
    "warning",
    "a signal that kills torchrun",
    source="torch/distributed/elastic/multiprocessing/api.py",
    words=("--si",),
    report="https://github.com/pytorch/pytorch/issues/154849",
)
def _killed_torchrun(script: JobScript) -> Iterator[Hit]:
    signal = signal_of(script, to_batch_shell=False)
    if signal is None or signal not in ("USR1", "USR2"):
        return
    for launch in script.trainings:
        torchrun = launch.launcher
        if launch.step is None or torchrun is None or torchrun.name != "torchrun":
            continue
        handled = torchrun.option("signals-to-handle")
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
    """Find a shell with -c in a task, which gets the signal and does not pass it on to the program."""
    signal = signal_of(script, to_batch_shell=False)
    if signal is None or signal in HARMLESS_SIGNALS:
        return
    for launch in script.trainings:
        tools = launch.tools[launch.tools.index(launch.step) :] if launch.step else ()
        if any(tool.name == "exec" for tool in tools):
            continue
        for shell, tool in pairwise(tools):
            if shell.name not in SHELLS or "trap" in tool.body.source.text:
                continue
            commands = [command for command in tool.body.commands if not command.context.in_substitution]
            if len(commands) < 2 and not any(command.context.in_loop for command in commands):
                continue  # the shell replaces itself by its only command
            what = f"{signal} reaches only {shell.name}, which dies of it; {launch.program.name} runs on"
            last = commands[-1]
            is_plain = last.context.is_top_level and not last.pipe
            # Newer releases of bash replace themselves by the last command of a string.
            may_replace_itself = shell.name == "bash" and is_plain and last.at == tool.words[0].at
            if may_replace_itself:
                what += ", unless this bash replaces itself by its last command, as newer ones do"
            fix = f"exec {tool.name} ... as its last command"
            yield Hit(script.at_word(launch.command), what, fix, "info" if may_replace_itself else None)


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
            ends_others = any(
                command.name in _ENDING_PROGRAMS or command.name == "exec" for command in body.commands
            )
            if ends_others or all(command.in_background for command in body.commands):
                continue
            for command in body.commands:
                is_server = command.in_background and SERVER_COMMAND.search(command.text)
                if not is_server or _has_own_output(command):  # a step waits until its output is closed
                    continue
                what = f"{command.name} has the output of the task and never ends: the step waits for it, "
                what += "until the time limit"
                yield Hit(script.at_command(launch.command), what, "in the string: kill $! after the work")
                return


def _has_own_output(command: Command) -> bool:
    """Return whether a command redirects both stdout and stderr, so that neither is that of the task."""
    redirected = set()  # the descriptors that go elsewhere
    for redirect in command.redirects:
        target = redirect.target.text if redirect.target else ""
        if redirect.operator in ("&>", "&>>"):
            return True
        if redirect.operator in (">", ">>", ">|") or (redirect.operator == ">&" and target in redirected):
            redirected.add(redirect.descriptor or "1")
        elif redirect.operator == ">&" and not target.isdecimal():  # >&FILE redirects both
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
            in_background = (other for other in body.commands if other.in_background)
            programs_at_work = (other for other in in_background if other.name not in HELPERS | {""})
            command = next((other for other in programs_at_work if not _MONITOR.search(other.text)), None)
            if command and not all(other.in_background for other in body.commands):
                what = f"if {command.name} in the background of a task ends, no other program is ended: the "
                what += "step runs on without it"
                fix = "all programs with &, then wait -n; and srun --kill-on-bad-exit=1"
                yield Hit(script.at_command(launch.command), what, fix)
                return


# Commands that only watch others, such as nvidia-smi. Nothing is lost when such a command ends.
_MONITOR = re.compile(r"smi\b|\bd?cgm|top\b|monitor|[vm]mstat|sar\b|tail -f|while ")
_ENDING_PROGRAMS = programs("ends-others")  # programs that end other processes, or wait for their end
# Commands that never end by themselves, such as vllm serve.
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
