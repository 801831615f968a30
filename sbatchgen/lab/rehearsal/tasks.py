"""Plays srun in a rehearsal: starts all tasks of a step on this machine, in the sandbox."""

import contextlib
import marshal
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from sbatchgen.lab.plan import step
from sbatchgen.lab.plan.step_tasks import number_of, task_variables, tasks_of_step

# The folder with a file for each running srun. A file's name is the process id, and its text the step's name.
STEPS = Path(step.PLAN_FOLDER, "steps")
MEMORY = "REHEARSED_MEMORY"  # the variable with which a step computes the GPU memory in place of training
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_POLL_S = 0.1  # seconds between two checks of the tasks


class AbortedError(Exception):
    """The error with which the handler of SIGTERM ends the wait for a step, so that its tasks are killed."""


def main() -> int:
    """Run a step; return the highest exit status of its tasks."""
    job: dict[str, Any] = marshal.loads(Path(step.PLAN_FOLDER, "job").read_bytes())  # noqa: S302 - rehearsal.py wrote it
    options, command = step.read_command(sys.argv, 1, job["programs"]["srun"])
    if "help" in options:
        print(*(f"      --{name}" for name in sorted(job["programs"]["srun"]["values"])), sep="\n")
        return 0
    environment = dict(os.environ)
    tasks, refusal = tasks_of_step(options, job, environment)
    if refusal or not command:
        print(f"srun: error: {refusal or 'No command given to execute.'}", file=sys.stderr)
        return 1
    if folder := options.get("chdir"):
        os.chdir(folder)
    if os.environ.get(MEMORY):
        tasks, command = tasks[:1], _memory_command(command)
    exported = step.exported_variables(options.get("export", "ALL"), environment)
    step_file = STEPS / str(os.getpid())
    step_file.write_text(options.get("job-name", "step"), encoding="utf-8")
    try:
        signal.signal(signal.SIGTERM, _abort)
        environments = [exported | task_variables(task, tasks, options, job, exported) for task in tasks]
        return _run(environments, command, options)
    finally:
        step_file.unlink()


def _memory_command(command: list[str]) -> list[str]:
    """Return the command that computes the GPU memory of the bundled trainer, in place of the training."""
    package = next((word for word in command if word.endswith("/training")), None)
    if package is None:
        return command
    # If the package's own torchrun.py starts the training, it comes first, and is also left out.
    first = next(index for index, word in enumerate(command) if word.startswith(package))
    arguments = command[command.index(package) + 1 :]
    return [*command[:first], f"{package}/memory.py", *arguments]


def _abort(number: int, _: FrameType | None) -> None:
    """Raise AbortedError, as the handler of SIGTERM."""
    raise AbortedError(number)


def _run(environments: list[dict[str, str]], command: list[str], options: dict[str, str]) -> int:
    """Start a task in each environment, and wait for all tasks; return the highest exit status.

    If a task ends, the options --kill-on-bad-exit and --wait decide how long the other tasks may run.
    """
    output = options.get("output", "")
    running = {_start(command, _with_known_interfaces(environment), output) for environment in environments}
    kills_others = options.get("kill-on-bad-exit", "0") != "0"
    wait_s = number_of(options.get("wait")) or float("inf")
    highest, deadline = 0, float("inf")
    with contextlib.suppress(AbortedError):
        while running and time.monotonic() < deadline:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                time.sleep(_POLL_S)
                continue
            running.discard(child)
            exit_code = os.waitstatus_to_exitcode(status)  # -N for signal N
            highest = max(highest, exit_code if exit_code >= 0 else 128 - exit_code)
            remaining_s = 1 if exit_code and kills_others else wait_s
            deadline = min(deadline, time.monotonic() + remaining_s)
    for child in running:
        os.killpg(child, signal.SIGKILL)
    return max(highest, 128 + signal.SIGKILL) if running else highest


def _start(command: list[str], environment: dict[str, str], output: str) -> int:
    """Start a task in its own session, and return its process id.

    `output` is the value of --output; "" if the task writes to the output of srun.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        if output:
            name = output.replace("%t", environment["SLURM_PROCID"]).replace("%%", "%")
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
            os.dup2(1, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.execvpe(command[0], command, environment)  # noqa: S606 - no shell
        except OSError as error:
            print(f"srun: error: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    return child


def _with_known_interfaces(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which lo replaces each network interface that this machine lacks."""
    interfaces = [name for _, name in socket.if_nameindex()]
    changed = dict(environment)
    for name in _INTERFACE_VARIABLES:
        value = environment.get(name, "")
        # A list or a pattern such as ^docker0 stays, because only a plain name is certain to be missing.
        is_plain_name = value.replace("_", "").isalnum()
        if is_plain_name and value not in interfaces:
            changed[name] = "lo"
    return changed
