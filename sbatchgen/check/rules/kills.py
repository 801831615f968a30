"""Rules about commands that end programs: pkill, killall and kill, also in traps. SB624 to SB626.

Sources: pgrep(1), killall(1); TERM to srun on Slurm 22.05 and 26.05, docs/design/slurm.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.finding import Severity
from sbatchgen.base.quoting import visible
from sbatchgen.check.bash import Command
from sbatchgen.check.executables.program import programs
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.rules.safety import WHOLE_NODE_GPUS
from sbatchgen.check.rules.signals import signal_of
from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# Options that choose some of the processes with a matching name, such as -P 1 of pkill.
_CHOICE_OPTION = re.compile(
    r"-[a-z]*[PgGstFnoOUxAr]|-0$"
    r"|--(?:parent|p?group|session|pidfile|ns|nslist|cgroup|older|newest|oldest|exact|ignore-ancestors|terminal"
    r"|uid|runstates)\b"
)
_SIGNAL_OPTION = re.compile(r"-(?:SIG)?(?:[A-Z][A-Z0-9]+|\d+)")  # such as -SIGTERM, -USR1 and -9
_VALUE_OPTIONS = ("-u", "--signal", "--euid", "--user")  # the word after such an option is not a pattern


@RULES.add(
    "SB624",
    "warning",
    "pkill that ends more than it should",
    source="pgrep(1)",
    words=("pkill", "killall"),
    report="https://github.com/PrimeIntellect-ai/prime-rl/pull/2586",
)
def _ends_other_jobs(script: JobScript) -> Iterator[Hit]:
    yield from _ends_itself(script)
    has_whole_nodes = script.has_nodes_alone or script.resources.gpu_count >= WHOLE_NODE_GPUS
    if has_whole_nodes or not script.directive_lines:
        return
    for command in script.named("pkill", "killall"):
        pattern = _pattern(command)
        if pattern and command.source is script.body.source:
            what = f"{command.name} also ends {visible(pattern)[:40]} of your other jobs on the node"
            fix = f"kill $! of what the script starts, or pkill -P $$ {pattern}"
            severity: Severity | None = "info" if script.resources.gpu_count > 1 else None
            yield Hit(script.at_command(command), what, fix, severity)


def _ends_itself(script: JobScript) -> Iterator[Hit]:
    """Find a pkill -f that ends its own shell and srun, whose command lines hold the text of bash -c."""
    for launch in script.steps:
        for shell, body in launch.strings:
            for command in body.commands if shell.option("command") else ():
                pattern = _pattern(command) if _matches_command_lines(command) else ""
                if pattern and _matches(pattern, body.source.text):
                    what = f"pkill -f finds '{visible(pattern)[:40]}' in the text of this {shell.name} -c: "
                    what += "it ends the shell that runs it, and srun"
                    fix = f"srun {shell.name} -s <<'END' instead: the text is then in no command line"
                    yield Hit(script.at_command(launch.command), what, fix)
                    return


def _matches_command_lines(command: Command) -> bool:
    """Return whether a command is pkill -f, which compares its pattern with whole command lines."""
    return command.name == "pkill" and any(
        word.text == "--full" or re.fullmatch(r"-[a-z]*f[a-z]*", word.text) for word in command.words[1:]
    )


def _pattern(command: Command) -> str:
    """Return the pattern of a pkill or killall.

    The result is "" if the pattern is unknown, or if other options also choose the processes.
    """
    if command.name not in ("pkill", "killall"):
        return ""
    words = [word.value for word in command.words[1:]]
    pattern = ""
    for before, word in zip(("", *words), words, strict=False):
        if word is None:
            return ""
        is_signal = word != "-0" and _SIGNAL_OPTION.fullmatch(word)  # -0 ends no process
        if _CHOICE_OPTION.match(word) and not is_signal:
            return ""
        if before not in _VALUE_OPTIONS and not word.startswith("-"):
            pattern = word
    return pattern


def _matches(pattern: str, text: str) -> bool:
    """Return whether a plain pattern matches in a text; the pattern may hold .*, [x] and |.

    The parts between .* are searched one after the other, as a pattern with many .* may take very long.
    """
    if not re.fullmatch(r"(?:[\w /:=@%,.|-]|\.\*|\[\w\])+", pattern):
        return False
    for alternative in pattern.split("|"):
        at = 0
        for part in alternative.split(".*"):
            match = re.compile(part).search(text, at)
            if match is None:
                break
            at = match.end()
        else:
            return True
    return False


@RULES.add(
    "SB625",
    "warning",
    "a TERM that reaches srun and not its tasks",
    source="docs/design/slurm.md",
    words=("trap",),
)
def _ends_srun(script: JobScript) -> Iterator[Hit]:
    for command in _trap_commands(script):
        if command.name != "kill" or not _is_term(command):
            continue
        for word in command.words[1:]:
            launch = _step_with_process_id(script, word.variables)
            if launch:
                what = "TERM to srun ends its tasks at once, without a TERM: "
                what += f"{launch.program.name} in line {launch.command.line} saves nothing"
                fix = "scancel --signal=TERM $SLURM_JOB_ID, to all tasks"
                yield Hit(script.at_command(command), what, fix)
                return


@RULES.add(
    "SB626",
    "warning",
    "a wait that a trap ends",
    source="bash(1)",
    words=("trap",),
    report="https://github.com/ascii-supply-networks/dagster-slurm/pull/193",
)
def _ends_wait(script: JobScript) -> Iterator[Hit]:
    signal, waits = signal_of(script, to_batch_shell=True), script.named("wait")
    names_in_traps = {command.name for command in _trap_commands(script)}
    if signal is None or "kill" not in names_in_traps or len(waits) != 1:
        return
    if names_in_traps & _BLOCKING_PROGRAMS or "kill -0" in script.text:
        return  # the trap itself may wait
    wait, background = waits[0], [launch for launch in script.launches if launch.command.in_background]
    waits_later = any(
        command.at > wait.at and command.name in _BLOCKING_PROGRAMS - {"exit"}
        for command in script.body.commands
    )
    if background and wait.context.is_top_level and not wait.context.in_loop and not waits_later:
        what = f"bash ends this wait when it has run the trap for {signal}: the script ends as well, and "
        what += f"Slurm kills {background[-1].program.name[:30]} while it still saves"
        fix = "while kill -0 $pid 2>/dev/null; do wait $pid; done; wait $pid"
        yield Hit(script.at_command(wait), what, fix)


_BLOCKING_PROGRAMS = programs("blocks")  # a trap waits for them or ends with them, such as sleep and exit


def _trap_commands(script: JobScript) -> Iterator[Command]:
    """Yield the commands that run at a signal: in the strings of traps, and in functions called there."""
    for trap, body in script.body.traps:
        signals = {word.text.removeprefix("SIG") for word in trap.words[2:]} - {"EXIT", "0", "ERR"}
        if not signals:
            continue
        called = {command.name for command in body.commands}
        yield from body.commands
        yield from (command for command in script.body.commands if command.context.function in called)


def _is_term(command: Command) -> bool:
    """Return whether a kill sends TERM: its words name TERM, or no signal."""
    options = [word.text for word in command.words[1:] if _SIGNAL_OPTION.fullmatch(word.text)]
    words = [word.text.removeprefix("SIG") for word in command.words[1:]]
    if "-s" in words or "--signal" in words:
        return "TERM" in words or "15" in words
    return all(option.removeprefix("-").removeprefix("SIG") in ("TERM", "15") for option in options)


def _step_with_process_id(script: JobScript, names: tuple[str, ...]) -> Launch | None:
    """Return the training's background step, if one of these variables holds its process id, as in pid=$!."""
    for name in names:
        sets = [setting for setting in script.body.assignments if setting.name == name and setting.word]
        holds_process_id = sets and all("!" in setting.word.variables for setting in sets if setting.word)
        if name != "!" and not holds_process_id:
            continue
        at = sets[-1].at if sets else len(script.text)
        before = [command for command in script.body.commands if command.in_background and command.at < at]
        last = max(before, key=lambda command: command.at, default=None)
        for launch in script.trainings:
            if launch.command is last and launch.step and last.pipe is None and not last.context.in_subshell:
                return launch
    return None
