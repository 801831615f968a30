"""Processes that begin where `import torch` is done: forks of a process that has done it.

A trainer takes about two seconds of processor time to start, and a tenth of one to train what tests give it. `Fork` is
a `subprocess.Popen` for those whose start is not what is tested: it has a process id, a session, an environment and an
exit status of its own, as any process. Its /proc/PID/cmdline and /proc/PID/environ are the forking process's.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
QUICKLY = Path(__file__).parent / "quickly"
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
LONGEST = 1 << 17  # bytes of a request
LOADED = ("torch.distributed.run", "training.run.engine")


class Fork(subprocess.Popen[str]):
    """Runs `sys.executable -m MODULE ARGUMENT...` or `sys.executable FILE ARGUMENT...` in a new session."""

    def _execute_child(self, args: Sequence[str], *options: Any) -> None:
        (*_, cwd, env, _, _, _, stdin, to_stdin, from_stdout, stdout, from_stderr, stderr) = options[:15]
        request = {"argv": [*args[1:]], "cwd": os.fspath(cwd or Path.cwd()), "env": dict(env)}
        request["ignored"] = [
            number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN
        ]
        fds = [given if given != -1 else own for own, given in enumerate((stdin, stdout, stderr))]
        place = forking()
        adopt(True)
        socket.send_fds(place, [json.dumps(request).encode()], fds)
        self.pid = int(place.recv(32))
        adopt(False)
        self._child_created = True
        self._close_pipe_fds(stdin, to_stdin, from_stdout, stdout, from_stderr, stderr)  # type: ignore[attr-defined]


def adopt(on: bool) -> None:  # noqa: FBT001
    """Whether this process becomes the parent of processes below it whose parent ends: of a fork, and of no other."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


@cache
def forking() -> socket.socket:
    """To a process that forks on request until this one ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(theirs.fileno())],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(QUICKLY), "OMP_NUM_THREADS": "1"},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def main() -> None:
    """Serve the socket on this file descriptor; in a fork, run what was asked for."""
    place = socket.socket(fileno=int(sys.argv[1]))
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        text, fds, _, _ = socket.recv_fds(place, LONGEST, 3)
        if not text:
            return
        reader, writer = os.pipe()
        between = os.fork()
        if not between:
            break
        os.waitpid(between, 0)  # now the fork is the child of the process that asked for it
        place.send(os.read(reader, 32))
        for fd in (*fds, reader, writer):
            os.close(fd)
    if pid := os.fork():
        os.write(writer, str(pid).encode())
        os._exit(0)
    for end in (place.detach(), reader, writer):
        os.close(end)
    become(json.loads(text), fds)


def become(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Be the process that was asked for."""
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdout.isatty():
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=True)
    places = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place]
    sys.path[1:1] = places
    starts = [file for place in places if (file := Path(place, "sitecustomize.py")).exists()]
    if starts[:1] != [QUICKLY / "sitecustomize.py"]:
        runpy.run_path(str(starts[0]))
    first, *rest = request["argv"]
    if first == "-m":
        sys.argv, sys.path[0] = rest, request["cwd"]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
