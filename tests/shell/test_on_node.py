"""The session of a shell and its terminal, without Slurm: what passes between them on the node."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import REPOSITORY

PROGRAM = (REPOSITORY / "templates/shell/on_node.py").read_text()
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the session of a job, or a terminal there."""
    job, running = uuid.uuid4().hex, list["subprocess.Popen[str]"]()

    def started(mode: str, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-I", "-S", "-c", PROGRAM, mode, job, *words]
        running.append(subprocess.Popen(argv, stdin=subprocess.PIPE, text=True))
        return running[-1]

    yield started
    for each in running:
        each.kill()
        each.communicate()


def test_a_session_waits_until_its_last_terminal_has_read_the_status(start: Start) -> None:
    """The end of the job would end the step of the terminal, whose status people would see. A stopped one is not waited for."""
    session = start("serve", "0", "")
    assert session.stdin
    session.stdin.close()  # what a shell knows
    terminal = start("connect", "sh", "-c", "read pid; kill -STOP $pid; exit 3")
    began = time.monotonic()
    assert terminal.stdin
    terminal.stdin.write(f"{terminal.pid}\n")
    terminal.stdin.flush()
    assert session.wait() == 0
    assert time.monotonic() - began >= 5
    terminal.send_signal(signal.SIGCONT)
    assert terminal.wait() == 3
