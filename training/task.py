"""A task of srun with a trainer of your own: `python3 .../training/task.py OPTIONS -- TRAINER ARGS`.

TRAINER is a file of Python, or `-m MODULE`. Signals are passed on to it. Its exit status is left for the job
script: srun reports the highest one of all tasks, which is often that of a task that was killed for another.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
if __name__ == "__main__":  # started as a file: the package is what lies around it, whatever is on the path
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != PACKAGE]
    sys.path.insert(0, str(PACKAGE.parent))

from training.errors import FAILED, UserError
from training.output.log import complain
from training.processes import spawn
from training.processes.jobscript import leave_status
from training.processes.ranks import MEETING, detect

RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def main(argv: list[str]) -> int:
    """Run the trainer; its exit status, 128 + N if signal N ended it."""
    cut = argv.index("--") if "--" in argv else 0
    parser = argparse.ArgumentParser(prog="task.py", usage="%(prog)s [OPTIONS] -- TRAINER ARGS")
    parser.add_argument(
        "--launcher",
        choices=("srun", "spawn", "none"),
        default="srun",
        help="srun: a rank for each task; spawn: the trainer starts its own processes; none: alone",
    )
    launcher = parser.parse_args(argv[:cut]).launcher
    trainer = argv[cut + 1 :] if "--" in argv else []
    if not trainer:
        parser.error("no trainer")
    try:
        environment = environment_of_task(os.environ, launcher)
    except UserError as error:
        complain(f"error: {error}")
        leave_status(FAILED)
        return FAILED
    status = spawn.start([[sys.executable, *trainer]], [environment], ours=False)
    if status:
        leave_status(status)
    return status


def environment_of_task(environ: Mapping[str, str], launcher: str) -> dict[str, str]:
    """The trainer's environment, with torch's names for what Slurm calls PROCID, LOCALID and NTASKS.

    A rank that pyxis or an image has set does not count; with `none`, neither does a meeting point.

    Raises:
        UserError: For launcher srun, if Slurm's numbers or the meeting point are not set.
    """
    dropped = (*RANK_NAMES, *(MEETING if launcher == "none" else ()))
    environment = {name: value for name, value in environ.items() if name not in dropped}
    if launcher == "srun":
        place = detect(environ, "srun")
        ranks = (place.rank, place.local_rank, place.size, place.local_size)
        environment |= {name: str(number) for name, number in zip(RANK_NAMES, ranks, strict=True)}
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
