"""`--launcher spawn`: one process a node that starts the node's processes and stands for them.

It passes signals on, waits for all, ends the others when one fails, and exits with what they exited with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from training.errors import DONE, PREEMPTED
from training.processes.jobscript import PARENT
from training.processes.ranks import spawn_environments
from training.processes.stop import SIGNALS, handled

POLL_S = 0.05
GRACE_S = 10.0  # for the others to notice by themselves that one has gone, and to say so


def run(argv: list[str], processes: int, *, nodes: int = 0, node: int = 0) -> int:
    """Start this package `processes` times on this node, `node` of `nodes`, and wait for all of them.

    Returns:
        The exit status of the run: that of the first process that failed (128 + N if signal N ended it), else
        75 if any was preempted, else 0.

    Raises:
        UserError: If the environment does not say where to meet the other nodes.
    """
    package = str(Path(__file__).parents[1])
    command = [sys.executable, package, *argv, "--nproc-per-node", "0", "--launcher", "torchrun"]
    known = dict(os.environ) | {PARENT: str(os.getpid())}
    environments = spawn_environments(known, processes, nodes=nodes, node=node)
    return start([command] * processes, environments)


def start(
    commands: Sequence[list[str]], environments: Sequence[Mapping[str, str]], *, ours: bool = True
) -> int:
    """Start processes, pass on signals, wait for all of them; the exit status as `run` has it.

    Args:
        commands: The command of each process.
        environments: The environment of each process.
        ours: Whether the processes are of this package, which takes signals once it is ready for them.
    """
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)  # does nothing to a child that has ended

    handlers = {number: signal.getsignal(number) for number in handled()}
    # Blocked while starting: a signal may not fall between a child's start and its entry in the list.
    # Children of this package inherit that, so theirs wait until they are ready (Stop unblocks them): none
    # kills a half started child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        for number in handlers:
            signal.signal(number, pass_on)
        pairs = zip(commands, environments, strict=True)
        children.extend(
            subprocess.Popen(command, env=environment, preexec_fn=None if ours else unblock)  # noqa: PLW1509 - one thread
            for command, environment in pairs
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return _wait(children)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(children: list[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended; the others get GRACE_S seconds after the first failure, then are killed."""
    failed = 0
    deadline = float("inf")
    while True:
        codes = [child.poll() for child in children]
        if not failed:
            # two may be seen at once: one ended by a signal (below 0) is the cause, the other lost its peer
            failed = min((code for code in codes if code not in (None, DONE, PREEMPTED)), default=0)
            deadline = time.monotonic() + GRACE_S if failed else deadline
        if None not in codes:
            return _status(failed) or (PREEMPTED if PREEMPTED in codes else DONE)
        if time.monotonic() > deadline:
            for child in children:
                child.kill()
        time.sleep(POLL_S)


def _status(code: int) -> int:
    """What a shell would show: Popen's -9 is 137."""
    return 128 - code if code < 0 else code
