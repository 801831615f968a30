"""Finds scripts that only print the failure of their last program, and then end with status 0.

`statuses` reports them with its rule SB312. Source: bash(1), EXIT STATUS.
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
# A program or a text that shows that the script is meant to continue after a failure.
_IGNORING_PROGRAMS = frozenset(("true", ":"))
_WARNING_TEXT = re.compile(r"(?i)\bwarn|non-?fatal|not fatal|optional|skip|continu|ignor")


def printed_failures(script: JobScript) -> Iterator[Hit]:
    """Yield a hit if the script tests whether its last program failed, only prints that, and ends with 0."""
    body = script.body
    work = _last_work(script)
    if work is None or body.traps or body.faults or _is_lost_in_pipe(body, work):
        return
    same_pipe = [command for stage in work.pipe.stages for command in stage] if work.pipe else []
    following = (command for command in body.commands if command.at > work.at and command not in same_pipe)
    later = [
        command for command in following if not (command.context.function or command.context.in_substitution)
    ]
    continues = work.context.is_tested or not body.is_option_on("errexit", work.line)
    only_small_follow = all(
        command.is_test or not command.name or command.name in _SMALL_PROGRAMS for command in later
    )
    if not later or not continues or not only_small_follow:
        return
    reads_status = any(use.name in ("?", "PIPESTATUS") and use.at > work.at for use in body.variable_uses)
    in_branches = [command for command in later if command.context.in_branch]
    is_meant = any(
        command.name in _IGNORING_PROGRAMS or _WARNING_TEXT.search(command.text) for command in in_branches
    )
    if is_meant or not (work.context.is_tested or reads_status):
        return
    statements = [node for node in body.source.nodes[0].children if node.start < body.end]
    last = next((node for node in reversed(statements) if node.kind != "comment"), None)
    if last and last.end > work.at and _has_status_0(body, last):
        name = work.name[:30] or "the program"
        what = f"if {name} in line {work.line} fails, the script still ends with 0: "
        what += "the job is shown as COMPLETED"
        yield Hit(script.at_command(later[0]), what, "exit 1 where it has failed")


def _last_work(script: JobScript) -> Command | None:
    """Return the command of the script's last training, step or mpirun.

    The result is None if it does not always run, or runs in the background.
    """
    launches = (launch for launch in script.launches if launch.is_training or launch.step or launch.mpi)
    commands = [launch.command for launch in launches if not launch.is_helper]
    work = commands[-1] if commands else None
    if work is None or not work.context.is_top_level or work.context.in_loop or work.in_background:
        return None
    return work


def _is_lost_in_pipe(body: Body, work: Command) -> bool:
    """Return whether a pipe hides the status of the command, which SB311 reports."""
    has_pipe = work.pipe is not None and len(work.pipe.stages) > 1
    reads_status = any(use.name == "PIPESTATUS" for use in body.variable_uses)
    return has_pipe and not reads_status and not body.is_option_on("pipefail", work.line)


def _has_status_0(body: Body, node: Node) -> bool:
    """Return whether a statement of small commands such as echo, perhaps in an `if`, always has status 0."""
    if node.kind == "redirected_statement" and node.children:
        return _has_status_0(body, node.children[0])
    if node.kind == "list" and len(node.children) > 1:
        return node.children[-2].kind == "||" and _has_status_0(body, node.children[-1])
    if node.kind == "if_statement":
        # The last node of the test, and of each branch after it.
        last_nodes = [
            node
            for node, following in pairwise((*node.children, None))
            if following is None or _begins_branch(following)
        ]
        return all(last is not None and _has_status_0(body, last) for last in last_nodes[1:])
    if node.kind in ("elif_clause", "else_clause") or body.source.text.startswith("{", node.start):
        return bool(node.children) and _has_status_0(body, node.children[-1])
    command = next((command for command in body.commands if command.at == node.start), None)
    if node.kind != "command" or command is None or command.is_test:
        return False
    return command.name != "scontrol" or "requeue" not in command.arguments  # a requeued job continues


def _begins_branch(node: Node) -> bool:
    """Return whether a node of an `if` begins a branch."""
    return node.kind in ("then", "elif_clause", "else_clause")
