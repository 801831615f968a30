"""Rules about the end of a plan, and about files, nodes and downloads that a script needs.

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

_LAST_COMMANDS = 200  # commands at the end of a trace in which a loop is looked for
_MIN_ROUNDS = 5  # a line that ran at least so often among these commands is in a loop
_SPOOL_FOLDER = SCRIPT.rpartition("/")[0] + "/"
_SCRIPT_READERS = SHELLS | {".", "perl", "source"}  # programs that read a file of commands
_SHELL_WORD = re.compile(r"(?:^|/)(?:ba|da|k|)sh$|\.sh$")  # a word such as bash, /bin/sh or run.sh
_PARSE_ERROR = re.compile(
    # SCRIPT: line 9: syntax error: unexpected end of file. Not an error of arithmetic, which continues with
    # "operand expected".
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
# ssh to a host such as gpu-a012, but not to the login node or to node1, which is the name of a plan's node.
_SSH_TO_NODE = re.compile(r"ssh (?:-\S+ )*(?:\w+@)?(?!login|node\d+ )([a-z][a-z-]*\d[a-z]*\d\w+) ")
# By the limit at which a plan ended: what the script does, after "the script".
_LIMIT_TEXTS = {
    "records": "runs more commands, or starts more programs, than a plan reads",
    "memory": "needs more than 1 GiB of memory here",
    "processes": f"needs more than {BoxLimits().processes} processes here",
}
_DAMAGE_TEXT = "damages the sandbox, so that what it started is not known"
# The first words of commands that need the internet. Those of the kind `fetches` need it only for an address.
_DOWNLOADING = "|".join(sorted(programs("downloads", "fetches"))).replace("pip ", r"pip[\d.]* ")
_DOWNLOAD_COMMAND = re.compile(rf"(?:python[\d.]* -m )?(?:{_DOWNLOADING})\b")
_REMOTE_ADDRESS = re.compile(
    r"(?:https?|ftp|ssh|git|docker|oras|library)://(?!localhost|127\.|\[::1\])|^[\w.-]+@[\w.-]+:"
)
_FETCHES = tuple(programs("fetches"))
# An argument with which a program takes its files from this machine, such as --offline or ./wheels.
_LOCAL_SOURCE = re.compile(
    r"--(?:no-index|offline|dry-run|use-local|find-links|clone)\b|^(?:-f|\.|/|\.{1,2}/|file:)"
)
_PROXY = re.compile(r"(?i)\b(?:https?|all)_proxy=")


def _end_line(plan: DryRun) -> int:
    """Return the line of the script at which it ended."""
    return last_line(plan.trace, functions_of(plan.script.body))


def _stderr(plan: DryRun) -> str:
    return plan.result.files.get("err", "")


@RULES.add(
    UNFINISHED_DRY_RUN, "info", "a script that does not end in a dry run", source="docs/how-to/plan.md"
)
def _plan_at_limit(plan: DryRun) -> Iterator[Hit]:
    limit, count = plan.result.limit, len(plan.steps)
    if limit == "time" and count >= SHOWN_STEPS:
        others = f"at least {plan.steps_not_shown} others" if plan.steps_not_shown else "the others"
        what = (
            f"the plan shows the first {SHOWN_STEPS} steps and ends at its limit: {others} were not checked"
        )
        yield Hit(plan.at(plan.steps[-1].line), what, "plan a loop of fewer rounds", "warning")
    elif limit == "time":
        what = "the script did not end in a dry run: what follows is not shown"
        loop = _loop_line(plan)
        fix = f"start fewer than {STARTS_PER_RUN} programs before this line, or check what it waits for"
        if loop:
            fix = "check the loop at this line: it waits for something that did not happen"
        yield Hit(plan.at(loop or _end_line(plan)), what, fix)
    elif limit == "machine":
        what = f"this machine was too slow for a plan, which ended after {MAX_SECONDS:g} s: "
        what += "what follows is not shown"
        yield Hit(plan.at(_end_line(plan)), what, "plan on a machine that is less busy", "warning")
    elif limit:
        after = f"after {counted(count, 'step')}" if count else "before any program"
        what = f"the plan ends early, {after}: the script {_LIMIT_TEXTS.get(limit, _DAMAGE_TEXT)}"
        yield Hit(plan.at(_end_line(plan)), what, "check the loop at this line", None if count else "warning")


@RULES.add_for_dry_run(directives.RULES, "SB147")
def _heterogeneous_job(plan: DryRun) -> Iterator[Hit]:
    """Find heterogeneous jobs, because a plan shows only their first component."""
    directives = plan.script.sbatch.directives
    separator_lines = [directive.line for directive in directives if directive.kind is Kind.SEPARATOR]
    if separator_lines:
        what = "the plan shows the first component of this heterogeneous job, and its nodes for all steps"
        yield Hit(plan.at(separator_lines[0]), what, "plan each component as a script of its own")


def _loop_line(plan: DryRun) -> int:
    """Return the first line of a loop that ran at the end of the trace; 0 without a loop."""
    rounds_by_line = Counter(entry.line for entry in plan.trace[-_LAST_COMMANDS:])
    return min((line for line, count in rounds_by_line.items() if count >= _MIN_ROUNDS), default=0)


@RULES.add("SB337", "info", "a script that starts no program", source="bash(1)")
def _nothing_started(plan: DryRun) -> Iterator[Hit]:
    if plan.steps or plan.needed or plan.result.limit or _PARSE_ERROR.search(_stderr(plan)):
        return
    if plan.result.status:
        what = f"the script ends with {plan.result.status} before it starts a program"
        yield Hit(
            plan.at(_end_line(plan)),
            f"{what}: {plan.last_message}" if plan.last_message else what,
            "check the command at this line",
        )
    elif plan.script.launches:
        launch = plan.script.launches[-1]
        what = f"{launch.program.name} is never reached: the script ends with 0 at line {_end_line(plan)}"
        yield Hit(plan.at(launch.command.line), what, "check the conditions around this line")


@RULES.add("SB338", "warning", "an expression that bash can't compute", source="bash(1)")
def _wrong_arithmetic(plan: DryRun) -> Iterator[Hit]:
    match = _ARITHMETIC_ERROR.search(_stderr(plan))
    if match and not may_lack_values(plan):
        fix = "print its variables before this line: one of them is empty"
        yield Hit(plan.at(number_of(match[1])), f"bash can't compute this: {match[2]}", fix)


@RULES.add_for_dry_run(syntax.RULES, "SB814", "warning")
def _syntax_error(plan: DryRun) -> Iterator[Hit]:
    match = _PARSE_ERROR.search(_stderr(plan))
    if match and not plan.result.limit:
        moment = "before its end" if plan.steps else "before it starts a program"
        what = f"the script ends with {plan.result.status} {moment}: {match[1]}"
        fix = "close the open quote, bracket or block, or add the missing word"
        if plan.script.body.language == "ksh":  # ksh has syntax that bash lacks
            what = f"bash, which stands for ksh in a plan, can't parse this: {match[1]}"
            fix = "plan a script of bash"
        severity: Severity | None = "info" if plan.script.body.language == "ksh" else None
        yield Hit(plan.at(number_of(match[2])), what, fix, severity)
    task_error = _TASK_PARSE_ERROR.search(_stderr(plan))
    if not task_error:
        return
    for step in plan.steps:
        is_shell = any(_SHELL_WORD.search(word) for word in step.command if not word.startswith("-"))
        if task_error and step.is_srun and is_shell and not step.processes:
            fix = "the text in quotes is a script: close or fill in what is missing"
            yield Hit(plan.at(step.line), f"no task of this step starts a program: {task_error[1]}", fix)


@RULES.add_for_dry_run(statuses.RULES, "SB311", "info")
def _status_lost_in_pipe(plan: DryRun) -> Iterator[Hit]:
    hiding_command = _hiding_command(plan)
    if hiding_command and hiding_command.pipe_end:
        name, line = hiding_command.pipe_end
        what = f"the job ends with 0 even if every program in it fails: the pipe to {name} hides it"
        yield Hit(plan.at(line), what, "set -o pipefail")


@RULES.add_for_dry_run(statuses.RULES, "SB312", "info")
def _status_lost_by_last_command(plan: DryRun) -> Iterator[Hit]:
    hiding_command = _hiding_command(plan)
    if hiding_command and not hiding_command.pipe_end:
        what = f"the job ends with 0 even if every program in it fails: {hiding_command.name} comes last"
        fix = "set -e at the start, or keep the status: rc=$?; ...; exit $rc"
        if hiding_command.name == "wait":
            fix = "wait for each process by its id: wait $id || exit"
        yield Hit(plan.at(hiding_command.line), what, fix)


class _HidingCommand(NamedTuple):
    """A command after which a job ends with 0 although all its programs fail."""

    name: str
    line: int
    # the name and the line of the last program of its pipe, whose status counts; None without a pipe
    pipe_end: tuple[str, int] | None


def _hiding_command(plan: DryRun) -> _HidingCommand | None:
    """Return the command that hides the failures of all programs; None for a job that hides none."""
    failing = plan.failing  # the run in which every program fails
    if not failing or failing.result.status or failing.result.limit or not failing.steps or not failing.trace:
        return None
    line, command, folder = failing.trace[-1]  # the last command, whose status the job has
    name = command.partition(" ")[0].strip("'").rpartition("/")[2]
    last = failing.script.body.last_command
    if last and any(step.background and step.line == line for step in failing.steps):
        line, name = last.line, last.name  # the last traced command may be one in the background
    if name in ("", "true", ":"):  # the author wrote `|| true` to hide the failure
        return None
    commands = failing.script.body.commands
    pipes = (command.pipe for command in commands if command.line <= line <= command.end_line)
    pipe = next(filter(None, pipes), None)
    if pipe:
        return _HidingCommand(name, line, (pipe.stages[-1][-1].name, pipe.stages[-1][-1].line))
    paths = {os.path.normpath(os.path.join(folder, part)) for part in command.split()}  # noqa: PTH118
    if name in _SCRIPT_READERS and any(failing.inputs.files.get(path) == b"" for path in paths):
        return None  # the plan has an empty stand-in for this script, so its commands are not known
    return _HidingCommand(name, line, None)


@RULES.add_for_dry_run(safety.RULES, "SB813", "warning")
def _option_as_program(plan: DryRun) -> Iterator[Hit]:
    for step in plan.steps:
        words = plan.script.lines[step.line - 1].split() if step.line <= len(plan.script.lines) else []
        if step.command and words and step.command[0].startswith("-") and step.command[0] == words[0]:
            what = f"the script starts '{step.command[0]}' as a program: the line before does not continue"
            yield Hit(plan.at(step.line), what, "end that line with a backslash, and no comment on it")


@RULES.add_for_dry_run(environment.RULES, "SB401")
def _file_missing_in_spool(plan: DryRun) -> Iterator[Hit]:
    need = next((need for need in plan.needed if need.name.startswith(_SPOOL_FOLDER)), None)
    if need:
        what = f"Slurm runs a copy of the script in its spool folder, where there is no {need.name}"
        fix = 'write "$SLURM_SUBMIT_DIR", the folder in which sbatch is called, or the full path'
        yield Hit(plan.at(need.line), what, fix)


@RULES.add("SB339", "info", "a connection to a node that the script names", source="sbatch(1)")
def _ssh_to_named_node(plan: DryRun) -> Iterator[Hit]:
    for line, command, _ in plan.trace:
        match = _SSH_TO_NODE.match(command)
        if match and match[1] in plan.script.text and match[1] not in plan.script.option("nodelist"):
            what = f"ssh goes to {match[1]}, which the script names: the job may run on other nodes"
            yield Hit(plan.at(line), what, "head=$(scontrol show hostnames | head -n 1)")
            return


@RULES.add("SB429", "warning", "a download on nodes without the internet", source="docs/reference/profile.md")
def _download_without_internet(plan: DryRun) -> Iterator[Hit]:
    names = list(plan.script.resources.partitions) or [str(plan.profile.default_partition)]
    partitions = [partition for name, partition in plan.profile.partitions.items() if str(name) in names]
    if not partitions or any(partition.internet is not False for partition in partitions):
        return
    if _PROXY.search(plan.script.text):  # through a proxy, such nodes may reach the internet
        return
    lines = set()
    for entry in plan.trace:
        if entry.line not in lines and (words := _downloading_words(entry.text)):
            lines.add(entry.line)
            what = f"{words} needs the internet, and nodes of {names[0]} have none"
            why = "internet: false in the profile says that nodes can't"
            yield Hit(plan.at(entry.line), what, f"do it on the login node, before the job ({why})")


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
