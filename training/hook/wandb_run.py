"""One run of Weights & Biases for one run folder: a job that is requeued, resumed or of a chain continues it.

Without a name for it, each start would begin a run of its own. Only the first process of rank 0, or of a
trainer that is alone, knows the name: where each rank begins a run, or a program that it starts, these are
their own.
"""

import importlib.util
import os

FILE = "wandb-run-id"  # in the run folder: a new folder is a new run
NAMES = ("WANDB_RUN_ID", "WANDB_RESUME")  # who sets one of them decides both
UNSENT = ("offline", "dryrun", "disabled")  # of WANDB_MODE: what is sent later has no run to continue
TOLD, NEXT = "SBATCHGEN_WANDB", "next"  # the process that knows it, or the next one that starts: it is alone
STOPPABLE = (
    "SBATCHGEN_AGAIN_FILE",
    "SBATCHGEN_STOP_FILE",
    "SBATCHGEN_EXIT_FILE",
)  # of a job that is to be resumed


def keep() -> None:
    """Name the run in the environment of a trainer that has wandb, if no one has named one."""
    by = os.environ.get(TOLD, "")
    if by not in ("", NEXT, str(os.getpid())):
        for name in ("WANDB_RUN_ID", "WANDB_RESUME", TOLD):  # of the process that has started this one
            os.environ.pop(name, None)
        return
    if by == NEXT:
        del os.environ[TOLD]
    resumes = any(name in os.environ for name in STOPPABLE)
    folder = os.environ.get("RUN_DIR", "")
    is_first = by == NEXT or os.environ.get("RANK") == "0"
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
        os.environ.update(WANDB_RUN_ID=number, WANDB_RESUME="allow", **{TOLD: str(os.getpid())})
