"""A task of srun with the user's own trainer: `python3 .../training/task.py OPTIONS -- TRAINER ARGS`.

TRAINER is a Python file, or `-m MODULE`. The trainer gets all signals. This program writes the trainer's exit
status for the job script. srun would report the highest status of all tasks, which often belongs to a task
that was killed after another task failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
if __name__ == "__main__":  # started as a file: import the package around it, whatever is on the path
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != PACKAGE]
    sys.path.insert(0, str(PACKAGE.parent))

from training.errors import INTERRUPTED, UserError
from training.hook.wandb_run import NEXT_PROCESS, OWNER
from training.processes import spawn, stacks
from training.processes.jobscript import leave_status, refuse
from training.processes.ranks import MEETING, detect, tasks

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def main(argv: list[str]) -> int:
    """Run the trainer; return its exit status, or 128 + N if signal N ended the trainer.

    If Slurm ends one of several tasks by SIGTERM, the status is INTERRUPTED: another task may have failed.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED))  # until the trainer gets the signals
    parser = argparse.ArgumentParser(prog="task.py", usage="%(prog)s [OPTIONS] -- TRAINER ARGS")
    text = "srun, mpi: one rank per task; spawn: the trainer starts its own processes; none: one process"
    parser.add_argument("--launcher", choices=("srun", "mpi", "spawn", "none"), default="srun", help=text)
    parser.add_argument("trainer", nargs="+", metavar="TRAINER")
    options = parser.parse_args(argv)
    try:
        environment = environment_of_task(os.environ, options.launcher)
    except UserError as error:
        return refuse(error)
    command = [sys.executable, *options.trainer]
    if options.launcher == "none":  # the trainer replaces this process
        os.execve(command[0], command, stacks.with_hook(environment))  # noqa: S606
    status = spawn.shell_status(spawn.start([(command, environment)], unblocks_signals=False))
    if status == 128 + signal.SIGTERM:
        return INTERRUPTED if tasks(os.environ) > 1 else status
    if status:
        leave_status(status)
    return status


def environment_of_task(environ: Mapping[str, str], launcher: str) -> dict[str, str]:
    """Return the trainer's environment, in which RANK, LOCAL_RANK and WORLD_SIZE are the launcher's numbers.

    The numbers that pyxis or a container image has set are removed. With the launcher "none", the address of
    the rendezvous is removed too, and this trainer gets the name of W&B's run.
    """
    removed = (*RANK_VARIABLES, *(MEETING if launcher == "none" else ()))
    environment = {name: value for name, value in environ.items() if name not in removed}
    if launcher in ("srun", "mpi"):
        place = detect(environ, launcher)
        environment.update(RANK=str(place.rank), WORLD_SIZE=str(place.size))
        environment.update(LOCAL_RANK=str(place.local_rank), LOCAL_WORLD_SIZE=str(place.local_size))
    if launcher == "none":
        environment[OWNER] = NEXT_PROCESS
    record_folder = "" if launcher == "none" else environ.get("RUN_DIR", "")
    return stacks.with_recorder(environment, record_folder)


if __name__ == "__main__":
    spawn.exit_with_status(main)
