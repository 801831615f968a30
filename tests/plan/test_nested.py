"""A plan and a rehearsal inside another sandbox: one sentence, an exit status, and what to use instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.lab.sandbox.box import _bubblewrap
from tests.conftest import REPOSITORY
from tests.plan.plans import needs_sandbox

SAYS = "error: no sandbox can start inside another one: sbatchgen runs in a sandbox already\n"
FIX = "  fix: use sbatchgen review and sbatchgen lint, which run nothing of the job\n"
OUTER = {
    "without rights": ["--unshare-all", "--unshare-user", "--cap-drop", "ALL"],
    "no users": ["--unshare-user", "--disable-userns"],
}


def inside(outer: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of sbatchgen in a sandbox."""
    box = [
        _bubblewrap(),
        "--die-with-parent",
        "--dev-bind",
        "/",
        "/",
        *OUTER[outer],
        "--setenv",
        "PYTHONPATH",
    ]
    command = [*box, str(REPOSITORY), sys.executable, "-m", "sbatchgen", *words]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@needs_sandbox
@pytest.mark.parametrize("outer", [*OUTER])
def test_a_plan_in_a_sandbox_names_what_to_use_instead(outer: str, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=60\nsrun hostname\n")
    done = inside(outer, tmp_path, "plan", "job.sh")
    assert (done.returncode, done.stderr.partition("error")[2]) == (8, (SAYS + FIX).removeprefix("error"))


@needs_sandbox
def test_a_rehearsal_says_the_same_and_a_review_works(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    words = ("single", "--trainer", "train.py", "--profile", "torchrun")
    done = inside("without rights", tmp_path, "rehearse", *words)
    assert (done.returncode, SAYS + FIX in done.stderr) == (8, True), done.stderr
    assert inside("without rights", tmp_path, "review", *words).returncode == 0
