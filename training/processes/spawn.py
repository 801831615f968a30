"""The launcher of `--launcher spawn`: one process on each node, which starts the ranks of the node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from training.errors import DONE, PREEMPTED, complain
from training.processes import hang, resident, stacks
from training.processes.jobscript import PARENT
from training.processes.ranks import spawn_environments
from training.processes.stop import SIGNALS, handled_signals, ignore_signals

POLL_S = 0.05  # seconds between two checks whether processes have ended
# Seconds between the first failure and the kill of the other processes, which may report the failure first.
GRACE_S = 10.0


def run(argv: list[str], processes: int, *, nodes: int = 0, node: int = 0) -> int:
    """Start the ranks of one node, which run this package with `argv`; return the exit status of this node.

    `processes` is the number of ranks on this node, `node` the number of the node, and `nodes` how many nodes
    the job has. If `nodes` is 0, both follow from Slurm's variables.
    """
    package = str(Path(__file__).parents[1])
    # The last flags count, and take the place of `--launcher spawn` in `argv`. As under torchrun, each rank
    # reads its number from its environment, and starts no ranks itself.
    command = [sys.executable, package, *argv, "--nproc-per-node", "0", "--launcher", "torchrun"]
    environment_of_ranks = {**os.environ, PARENT: str(os.getpid())}
    environments = spawn_environments(environment_of_ranks, processes, nodes=nodes, node=node)
    code = start([(command, environment) for environment in environments])
    if code < 0:
        complain(f"error: a rank on {socket.gethostname()} was ended by {_signal_name(-code)}")
    return shell_status(code)


def _signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; "signal 40" for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shell_status(code: int) -> int:
    """Return the exit status that a shell shows for a code of `start`: 137 for -9, which is SIGKILL."""
    return 128 - code if code < 0 else code


def start(processes: Sequence[tuple[list[str], Mapping[str, str]]], *, unblocks_signals: bool = True) -> int:
    """Start commands, each with its environment, pass all signals on to them, and wait for their ends.

    With `unblocks_signals`, the processes start with blocked signals, and unblock them when they are ready,
    as processes of this package do. The result is the exit status of the process that failed first, or -N if
    signal N ended that process. If no process failed, the result is 75 if a process was preempted, else 0.
    """
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        for child in children:
            child.send_signal(number)  # no effect if the child has ended

    handlers = {number: signal.getsignal(number) for number in handled_signals()}
    # Signals are blocked until all children are in the list. Processes of this package inherit the block (see
    # Stop), so a signal does not kill them while they start.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)

    try:
        for number in handlers:
            signal.signal(number, pass_on)
        before_exec = None if unblocks_signals else unblock
        children.extend(
            subprocess.Popen(command, env=stacks.with_hook(env), preexec_fn=before_exec)  # noqa: PLW1509 - one thread
            for command, env in processes
        )
        unblock()
        hang.watch(processes[0][1])  # after the forks, because it starts a thread
        resident.keep_libraries()
        return _wait(children)
    finally:
        unblock()
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(children: list[subprocess.Popen[bytes]]) -> int:
    """Wait until all processes have ended, and return the result of `start`.

    GRACE_S seconds after the first failure, processes that still run are killed.
    """
    failure = 0  # the code of the process that failed first, below 0 for a signal; 0 without a failure
    deadline = float("inf")
    while True:
        codes = [child.poll() for child in children]
        if not failure:
            # If two processes failed, the cause is the process that a signal ended (below 0).
            failure = min((code for code in codes if code not in (None, DONE, PREEMPTED)), default=0)
            deadline = time.monotonic() + GRACE_S if failure else deadline
        if None not in codes:
            return failure or (PREEMPTED if PREEMPTED in codes else DONE)
        if time.monotonic() > deadline:
            for child in children:
                child.kill()
        time.sleep(POLL_S)


def exit_with_status(main: Callable[[list[str]], int]) -> NoReturn:
    """Exit with the status of a launch program, even if signals come meanwhile.

    Python removes its handlers at exit. A SIGTERM would then end this process with 143.
    """
    try:
        status = main(sys.argv[1:])
    finally:
        ignore_signals()
    sys.exit(status)
