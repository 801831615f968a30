"""The files that the job script and the trainer share: `stop`, `again` and `exit` in the run folder.

The script names the files in SBATCHGEN_STOP_FILE, SBATCHGEN_AGAIN_FILE and SBATCHGEN_EXIT_FILE. If a variable
is not set, the trainer does not write its file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from training.errors import DONE, FAILED, PREEMPTED, UserError, complain
from training.files import open_regular, read_small

STOP = "stop"  # the stop file in the run folder, which also works without a script
LIMIT, CANCELLED = "time limit", "cancelled"  # reasons to stop
STOP_WORDS = {b"limit": LIMIT, b"cancelled": CANCELLED}  # words that the script writes into the stop file
# Variables of the environment.
AGAIN_FILE = "SBATCHGEN_AGAIN_FILE"
EXIT_FILE = "SBATCHGEN_EXIT_FILE"
PARENT = "SBATCHGEN_PARENT"  # the id of the process that started a rank
MAX_BYTES = 64  # of a stop file, which users may fill with anything


def read_stop_file(path: Path) -> str:
    """Return LIMIT or CANCELLED if the script wrote the stop file; "" if a user made it."""
    with contextlib.suppress(OSError):
        return STOP_WORDS.get(read_small(path, size=MAX_BYTES).strip(), "")
    return ""


def ask_again() -> None:
    """Ask the script to start the job again; raises OSError if the file cannot be made."""
    open_regular(Path(os.environ[AGAIN_FILE]), "ab").close()


def leave_status(status: int) -> None:
    """Write the exit status for the script. An earlier status stays, because it shows the first failure."""
    if os.environ.get(EXIT_FILE):
        with contextlib.suppress(OSError), Path(os.environ[EXIT_FILE]).open("xb") as file:
            file.write(f"{status}\n".encode())


def finish(status: int) -> int:
    """Write and return a run's exit status; return 0 for a stopped run.

    A launcher would kill the other ranks if a rank exited with another status.
    """
    if status != DONE:
        leave_status(status)
    return DONE if status == PREEMPTED and os.environ.get(EXIT_FILE) else status


def refuse(error: UserError) -> int:
    """Print why this process can't start; write its exit status, and return it."""
    complain(f"error: {error}")
    leave_status(FAILED)
    return FAILED
