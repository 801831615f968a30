"""The scripts of jobs that continue one training: of a chain, and of an array's tasks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.units import Count, Text
from sbatchgen.check.lint.linter import lint
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.check.script.script import JobScript
from tests.scripts import errors, resolved, script

WAYS: dict[str, dict[str, Any]] = {"chain": {"chain": Count(3)}, "tasks": {"array": Text("1-3%1")}}
SHAPES = [("ddp", "msu"), ("ddp", "torchrun"), ("single", "troila"), ("cpu", "princeton")]


@pytest.fixture(params=[(way, *shape) for way in WAYS for shape in SHAPES], ids="-".join)
def rendered(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """The way, the profile and the script."""
    way, mode, profile = request.param
    of = resolved(mode, profile, **WAYS[way])
    assert not errors(of)
    return way, profile, script(of)


def test_the_script_ends_the_chain_and_never_requeues(
    rendered: tuple[str, str, str], oracle: Callable[..., Any]
) -> None:
    way, _, text = rendered
    assert "scontrol requeue" not in text
    assert "max_restarts" not in text
    assert "#SBATCH --no-requeue\n" in text
    reading = oracle(text)
    assert "no-requeue" in reading.options
    assert not [line for line in reading.messages if "error" in line]
    names = {"chain": "--\n", "tasks": '"$SLURM_ARRAY_JOB_ID"\n'}
    assert f"scancel --state=PENDING {names[way]}" in text


@pytest.mark.sampled(4)
def test_lint_shellcheck_and_bash_find_nothing(rendered: tuple[str, str, str], tmp_path: Path) -> None:
    _, profile, text = rendered
    of = resolved("cpu", profile).profile
    findings = lint(JobScript(file="job.slurm", text=text, slurm=of.slurm or DEFAULT_SLURM, profile=of))
    assert not [finding for finding in findings if finding.severity != "info"]
    (tmp_path / "job.sh").write_text(text)
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    for tool in ([shellcheck], ["bash", "-n"]):
        done = subprocess.run(
            [*map(str, tool), tmp_path / "job.sh"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("said", [{}, {"array": Text("1-3%2")}, {"chain": Count(1)}])
def test_other_scripts_have_nothing_of_it(said: dict[str, Any]) -> None:
    text = script(resolved("single", "troila", **said))
    assert "end_chain" not in text
    assert "#SBATCH --requeue\n" in text
