"""Each way to start that training/__init__.py, and so --help, shows: as it is typed there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import training
from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster

from .forks import QUICKLY
from .trainers import ROOT, Trainers, without_launcher

TEXT = str(training.__doc__)
LINES = [line.strip() for line in re.sub(r" \\\n +", " ", TEXT).splitlines()]
HERE = [line for line in LINES if line.startswith(("python ", "torchrun "))]
IN_A_JOB = [line for line in LINES if line.startswith("srun ")]
MEETING = next(line for line in LINES if line.startswith("export MASTER_ADDR="))
SBATCH = re.findall(r"sbatch (.*)", TEXT)[0].split()
BIN = str(Path(sys.executable).parent)


def processes(folder: Path) -> int:
    """How many a run had that is done; its folder is the one below runs/."""
    run_dir = next((folder / "runs").iterdir())
    assert json.loads((run_dir / "status.json").read_text())["state"] == "done"
    processes: int = json.loads((run_dir / "config.json").read_text())["processes"]
    return processes


def test_the_text_shows_each_launcher() -> None:
    assert (len(HERE), len(IN_A_JOB)) == (4, 3)
    assert sum("torchrun" in line for line in HERE + IN_A_JOB) == 2
    assert sum("--launcher spawn" in line for line in HERE + IN_A_JOB) == 2


@pytest.mark.parametrize(
    ("line", "count"), [*zip(HERE, (1, 1, 2, 2), strict=True)], ids=lambda value: str(value)[:40]
)
def test_a_line_for_one_machine_works_as_typed(
    small_digits: Path, tmp_path: Path, line: str, count: int
) -> None:
    shutil.copytree(small_digits, tmp_path / "data")
    env = without_launcher()
    env |= {"PATH": f"{BIN}:{env['PATH']}", "PYTHONPATH": f"{ROOT}:{QUICKLY}", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert processes(tmp_path) == count


@on_one_release
def test_the_lines_for_several_machines_work_in_a_job(small_digits: Path, cluster: Cluster) -> None:
    lines = [
        "#!/bin/bash",
        f"export PATH={BIN}:$PATH PYTHONPATH={ROOT}:{QUICKLY} OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=hsn0",
    ]
    lines += ["set -e", "sbatchgen data mnist --to data --synthetic --train 64 --test 16", MEETING]
    for number, line in enumerate(IN_A_JOB):
        lines.append(f"mkdir {number}; cd {number}; ln -s ../data; {line}; cd ..")
    cluster.put("starts/job.sh", "\n".join(lines) + "\n", mode=0o755)
    folder = cluster.home / "starts"
    cluster.wait(cluster.sbatch(*SBATCH, "job.sh", cwd=folder), {"COMPLETED"})

    assert [processes(folder / str(number)) for number in range(len(IN_A_JOB))] == [4, 4, 4]


def test_help_shows_the_text(trainers: Trainers, tmp_path: Path) -> None:
    ended = trainers.run(tmp_path, "--help")

    assert ended.code == 0
    assert TEXT.strip() in ended.out
