"""Commands without a process of their own, and on systems that lack functions of Linux."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.cli.answer import answer
from tests.conftest import REPOSITORY

SCRIPT = b"#!/bin/bash\n#SBATCH --time=24\nsrun python train.py\n"
# What Python lacks in a browser, and on macOS.
WITHOUT = """
import os, sys, time
del os.sched_getaffinity, os.geteuid, time.thread_time
sys.modules |= {"pwd": None, "grp": None, "fcntl": None}
from sbatchgen.cli import main
main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_command_is_answered_with_what_it_prints_and_its_status() -> None:
    got = answer(["lint", "--no-shellcheck", "job.sh"], {"job.sh": SCRIPT})
    assert (got.status, got.err) == (0, b"1 script: 1 warning\n")
    assert got.out.startswith(b"job.sh:2:16: warning SB127")


def test_a_mistake_is_answered_as_text() -> None:
    got = answer(["rendr"], {})
    assert (got.status, got.out) == (2, b"")
    assert b"did you mean 'render'?" in got.err


def test_streams_and_the_environment_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCHGEN_PROFILE", "no-such-profile")
    before = (sys.stdout, dict(os.environ))
    assert answer(["render", "ddp", "--profile", "msu"], {}).status == 0
    assert (sys.stdout, dict(os.environ)) == before


def test_an_answer_knows_no_variables_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCHGEN_PROFILE", "no-such-profile")
    assert answer(["render", "cpu"], {}).status == 0


def test_a_review_of_a_job_for_another_machine_says_nothing_of_files_here() -> None:
    words = ["review", "single", "--profile", "local", "--trainer", "missing.py", "--format", "json"]
    shown = json.loads(answer(words, {}).out)
    assert shown["findings"] == []
    assert shown["start"] is None
    rendered = answer(["render", "single", "--profile", "local", "--trainer", "missing.py"], {}).out
    assert shown["script"] == rendered.decode()  # its log is not in a folder of this machine


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        ("render", "ddp", "--profile", "princeton"),
        ("review", "ddp", "--profile", "./profiles/princeton.yaml"),
        ("lint", "--profile", "princeton", "job.sh"),
    ],
)
def test_commands_work_where_functions_of_linux_are_missing(folder: Path, words: tuple[str, ...]) -> None:
    (folder / "job.sh").write_bytes(SCRIPT)
    (folder / "profiles").mkdir()
    (folder / "profiles/princeton.yaml").write_bytes((REPOSITORY / "profiles/princeton.yaml").read_bytes())
    environment = os.environ | {"SBATCHGEN_PATH": str(folder), "HOME": str(folder)}
    call = [sys.executable, "-c", WITHOUT, *words]
    done = subprocess.run(call, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode in {0, 3}, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout
