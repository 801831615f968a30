"""Words before the program. tests/jobs/test_engines.py runs a job with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import Command

PROFILE = "name: p\nurl: x\nchecked: 2026-01-01\nruntime: prefix\nruntimes: {prefix: {command: [site-python, 'a b']}}\n"


def test_the_words_of_the_profile_come_before_those_of_the_job(command: Command, folder: Path) -> None:
    (folder / "p.yaml").write_text(PROFILE)
    text = command(
        "render", "cpu", "--profile", "./p.yaml", "--prefix", "numactl", "--prefix=--localalloc"
    ).out
    assert "\n        site-python 'a b' numactl --localalloc \\\n        python3 " in text


@pytest.mark.parametrize("word", ["ibrun", "/usr/bin/mpirun", "srun", "bede-mpirun"])
def test_what_starts_the_tasks_itself_is_refused(command: Command, word: str) -> None:
    refused = command("render", "single", "--profile", "msu", "--runtime", "prefix", "--prefix", word)
    assert refused.status == 3
    assert "starts the tasks itself" in refused.err


def test_a_command_that_is_not_there_ends_the_job(command: Command, folder: Path) -> None:
    text = command("render", "single", "--profile", "local", "--runtime", "prefix", "--prefix", "no such").out
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "error: no command no such here" in done.stderr
