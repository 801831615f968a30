"""Rules about the end of a dry run, and about the files and nodes that the script looks for.

Sources: bash(1), EXIT STATUS; sbatch(1).
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from sbatchgen.base.finding import Severity
from sbatchgen.base.quoting import counted
from sbatchgen.check.executables.program import SHELLS, programs
from sbatchgen.check.rules import directives, environment, safety, statuses, syntax
from sbatchgen.check.rules.rule import UNFINISHED_DRY_RUN, Hit, Rules
from sbatchgen.check.sbatch.header import Kind
from sbatchgen.lab.plan.dry_run import MAX_SECONDS, SHOWN_STEPS, STARTS_PER_RUN, DryRun
from sbatchgen.lab.plan.missing import functions_of, last_line
from sbatchgen.lab.plan.overlaps import may_lack_values
from sbatchgen.lab.plan.stand_ins import SCRIPT
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.sandbox.box import BoxLimits

RULES: Rules[DryRun] = Rules()

_LAST_COMMANDS = 200  # commands at the end of a trace, in which a loop is looked for
_MIN_ROUNDS = 5  # how often a line must be among these commands to be in a loop
_SPOOL_FOLDER = SCRIPT.rpartition("/")[0] + "/"
_SCRIPT_READERS = SHELLS | {".", "perl", "source"}  # programs that read a file of commands
_SHELL_WORD = re.compile(r"(?:^|/)(?:ba|da|k|)sh$|\.sh$")  # a word such as bash, /bin/sh or run.sh
_PARSE_ERROR = re.compile(
    # SCRIPT: line 9: syntax error: unexpected end of file; an error of arithmetic says "operand expected"
    rf"^{re.escape(SCRIPT)}: (line (\d+): .*(?:syntax error(?!: op)|unexpected EOF).*)$",
    re.MULTILINE,
)
# bash: -c: line 1: syntax error near unexpected token `fi', from a bash that a step starts
_TASK_PARSE_ERROR = re.compile(
    r"^(?!/var/spool)(\S+: (?:-c: )?(?:line )?\d+: .*(?:yntax error|unexpected EOF|cannot open).*)$",
    re.MULTILINE,
)
# SCRIPT: line 4: * 2: syntax error: operand expected (error token is "* 2")
_ARITHMETIC_ERROR = re.compile(rf"^{re.escape(SCRIPT)}: line (\d+): (.*: syntax error: op.*)$", re.MULTILINE)
# ssh to a host such as gpu-a012; not to the login node, and not to node1 and the like, the nodes of plans
_SSH_TO_NODE = re.compile(r"ssh (?:-\S+ )*(?:\w+@)?(?!login|node\d+ )([a-z][a-z-]*\d[a-z]*\d\w+) ")
_LIMIT_TEXTS = {
    "records": "runs more commands, or starts more programs, than a plan reads",
    "memory": "needs more than 1 GiB of memory here",
    "processes": f"needs more than {BoxLimits().processes} processes here",
}
_DAMAGE_TEXT = "damages the sandbox, so that what it started is not known"
# The first words of commands that need the internet; the programs `fetches` need it only for an address.
_DOWNLOADING = "|".join(sorted(programs("downloads", "fetches"))).replace("pip ", r"pip[\d.]* ")
_DOWNLOAD_COMMAND = re.compile(rf"(?:python[\d.]* -m )?(?:{_DOWNLOADING})\b")
_REMOTE_ADDRESS = re.compile(
    r"(?:https?|ftp|ssh|git|docker|oras|library)://(?!localhost|127\.|\[::1\])|^[\w.-]+@[\w.-]+:"
)
_FETCHES = tuple(programs("fetches"))
# An argument by which a program takes its files from this machine, such as --offline or ./wheels.
_LOCAL_SOURCE = re.compile(
    r"--(?:no-index|offline|dry-run|use-local|find-links|clone)\b|^(?:-f|\.|/|\.{1,2}/|file:)"
)
_PROXY = re.compile(r"(?i)\b(?:https?|all)_proxy=")


def _end_line(done: DryRun) -> int:
    """Return the line at which the script ended."""
    return last_line(done.trace, functions_of(done.script.body))


def _stderr(done: DryRun) -> str:
    return done.ended.files.get("err", "")


@RULES.add(
    UNFINISHED_DRY_RUN, "info", "a script that does not end in a dry run", source="docs/how-to/plan.md"
)
def _limited(done: DryRun) -> Iterator[Hit]:
    limit, count = done.ended.limit, len(done.steps)
    if limit == "time" and count >= SHOWN_STEPS:
        others = f"at least {done.steps_not_shown} others" if done.steps_not_shown else "the others"
        what = (
            f"the plan shows the first {SHOWN_STEPS} steps and ends at its limit: {others} were not checked"
        )
        yield Hit(done.at(done.steps[-1].line), what, "plan a loop of fewer rounds", "warning")
    elif limit == "time":
        what = "the script did not end in a dry run: what follows is not shown"
        loop = _loop_line(done)
        fix = f"start fewer than {STARTS_PER_RUN} programs up to there, or see what it waits for"
        if loop:
            fix = "see the loop there: it waits for something that did not happen"
        yield Hit(done.at(loop or _end_line(done)), what, fix)
    elif limit == "machine":
        what = f"this machine was too slow for a plan: it ended after {MAX_SECONDS:g} s: "
        what += "what follows is not shown"
        yield Hit(done.at(_end_line(done)), what, "plan on a machine that is less busy", "warning")
    elif limit:
        after = f"after {counted(count, 'step')}" if count else "before any program"
        what = f"the plan ends early, {after}: the script {_LIMIT_TEXTS.get(limit, _DAMAGE_TEXT)}"
        yield Hit(done.at(_end_line(done)), what, "see the loop there", None if count else "warning")


@RULES.add_for_dry_run(directives.RULES, "SB147")
def _heterogeneous(done: DryRun) -> Iterator[Hit]:
    """Find heterogeneous jobs, because a plan shows only their first component."""
    directives = done.script.sbatch.directives
    separator_lines = [directive.line for directive in directives if directive.kind is Kind.SEPARATOR]
    if separator_lines:
        what = "the plan shows the first component of this heterogeneous job, and its nodes for all steps"
        yield Hit(done.at(separator_lines[0]), what, "plan each component as a script of its own")


def _loop_line(done: DryRun) -> int:
    """Return the first line of a loop that ran at the end of the trace; 0 without a loop."""
    times = Counter(entry.line for entry in done.trace[-_LAST_COMMANDS:])
    return min((line for line, count in times.items() if count >= _MIN_ROUNDS), default=0)


@RULES.add("SB337", "info", "a script that starts no program", source="bash(1)")
def _nothing_started(done: DryRun) -> Iterator[Hit]:
    if done.steps or done.needed or done.ended.limit or _PARSE_ERROR.search(_stderr(done)):
        return
    if done.ended.status:
        what = f"the script ends with {done.ended.status} before it starts a program"
        yield Hit(
            done.at(_end_line(done)),
            f"{what}: {done.last_message}" if done.last_message else what,
            "see this line",
        )
    elif done.script.launches:
        launch = done.script.launches[-1]
        what = f"{launch.program.name} is never reached: the script ends with 0 at line {_end_line(done)}"
        yield Hit(done.at(launch.command.line), what, "see the conditions around it")


@RULES.add("SB338", "warning", "an expression that bash can't compute", source="bash(1)")
def _not_computed(done: DryRun) -> Iterator[Hit]:
    match = _ARITHMETIC_ERROR.search(_stderr(done))
    if match and not may_lack_values(done):
        fix = "print its variables before this line: one of them is empty"
        yield Hit(done.at(number_of(match[1])), f"bash can't compute this: {match[2]}", fix)


@RULES.add_for_dry_run(syntax.RULES, "SB814", "warning")
def _not_parsed(done: DryRun) -> Iterator[Hit]:
    match = _PARSE_ERROR.search(_stderr(done))
    if match and not done.ended.limit:
        before = "before its end" if done.steps else "before it starts a program"
        what = f"the script ends with {done.ended.status} {before}: {match[1]}"
        fix = "close what is open, or fill in what is missing"
        if done.script.body.language == "ksh":  # ksh has syntax that bash lacks
            what = f"bash, which stands for ksh in a plan, can't parse this: {match[1]}"
            fix = "plan a script of bash"
        severity: Severity | None = "info" if done.script.body.language == "ksh" else None
        yield Hit(done.at(number_of(match[2])), what, fix, severity)
    task_error = _TASK_PARSE_ERROR.search(_stderr(done))
    for step in done.steps if task_error else ():
        is_shell = any(_SHELL_WORD.search(word) for word in step.command if not word.startswith("-"))
        if task_error and step.is_srun and is_shell and not step.processes:
            fix = "the text in quotes is a script: close or fill in what is missing"
            yield Hit(done.at(step.line), f"no task of this step starts a program: {task_error[1]}", fix)


@RULES.add_for_dry_run(statuses.RULES, "SB311", "info")
def _lost_in_a_pipe(done: DryRun) -> Iterator[Hit]:
    hiding = _hiding_command(done)
    if hiding and hiding.pipe_end:
        name, line = hiding.pipe_end
        what = f"the job ends with 0 even if every program in it fails: the pipe to {name} hides it"
        yield Hit(done.at(line), what, "set -o pipefail")


@RULES.add_for_dry_run(statuses.RULES, "SB312", "info")
def _lost_by_the_last(done: DryRun) -> Iterator[Hit]:
    hiding = _hiding_command(done)
    if hiding and not hiding.pipe_end:
        what = f"the job ends with 0 even if every program in it fails: {hiding.name} comes last"
        fix = "set -e at the start, or keep the status: rc=$?; ...; exit $rc"
        if hiding.name == "wait":
            fix = "wait for each process by its id: wait $id || exit"
        yield Hit(done.at(hiding.line), what, fix)


class _HidingCommand(NamedTuple):
    """A command after which a job ends with 0 although all its programs fail."""

    name: str
    line: int
    pipe_end: tuple[str, int] | None  # the last program of its pipe, whose status counts, and its line


def _hiding_command(done: DryRun) -> _HidingCommand | None:
    """Return the command that hides the failures of all programs; None for a job that hides none."""
    failing = done.failing
    if not failing or failing.ended.status or failing.ended.limit or not failing.steps or not failing.trace:
        return None
    line, command, folder = failing.trace[-1]
    name = command.partition(" ")[0].strip("'").rpartition("/")[2]
    last = failing.script.body.last_command
    if last and any(step.background and step.line == line for step in failing.steps):
        line, name = last.line, last.name  # the trace of a process in the background may come last
    if name in ("", "true", ":"):  # || true is meant to hide the failure
        return None
    commands = failing.script.body.commands
    pipes = (command.pipe for command in commands if command.line <= line <= command.end_line)
    pipe = next(filter(None, pipes), None)
    if pipe:
        return _HidingCommand(name, line, (pipe.stages[-1][-1].name, pipe.stages[-1][-1].line))
    paths = {os.path.normpath(os.path.join(folder, part)) for part in command.split()}  # noqa: PTH118
    if name in _SCRIPT_READERS and any(failing.inputs.files.get(path) == b"" for path in paths):
        return None  # the plan put an empty file there, so its commands are not known
    return _HidingCommand(name, line, None)


@RULES.add_for_dry_run(safety.RULES, "SB813", "warning")
def _option_as_program(done: DryRun) -> Iterator[Hit]:
    for step in done.steps:
        words = done.script.lines[step.line - 1].split() if step.line <= len(done.script.lines) else []
        if step.command and words and step.command[0].startswith("-") and step.command[0] == words[0]:
            what = f"the script starts '{step.command[0]}' as a program: the line before does not continue"
            yield Hit(done.at(step.line), what, "end that line with a backslash, and no comment on it")


@RULES.add_for_dry_run(environment.RULES, "SB401")
def _missing_in_spool(done: DryRun) -> Iterator[Hit]:
    need = next((need for need in done.needed if need.name.startswith(_SPOOL_FOLDER)), None)
    if need:
        what = f"Slurm runs a copy of the script in its spool folder, where there is no {need.name}"
        fix = 'write "$SLURM_SUBMIT_DIR", the folder in which sbatch is called, or the full path'
        yield Hit(done.at(need.line), what, fix)


@RULES.add("SB339", "info", "a connection to a node that the script names", source="sbatch(1)")
def _named_node(done: DryRun) -> Iterator[Hit]:
    for line, command, _ in done.trace:
        match = _SSH_TO_NODE.match(command)
        if match and match[1] in done.script.text and match[1] not in done.script.option("nodelist"):
            what = f"ssh goes to {match[1]}, which the script names: the job may run on other nodes"
            yield Hit(done.at(line), what, "head=$(scontrol show hostnames | head -n 1)")
            return


@RULES.add("SB429", "warning", "a download on nodes without the internet", source="docs/reference/profile.md")
def _downloads(done: DryRun) -> Iterator[Hit]:
    names = list(done.script.resources.partitions) or [str(done.profile.default_partition)]
    partitions = [partition for name, partition in done.profile.partitions.items() if str(name) in names]
    if not partitions or any(partition.internet is not False for partition in partitions):
        return
    if _PROXY.search(done.script.text):  # nodes without the internet may reach a proxy
        return
    lines = set()
    for entry in done.trace:
        if entry.line not in lines and (words := _downloading_words(entry.command)):
            lines.add(entry.line)
            what = f"{words} needs the internet, and nodes of {names[0]} have none"
            why = "internet: false in the profile says that nodes can't"
            yield Hit(done.at(entry.line), what, f"do it on the login node, before the job ({why})")


def _downloading_words(command: str) -> str:
    """Return the first words of a command that needs the internet; "" for another command."""
    match = _DOWNLOAD_COMMAND.match(command)
    if not match:
        return ""
    try:
        words = shlex.split(command[match.end() :])
    except ValueError:
        return ""
    if match[0].startswith(_FETCHES):
        has_remote_address = any(map(_REMOTE_ADDRESS.search, words))
        return match[0] if has_remote_address else ""
    return "" if any(map(_LOCAL_SOURCE.match, words)) else match[0]
