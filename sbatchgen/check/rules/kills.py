"""Rules about commands that end more than their author wants: pkill, killall, and kill in traps.

Sources: pgrep(1), killall(1), bash(1); docs/design/slurm.md for the effect of TERM on srun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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

# Options that leave only some of the processes whose names match, such as -P 1 of pkill.
_FILTER_OPTION = re.compile(
    r"-[a-z]*[PgGstFnoOUxAr]|-0$"
    r"|--(?:parent|p?group|session|pidfile|ns|nslist|cgroup|older|newest|oldest|exact|ignore-ancestors|terminal"
    r"|uid|runstates)\b"
)
_SIGNAL_OPTION = re.compile(r"-(?:SIG)?(?:[A-Z][A-Z0-9]+|\d+)")  # such as -SIGTERM, -USR1 and -9
_VALUE_OPTIONS = ("-u", "--signal", "--euid", "--user")  # the word after such an option is not a pattern
_BLOCKING_PROGRAMS = programs("blocks")  # a trap waits for them or ends with them, such as sleep and exit


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
    has_whole_nodes = script.has_own_nodes or script.resources.gpu_count >= WHOLE_NODE_GPUS
    if has_whole_nodes or not script.directive_lines:
        return
    for command in script.named("pkill", "killall"):
        pattern = _pattern(command)
        if pattern and command.source is script.body.source:
            what = f"{command.name} also ends {visible(pattern)[:40]} of your other jobs on the node"
            fix = f"kill $! of what the script starts, or pkill -P $$ {pattern}"
            may_have_node_alone = script.resources.gpu_count > 1
            severity: Severity | None = "info" if may_have_node_alone else None
            yield Hit(script.at_command(command), what, fix, severity)


def _ends_itself(script: JobScript) -> Iterator[Hit]:
    """Find a pkill -f in the string of bash -c that ends its own shell and srun.

    The command lines of both hold the string, and so the pattern.
    """
    for launch in script.steps:
        for shell, body in launch.shell_strings:
            if not shell.option("command"):
                continue
            for command in body.commands:
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
    """Return the pattern of a pkill or killall, such as train.py of pkill -f train.py.

    The result is "" if the text does not show the pattern, or if options leave only some of the processes.
    """
    if command.name not in ("pkill", "killall"):
        return ""
    words = [word.value for word in command.words[1:]]
    pattern = ""
    for previous, word in zip(("", *words), words, strict=False):
        if word is None:
            return ""
        # -USR1 is a signal, although -U leaves some processes. Signal 0 of -0 ends no process.
        is_signal = word != "-0" and _SIGNAL_OPTION.fullmatch(word)
        if _FILTER_OPTION.match(word) and not is_signal:
            return ""
        if previous not in _VALUE_OPTIONS and not word.startswith("-"):
            pattern = word
    return pattern


def _matches(pattern: str, text: str) -> bool:
    """Return whether a plain pattern matches in a text; the pattern may hold .*, [x] and |.

    The parts between .* are searched one after the other, as a pattern with many .* may take very long.
    """
    is_plain = re.fullmatch(r"(?:[\w /:=@%,.|-]|\.\*|\[\w\])+", pattern) is not None
    alternatives = pattern.split("|") if is_plain else ()
    return any(_matches_parts(alternative.split(".*"), text) for alternative in alternatives)


def _matches_parts(parts: Sequence[str], text: str) -> bool:
    """Return whether a text holds matches of these patterns one after the other."""
    offset = 0
    for part in parts:
        match = re.compile(part).search(text, offset)
        if match is None:
            return False
        offset = match.end()
    return True


@RULES.add(
    "SB625",
    "warning",
    "a TERM that reaches srun and not its tasks",
    source="docs/design/slurm.md",
    words=("trap",),
)
def _ends_srun(script: JobScript) -> Iterator[Hit]:
    for command in _trap_commands(script):
        if command.name != "kill" or not _sends_term(command):
            continue
        for word in command.words[1:]:
            launch = _step_of_process_id(script, word.variables)
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
    programs_in_traps = {command.name for command in _trap_commands(script)}
    if signal is None or "kill" not in programs_in_traps or len(waits) != 1:
        return
    if programs_in_traps & _BLOCKING_PROGRAMS or "kill -0" in script.text:
        return  # the trap itself may wait for the program
    wait = waits[0]
    background_launches = [launch for launch in script.launches if launch.command.in_background]
    blocks_later = any(
        command.at > wait.at and command.name in _BLOCKING_PROGRAMS - {"exit"}
        for command in script.body.commands
    )
    # Whether the wait runs once, and always.
    is_plain_wait = wait.context.is_top_level and not wait.context.in_loop
    if background_launches and is_plain_wait and not blocks_later:
        program = background_launches[-1].program.name[:30]
        what = f"bash ends this wait when it has run the trap for {signal}: the script ends as well, and "
        what += f"Slurm kills {program} while it still saves"
        fix = "while kill -0 $pid 2>/dev/null; do wait $pid; done; wait $pid"
        yield Hit(script.at_command(wait), what, fix)


def _trap_commands(script: JobScript) -> Iterator[Command]:
    """Yield the commands that run at a signal: in the strings of traps, and in functions called there."""
    for trap, body in script.body.traps:
        signals = {word.text.removeprefix("SIG") for word in trap.words[2:]} - {"EXIT", "0", "ERR"}
        if not signals:
            continue
        called_names = {command.name for command in body.commands}
        yield from body.commands
        yield from (command for command in script.body.commands if command.context.function in called_names)


def _sends_term(kill: Command) -> bool:
    """Return whether a kill sends TERM: its words name TERM, or no signal."""
    signal_options = [word.text for word in kill.words[1:] if _SIGNAL_OPTION.fullmatch(word.text)]
    words = [word.text.removeprefix("SIG") for word in kill.words[1:]]
    if "-s" in words or "--signal" in words:  # as in kill -s TERM $pid
        return "TERM" in words or "15" in words
    return all(option.removeprefix("-").removeprefix("SIG") in ("TERM", "15") for option in signal_options)


def _step_of_process_id(script: JobScript, variables: tuple[str, ...]) -> Launch | None:
    """Return a training's step in the background, if one of these variables holds its process id.

    For example, pid holds the process id of srun after "srun python train.py & pid=$!".
    """
    for name in variables:
        assignments = [
            setting for setting in script.body.assignments if setting.name == name and setting.word
        ]
        values = [assignment.word for assignment in assignments if assignment.word]
        holds_process_id = values and all("!" in value.variables for value in values)
        if name != "!" and not holds_process_id:
            continue
        # The value $! is the process id of the last command that went to the background before this offset.
        offset = assignments[-1].at if assignments else len(script.text)
        earlier = [
            command for command in script.body.commands if command.in_background and command.at < offset
        ]
        last = max(earlier, key=lambda command: command.at, default=None)
        for launch in script.trainings:
            if launch.command is last and launch.step and last.pipe is None and not last.context.in_subshell:
                return launch
    return None
