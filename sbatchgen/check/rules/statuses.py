"""Rules about failures that Slurm does not see, as a pipe or a later command hides the status of a program.

Source: bash(1), Pipelines and Exit Status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.check.bash import Command
from sbatchgen.check.executables.program import programs
from sbatchgen.check.rules.edits import insert_line_before
from sbatchgen.check.rules.printed_status import always_succeeds, printed_failures
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.script.launches import HELPERS
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

_SMALL_PROGRAMS = programs("last")  # programs that do no work as the last command of a script, such as echo
_SERVER = re.compile(r"\bjupyter|\brserver\b|\bcode-server\b|\btensorboard\b|--NotebookApp")


@RULES.add(
    "SB311", "warning", "a pipe that hides a failed program", applies=Applies.JOB_SCRIPTS, words=("|",)
)
def _failure_hidden_in_pipe(script: JobScript) -> Iterator[Hit]:
    body = script.body
    seen: set[int] = set()
    for launch in reversed(script.launches):
        command = launch.command
        pipe = command.pipe
        if pipe is None or id(pipe) in seen or command.stage >= len(pipe.stages) - 1:
            continue  # only a command before the last stage loses its status
        if not (launch.is_training or launch.step or launch.mpi) or launch.is_helper:
            continue
        if command.context.in_substitution or body.is_option_on("pipefail", command.line):
            continue
        if any(use.name == "PIPESTATUS" for use in body.variable_uses):
            continue  # the script checks the status itself
        if any(other.name == "set" and "+e" in other.arguments for other in pipe.stages[command.stage]):
            continue  # the script ignores the status
        seen.add(id(pipe))
        last = next((other.name for other in reversed(pipe.stages[-1]) if other.name), "")
        if command.context.is_tested and last.endswith("grep"):
            continue  # grep tests the program's output
        is_check = _is_check_before_work(script, command)
        what = f"the pipe ends with the status of {last or 'its last command'}: "
        what += f"if {_short_name(command)} fails, "
        what += "the script continues" if is_check else "the job is shown as COMPLETED"
        has_errexit = body.is_option_on("errexit", command.line)
        ends_script = body.last_command in pipe.stages[-1]
        fix = f"set -{'o' if has_errexit or ends_script else 'eo'} pipefail on a line before it"
        is_safe = body.language == "bash" and not has_errexit and ends_script
        edits = insert_line_before(script, command, "set -o pipefail") if is_safe else ()
        yield Hit(script.at_command(command), what, fix, "info" if is_check else None, edits)
    yield from _pipes_of_tasks(script)


def _pipes_of_tasks(script: JobScript) -> Iterator[Hit]:
    """Find a string whose last command is a pipe, such as bash -c 'python train.py | tee log'.

    The task then has the status of tee.
    """
    for launch in script.steps:
        if launch.is_helper:
            continue
        for shell, body in launch.shell_strings:
            texts = [*shell.options.values(), body.source.text]
            if any("pipefail" in str(text) or "PIPESTATUS" in str(text) for text in texts):
                continue
            program_at = launch.program.words[0].at
            pipes = (command.pipe for command in body.commands if command.at <= program_at < command.end)
            pipe = next((pipe for pipe in pipes if pipe and len(pipe.stages) > 1), None)
            last = pipe.stages[-1][-1] if pipe else None
            if (
                pipe
                and last
                and last.name in PIPE_FILTERS
                and _END_OF_STRING.match(body.source.text, last.end)
            ):
                name = launch.program.name if program_at < last.at else pipe.stages[0][0].name
                what = f"a task ends with the status of {last.name}: if {name} fails, srun ends with 0, and "
                what += "the job is shown as COMPLETED"
                yield Hit(script.at_command(launch.command), what, "set -o pipefail in front, in the string")


# A text that may follow the last command of a string. In an `if`, it is such as "; else echo no; fi".
_END_OF_STRING = re.compile(r"[\s;]*(?:(?:fi|esac)\b[\s;]*)*\Z|[\s;]*(?:else|elif)\b[^\0]*\bfi[\s;]*\Z")


def _is_check_before_work(script: JobScript, command: Command) -> bool:
    """Return whether a command in an if only checks something, such as the network, before the work.

    The work is then a later launch that is not in a branch, or that is in a loop.
    """
    context = command.context
    if context.in_loop or not context.in_branch:
        return False
    later = (launch for launch in script.launches if launch.command.at > command.at and not launch.is_helper)
    later_contexts = [launch.command.context for launch in later]
    return any(later_context.in_loop or not later_context.in_branch for later_context in later_contexts)


@RULES.add("SB312", "warning", "a last command that hides a failed program", applies=Applies.JOB_SCRIPTS)
def _failure_hidden_at_end(script: JobScript) -> Iterator[Hit]:
    hits = [*_hidden_by_last_command(script)]
    yield from hits or printed_failures(script)


def _hidden_by_last_command(script: JobScript) -> Iterator[Hit]:
    """Find a last command whose status hides that the work of the script failed."""
    body, last = script.body, script.body.last_command
    has_error_trap = any("ERR" in inner.context.trap_signals for _, inner in body.traps)
    if last is None or has_error_trap:
        return
    is_exit_0 = last.name == "exit" and last.arguments == ["0"]
    hides_status = (
        (last.name in _SMALL_PROGRAMS or is_exit_0) and not last.context.in_branch and not last.is_test
    )
    status_uses = [use for use in body.variable_uses if use.name in ("?", "PIPESTATUS")]
    # Whether the script reads a status. The last command may print a status, but then the status is lost.
    keeps_status = any(not last.at <= use.at < last.end for use in status_uses)
    wait = _wait_for_all(script)
    if wait and (wait is last or (hides_status and not keeps_status)):
        yield _status_lost_in_wait(script, wait, is_last=wait is last)
        return
    work = last_work(script)
    # A server ends only when it is killed, so its status means nothing.
    if work is None or _SERVER.search(work.text) or body.is_option_on("errexit", work.line):
        return
    if other := _status_of_other_command(script, work):
        what = f"$? is the status of {other.name}, not of {work.name}: a failed job is shown as COMPLETED"
        yield Hit(script.at_command(other), what, f"rc=$? right after {work.name}")
        return
    if hides_status and work.at < last.at and not keeps_status:
        what = "the script ends with status 0, even if a program failed: a failed job is shown as COMPLETED"
        if not is_exit_0:
            condition = f"if {_short_name(work)} in line {work.line} fails"
            condition += "" if always_succeeds(last) else f" and {last.name} succeeds"
            what = (
                f"the script ends with the status of {last.name}: {condition}, the job is shown as COMPLETED"
            )
        fix = "set -e at the start, or keep the status: rc=$?; ...; exit $rc"
        yield Hit(script.at_command(last), what, fix)


def _status_lost_in_wait(script: JobScript, wait: Command, *, is_last: bool) -> Hit:
    """Return the finding that `wait` hides the status of programs in the background."""
    lost = "wait without a process ends with status 0"
    if wait.arguments:
        lost = "wait for several processes ends with the status of the last one"
    fix = "pids+=($!) after each &, and wait $pid for each"
    what = f"{lost}: a failed job is shown as COMPLETED"
    return Hit(script.at_command(wait), what, fix, "info" if is_last else None)


def _wait_for_all(script: JobScript) -> Command | None:
    """Return the last `wait`, if the script waits there for several programs in the background."""
    waits = script.named("wait")
    commands = [launch.command for launch in script.launches if not launch.is_helper]
    if not waits or not any(command.in_background for command in commands):
        return None
    if any(wait.context.in_branch or wait.context.in_loop for wait in waits):
        return None
    if any(len(wait.words) == 2 and "[@]" not in wait.words[1].text for wait in waits):
        return None  # the wait is for one process
    return waits[-1] if waits[-1].at > commands[-1].at else None


def _short_name(command: Command) -> str:
    """Return the name of a command for a message, in at most 30 characters."""
    return command.name[:30] or (command.words[0].text[:30] if command.words else "the command")


def last_work(script: JobScript) -> Command | None:
    """Return the last command that does work: a launch, or another program that always runs.

    The result is None without such a command, and if the script may check the status of its last launch.
    """
    launched = {id(launch.command) for launch in script.launches if not launch.is_helper}
    if not launched and script.named("sbatch"):
        return None  # the script only submits other scripts
    for command in reversed(script.body.commands):
        context = command.context
        is_launch = id(command) in launched
        is_conditional = context.in_branch and not is_launch
        may_be_checked = context.is_tested or context.function or is_conditional or context.in_substitution
        if is_launch and (may_be_checked or command.in_background):
            return None
        if may_be_checked or command.in_background or command.is_test or (command.pipe and command.stage):
            continue
        does_work = is_launch or (command.name and command.name not in _IDLE_PROGRAMS)
        is_plain_wait = command.name == "wait" and not command.arguments
        if does_work and command.arguments != ["--version"] and not is_plain_wait:
            return command
    return None


def _status_of_other_command(script: JobScript, work: Command) -> Command | None:
    """Return the command between the work and the first $? after it, such as echo; None without one.

    The script means the status of the work, and reads the status of this command.
    """
    if "$?" in script.text:
        for use in script.body.variable_uses:
            if use.name != "?":
                continue
            # The commands from the work on that end before the $?.
            earlier = [
                command for command in script.body.commands if work.at <= command.at and command.end <= use.at
            ]
            nearest = max(earlier, key=lambda command: command.end, default=None)
            if nearest is not None:
                is_small = nearest is not work and nearest.name in ("date", "echo", "printf")
                return nearest if is_small and nearest.context.is_top_level else None
    return None


_IDLE_PROGRAMS = HELPERS | _SMALL_PROGRAMS | programs("builtin", "environment")  # programs that do no work


@RULES.add("SB329", "warning", "a pipe that hides a failure from ||", words=("||",))
def _failure_hidden_from_or(script: JobScript) -> Iterator[Hit]:
    body = script.body
    for command in script.named(*PIPE_FILTERS):
        pipe = command.pipe
        if pipe is None or command.stage == 0 or command.stage != len(pipe.stages) - 1:
            continue
        if not command.context.is_tested or body.is_option_on("pipefail", command.line):
            continue
        following = body.source.text[command.end : command.end + 40]
        # || exit, or || { echo failed; exit
        if re.match(r"[ \t]*\|\|[ \t]*(?:exit|\{[ \t]*echo[^;}]*;[ \t]*exit)\b", following):
            first = next((command.name for command in pipe.stages[0] if command.name), "")
            if first in ("echo", "printf", "cat", "ls", ""):
                continue  # these programs seldom fail
            what = f"|| sees the status of {command.name}: the exit is not reached when {first} fails"
            yield Hit(script.at_command(command), what, "set -o pipefail on a line before it")


PIPE_FILTERS = programs("passes-on")  # programs that pass on their input, such as tee
