"""No process of a test continues when the tests have ended, also when they were killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.site import until
from tests.conftest import REPOSITORY
from tests.leftovers import processes

TEST = """
import subprocess, sys, time

def test_leaves_a_process():
    process = subprocess.Popen(["sleep", "86399.5"], start_new_session=True)
    print("started", process.pid, file=sys.__stdout__, flush=True)
    time.sleep({seconds})
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("killed", [True, False])
def test_what_tests_leave_is_ended_with_them(tmp_path: Path, *, killed: bool) -> None:
    (tmp_path / "test_one.py").write_text(TEST.format(seconds=3600 * killed))
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.conftest", f"{tmp_path}/test_one.py"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout
        words = next(line for line in tests.stdout if "started" in line).split()
        left = int(words[-1])
        if killed:
            assert left in processes()
            tests.send_signal(signal.SIGKILL)
    until(lambda: left not in processes(), "the process is ended")
