"""Runs a command and records each program that its processes start, whatever they do with their environment.

`python recorder.py FILE COMMAND...` writes a line of JSON for each: the arguments as /proc has them. By ptrace(2), which
an ordinary user may use on its own children.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

TRACEME, CONT, SETOPTIONS = 0, 7, 0x4200
FORK, VFORK, CLONE, EXEC, EXITKILL = 2, 4, 8, 0x10, 0x100000
EVENT_EXEC = 4
WALL = 0x40000000  # threads too

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, data) == -1 and request != CONT:  # a process may end in between
        raise OSError(ctypes.get_errno(), "ptrace")


def record(file: Path, command: list[str]) -> int:
    """The exit status of the command."""
    first = os.fork()
    if first == 0:
        ptrace(TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.execvp(command[0], command)  # noqa: S606 - what is recorded
    os.waitpid(first, 0)
    ptrace(SETOPTIONS, first, FORK | VFORK | CLONE | EXEC | EXITKILL)
    ptrace(CONT, first)
    known, status = {first}, 0
    with file.open("w") as to:
        while True:
            try:
                pid, state = os.waitpid(-1, WALL)
            except ChildProcessError:
                return status
            if not os.WIFSTOPPED(state):
                status = os.waitstatus_to_exitcode(state) if pid == first else status
                continue
            number, event = os.WSTOPSIG(state), state >> 16
            if event == EVENT_EXEC:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
                to.write(json.dumps([os.fsdecode(word) for word in words]) + "\n")
            starts = pid not in known and number == signal.SIGSTOP
            known.add(pid)
            ptrace(CONT, pid, 0 if event or starts else number)


if __name__ == "__main__":
    sys.exit(record(Path(sys.argv[1]), sys.argv[2:]))
