"""A virtual environment, by two variables or by its bin/activate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import Command

PROFILE = "name: p\nurl: x\nchecked: 2026-01-01\nscheduler: none\nruntime: venv\nruntimes: {venv: {path: ./venv, activate: %s}}\n"


def run(command: Command, folder: Path, activate: str) -> subprocess.CompletedProcess[str]:
    (folder / "p.yaml").write_text(PROFILE % activate)
    (folder / "venv/bin").mkdir(parents=True, exist_ok=True)
    (folder / "venv/bin/python3").symlink_to(sys.executable)
    (folder / "venv/bin/activate").write_text(
        f"export OF_THE_SITE=loaded PYTHONPATH=/of/a/module\nPATH={folder}/venv/bin:$PATH\n"
    )
    (folder / "train.py").write_text(
        "import os\nprint(*[os.environ.get(name) for name in ('OF_THE_SITE', 'PYTHONPATH')])\n"
    )
    text = command("render", "single", "--profile", "./p.yaml", "--trainer", "train.py").out
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": "/of/the/shell"}
    return subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_bin_activate_is_read_where_the_profile_says_so(command: Command, folder: Path) -> None:
    assert run(command, folder, "true").stdout == "loaded /of/a/module\n"


def test_by_default_it_is_not_read(command: Command, folder: Path) -> None:
    assert run(command, folder, "false").stdout == "None None\n"
