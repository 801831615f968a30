"""Ray on each node of a program: what its own limit for a busy node does."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from training.ray_node import LATE, STARTED

NODE = REPOSITORY / "training/ray_node.py"
# A Ray that gives up at its first starts; from then on its module, which the count of nodes imports, knows one node.
RAY = f"""#!/bin/bash
[[ $1 == start ]] || exec echo "ray, version 2.60.0"
echo start >>starts
if (($(wc -l <starts) <= FAILURES)); then
    echo "Exception: $SAYS. This could happen because some of the raylet failed to startup" >&2
    exit 1
fi
echo "{STARTED}."
exec sleep 600
"""
MODULE = "def init(**_): pass\ndef nodes(): return [1]\n"


@pytest.mark.parametrize(
    ("failures", "says", "status", "starts"),
    [(0, "", 7, 1), (2, LATE, 7, 3), (1, "Address already in use", 1, 1)],
    ids=["healthy", "busy", "broken"],
)
def test_a_first_node_that_was_too_busy_starts_again(
    failures: int, says: str, status: int, starts: int, tmp_path: Path
) -> None:
    program = tmp_path / "bin/ray"
    program.parent.mkdir()
    program.write_text(RAY.replace("FAILURES", str(failures)))
    program.chmod(0o755)
    (tmp_path / "ray.py").write_text(MODULE)
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "SAYS": says,
        "SLURM_JOB_ID": str(os.getpid()),
    }
    asked = ["--folder", str(tmp_path), "--name", "ray", "--hosts", "localhost", "--port", "1"]
    done = subprocess.run(
        [sys.executable, NODE, *asked, "--", "bash", "-c", "echo trained; exit 7"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert len((tmp_path / "starts").read_text().splitlines()) == starts
    assert ("trained" in done.stdout) == (status == 7)
    assert says in done.stderr
    assert ("ray gave up" in done.stderr) == (starts > 1)
    assert (tmp_path / "ray.ready").exists() == (status == 7)


def test_the_sentence_is_the_one_of_the_installed_ray() -> None:
    spec = find_spec("ray")
    if spec is None or spec.origin is None:
        pytest.skip("needs ray, which the oldest environment lacks")
    node = Path(spec.origin).parent / "_private/node.py"
    assert LATE in node.read_text(), version("ray")
