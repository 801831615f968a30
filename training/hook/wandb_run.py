"""One run of Weights & Biases for each run folder, which requeued, resumed and chained jobs continue.

Without a fixed name, each start would begin a new run. Only the first process of rank 0, or of a trainer with
one process, gets the name. Runs that other ranks or child programs begin stay separate.
"""

import importlib.util
import os

FILE = "wandb-run-id"  # the file in the run folder, so that a new folder begins a new run
NAMES = ("WANDB_RUN_ID", "WANDB_RESUME")  # a user who sets one of them decides about both
UNSENT = ("offline", "dryrun", "disabled")  # values of WANDB_MODE with which the server has no run
# The variable with the process number that has the name; `next` is the next process to start.
OWNER, NEXT_PROCESS = "SBATCHGEN_WANDB", "next"
# Variables of a job that can be resumed.
RESUMABLE = ("SBATCHGEN_AGAIN_FILE", "SBATCHGEN_STOP_FILE", "SBATCHGEN_EXIT_FILE")


def keep() -> None:
    """Set the run's name in the environment of a trainer that has wandb, unless a name is set."""
    owner = os.environ.get(OWNER, "")
    if owner not in ("", NEXT_PROCESS, str(os.getpid())):
        for name in ("WANDB_RUN_ID", "WANDB_RESUME", OWNER):  # inherited from the parent process
            os.environ.pop(name, None)
        return
    if owner == NEXT_PROCESS:
        del os.environ[OWNER]
    resumes = any(name in os.environ for name in RESUMABLE)
    folder = os.environ.get("RUN_DIR", "")
    is_first = owner == NEXT_PROCESS or os.environ.get("RANK") == "0"
    if not (folder and resumes and is_first) or any(name in os.environ for name in NAMES):
        return
    if os.environ.get("WANDB_MODE") in UNSENT or importlib.util.find_spec("wandb") is None:
        return
    path = os.path.join(folder, FILE)  # noqa: PTH118 - pathlib is slow to import
    try:
        with open(path, "x") as file:  # noqa: PTH123
            file.write(os.urandom(4).hex() + "\n")
    except FileExistsError:
        pass
    with open(path) as file:  # noqa: PTH123
        number = file.read(64).strip()
    if number:
        os.environ.update(WANDB_RUN_ID=number, WANDB_RESUME="allow", **{OWNER: str(os.getpid())})
