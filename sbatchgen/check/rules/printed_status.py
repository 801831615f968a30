"""Finds scripts that only print that their last program failed, so that Slurm shows the job as COMPLETED.

The rule SB312 in `statuses` reports these scripts. Source: bash(1), EXIT STATUS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from sbatchgen.check.executables.program import programs
from sbatchgen.check.rules.rule import Hit
from sbatchgen.check.script.script import JobScript

if TYPE_CHECKING:
    from sbatchgen.check.bash import Body, Command
    from sbatchgen.check.bash.grammar import Node

_SMALL_PROGRAMS = programs("last")  # programs that do no work as the last command of a script, such as echo
_SUCCEEDING_PROGRAMS = programs("succeeds")  # small programs that always end with status 0
# A program or a text in a branch after the last program. Each shows that the script is meant to end with 0.
_IGNORING_PROGRAMS = frozenset(("true", ":"))
_WARNING_TEXT = re.compile(r"(?i)\bwarn|non-?fatal|not fatal|optional|skip|continu|ignor")


def printed_failures(script: JobScript) -> Iterator[Hit]:
    """Yield a hit if a script tests whether its last program failed, but does not keep the program's status.

    For example, the script ends with `if [ $? -ne 0 ]; then echo failed; fi`.
    """
    body = script.body
    work = _last_work(script)
    if work is None or body.traps or body.faults or _is_lost_in_pipe(body, work):
        return
    same_pipe = [command for stage in work.pipe.stages for command in stage] if work.pipe else []
    following = (command for command in body.commands if command.at > work.at and command not in same_pipe)
    later = [
        command for command in following if not (command.context.function or command.context.in_substitution)
    ]
    # With errexit, a failure ends the script with the right status, unless bash tests the program.
    runs_after_failure = work.context.is_tested or not body.is_option_on("errexit", work.line)
    only_small_follow = all(
        command.is_test or not command.name or command.name in _SMALL_PROGRAMS for command in later
    )
    if not later or not runs_after_failure or not only_small_follow:
        return
    reads_status = any(use.name in ("?", "PIPESTATUS") and use.at > work.at for use in body.variable_uses)
    in_branches = [command for command in later if command.context.in_branch]
    ignores_failure = any(
        command.name in _IGNORING_PROGRAMS or _WARNING_TEXT.search(command.text) for command in in_branches
    )
    if ignores_failure or not (work.context.is_tested or reads_status):
        return
    statements = [node for node in body.source.nodes[0].children if node.start < body.end]
    last = next((node for node in reversed(statements) if node.kind != "comment"), None)
    if last and last.end > work.at and (ending := _ending_commands(body, last)):
        name = work.name[:30] or "the program"
        may_fail = [*dict.fromkeys(command.name for command in ending if not always_succeeds(command))]
        condition = f"if {name} in line {work.line} fails"
        if may_fail:
            condition += f" and {' and '.join(may_fail)} succeed{'s' * (len(may_fail) == 1)}"
        what = f"{condition}, the script still ends with 0: the job is shown as COMPLETED"
        yield Hit(script.at_command(later[0]), what, "exit 1 where it has failed")


def _last_work(script: JobScript) -> Command | None:
    """Return the command of the script's last training, step or mpirun.

    The result is None if the command does not always run, or runs in the background.
    """
    launches = (launch for launch in script.launches if launch.is_training or launch.step or launch.mpi)
    commands = [launch.command for launch in launches if not launch.is_helper]
    work = commands[-1] if commands else None
    if work is None or not work.context.is_top_level or work.context.in_loop or work.in_background:
        return None
    return work


def _is_lost_in_pipe(body: Body, work: Command) -> bool:
    """Return whether a pipe hides the status of the command. SB311 reports such a pipe."""
    has_pipe = work.pipe is not None and len(work.pipe.stages) > 1
    reads_status = any(use.name == "PIPESTATUS" for use in body.variable_uses)
    return has_pipe and not reads_status and not body.is_option_on("pipefail", work.line)


def always_succeeds(command: Command) -> bool:
    """Return whether a command always ends with status 0. With a redirection to a file, it may fail."""
    return command.name in _SUCCEEDING_PROGRAMS and not any(
        redirect.target and not redirect.operator.endswith("&") for redirect in command.redirects
    )


def _ending_commands(body: Body, node: Node) -> list[Command]:
    """Return the small commands of a statement, such as echo, whose status the statement may end with.

    An `if` has such a command in each branch. The result is empty if the statement may end in another way.
    """
    if node.kind == "redirected_statement" and node.children:
        return _ending_commands(body, node.children[0])
    if node.kind == "list" and len(node.children) > 1:  # A || B ends with 0, or with the status of B
        return _ending_commands(body, node.children[-1]) if node.children[-2].kind == "||" else []
    if node.kind == "if_statement":
        # The last node of the test, and of each branch after the test.
        last_nodes = [
            node
            for node, following in pairwise((*node.children, None))
            if following is None or _begins_branch(following)
        ]
        of_branches = [_ending_commands(body, last) if last else [] for last in last_nodes[1:]]
        return [command for commands in of_branches for command in commands] if all(of_branches) else []
    if node.kind in ("elif_clause", "else_clause") or body.source.text.startswith("{", node.start):
        return _ending_commands(body, node.children[-1]) if node.children else []
    command = next((command for command in body.commands if command.at == node.start), None)
    if node.kind != "command" or command is None or command.is_test:
        return []
    is_requeue = command.name == "scontrol" and "requeue" in command.arguments  # a requeued job continues
    return [] if is_requeue else [command]


def _begins_branch(node: Node) -> bool:
    """Return whether a node of an `if` begins a branch."""
    return node.kind in ("then", "elif_clause", "else_clause")
