"""What ends the processes that tests have started, however the tests end: `python tests/leftovers.py PID`, beside them."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

NAME = "STARTED_BY_TESTS_OF"  # a variable that all of them inherit


def main(pid: str) -> None:
    """Wait for the end of a process, and end what it has started and left."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(int(pid))], [], [])
    mark = f"{NAME}={pid}".encode()
    while left := [number for number in processes() if mark in environment(number)]:
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def processes() -> list[int]:
    """The processes of this machine but for this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]  # noqa: PTH208


def environment(pid: int) -> list[bytes]:
    """The variables that a process began with; none of one that has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


if __name__ == "__main__":
    main(sys.argv[1])
