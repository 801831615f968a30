"""What a job script asks of a trainer, and what it is told: the files `stop`, `again` and `exit` of the run.

The script names them in SBATCHGEN_STOP_FILE, SBATCHGEN_AGAIN_FILE and SBATCHGEN_EXIT_FILE. Where it does not,
nobody reads them, and nothing is written. Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from training.files import create, opened, read_small

STOP = "stop"  # the name in the run folder, also where no script asks
LIMIT, CANCELLED = "limit", "cancelled"  # what the script writes into it
AGAIN_FILE = "SBATCHGEN_AGAIN_FILE"
EXIT_FILE = "SBATCHGEN_EXIT_FILE"
PARENT = "SBATCHGEN_PARENT"  # the process that starts the ranks of a node, for them
LONGEST = 64  # bytes of a stop file that are looked at


def asked_by(stop_file: Path) -> str:
    """LIMIT or CANCELLED if the script made the stop file, "" if anybody else did."""
    with contextlib.suppress(OSError):
        word = read_small(stop_file, most=LONGEST).strip().decode("ascii", errors="replace")
        return word if word in {LIMIT, CANCELLED} else ""
    return ""


def may_ask_again() -> bool:
    """Whether the script would start the job again."""
    return bool(os.environ.get(AGAIN_FILE))


def ask_again() -> None:
    """Ask the script to start the job again.

    Raises:
        OSError: If the file can't be made.
    """
    os.close(opened(Path(os.environ[AGAIN_FILE]), os.O_CREAT | os.O_WRONLY))


def reads_status() -> bool:
    """Whether the script reads the exit status from a file, because a launcher would change it."""
    return bool(os.environ.get(EXIT_FILE))


def leave_status(status: int) -> None:
    """Leave the exit status for the script, if it reads one and no process was quicker.

    The first one to fail knows why; the others only know that it is gone. A full disk is no reason to fail.
    """
    if not reads_status():
        return
    with contextlib.suppress(OSError), os.fdopen(create(Path(os.environ[EXIT_FILE])), "wb") as file:
        file.write(f"{status}\n".encode())
