"""A project of uv, with the real uv: no network is asked, and the environment stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import Command

UV = shutil.which("uv", path=str(Path(sys.executable).parent))
LOCK = "version = 1\n"  # not what `uv sync` would write: any change of it is seen


@pytest.fixture
def project(folder: Path) -> Path:
    """A project whose environment has the packages of this one."""
    assert UV, "uv is one of the development requirements"
    project = folder / "my project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "0"\nrequires-python = ">=3.10"\ndependencies = ["absent-package"]\n'
    )
    (project / "uv.lock").write_text(LOCK)
    subprocess.run(
        [UV, "venv", "--quiet", "--offline", "--python", sys.executable, project / ".venv"], check=True
    )
    (packages,) = (project / ".venv/lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return project


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    assert UV
    path = f"{Path(UV).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(folder), "USER": os.environ.get("USER", "me")}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_own_trainer_runs_in_the_project(project: Path, folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("import click, sys\nprint('runs in', sys.prefix)\n")
    flags = ("--runtime", "uv", "--uv-project", "my project", "--trainer", "train.py")
    rendered = command("render", "single", "--profile", "local", *flags)
    done = run(rendered.out, folder)
    assert (done.returncode, rendered.err) == (0, "")
    assert f"runs in {project / '.venv'}" in done.stdout
    assert (project / "uv.lock").read_text() == LOCK


def test_a_project_without_an_environment_is_an_error(folder: Path, command: Command) -> None:
    (folder / "project").mkdir()
    flags = ("--profile", "local", "--runtime", "uv", "--uv-project", "project")
    review = command("review", "single", *flags)
    assert f"the uv project {folder / 'project'} has no environment .venv" in review.err + review.out
    assert f"uv sync --project {folder / 'project'}" in review.err + review.out
    done = run(command("render", "single", *flags).out, folder)
    assert done.returncode == 1
    assert "no environment in" in done.stderr


@pytest.mark.parametrize(("words", "project"), [("--project $HOME/proj", "${HOME}/proj"), ("--frozen", ".")])
def test_adopt_reads_uv_run(folder: Path, command: Command, words: str, project: str) -> None:
    (folder / "old.sh").write_text(
        f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --time=1:00:00\nsrun uv run {words} python train.py\n"
    )
    adopted = command("adopt", "old.sh")
    assert adopted.status == 0, adopted.err
    assert f"runtime: uv\nruntimes:\n  uv:\n    project: {project}\n" in adopted.out
