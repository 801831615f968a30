"""Budgets without a Slurm: which files hold, what can't be believed, and what is counted of a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.base.errors import BudgetError
from sbatchgen.jobs.budget import demand as demands
from sbatchgen.jobs.budget.allowance import VARIABLE, allowances
from sbatchgen.jobs.slurm.node import NodeGres
from tests.conftest import REPOSITORY

HEAD = "#!/bin/bash\n#SBATCH --time=60\n"


class FakePartition:
    """A partition of nodes that jobs share, or get whole."""

    def __init__(self, name: str, *, exclusive: bool = False) -> None:
        self.name, self.exclusive, self.default = name, exclusive, not exclusive


class FakeNode:
    """A node with four GPUs in the partition gpu, and in one of whole nodes."""

    partitions, cpus = ("gpu", "whole"), 64
    gres = (NodeGres("gpu", "a100", 4), NodeGres("shard", "", 64))


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """What scontrol would say."""
    both = [FakePartition("gpu"), FakePartition("whole", exclusive=True)]
    monkeypatch.setattr(demands, "partitions", lambda _: both)
    monkeypatch.setattr(demands, "nodes", lambda _: [FakeNode()])


@pytest.mark.parametrize(
    ("lines", "options", "gpu_hours", "cpu_hours"),
    [
        ("--gpus-per-node=4 --nodes=2", (), 8, 2),
        ("--gres=gpu:2 --cpus-per-task=8", (), 2, 8),
        ("--gres=gpu:2", ("--gres=gpu:4", "--time=120"), 8, 2),
        ("--gpus=6 --nodes=1-3", (), 6, 3),
        ("--gpus-per-node=4 --ntasks=8", (), 32, 8),  # Slurm may take 8 nodes
        ("--gpus-per-task=1 --ntasks=8", (), 8, 8),
        ("--gpus-per-node=1 --array=0-9%2", (), 10, 10),
        ("--gpus-per-node=1 --array=0-9999", ("--time=30-0",), 7_200_000, 7_200_000),
        ("--gres=shard:16 --partition=gpu", (), 1, 1),
        ("--gres=gpu:1 --exclusive --nodes=2 --partition=gpu", (), 8, 128),
        ("--partition=whole", (), 4, 64),
        ("--time=10\n#SBATCH --gpus=1 --time=120", (), 2, 2),  # the last one counts
    ],
)
def test_what_may_be_taken_is_counted_at_the_most(
    lines: str, options: tuple[str, ...], gpu_hours: float, cpu_hours: float
) -> None:
    asked = demands.demand(f"{HEAD}#SBATCH {lines}\nsrun x\n".encode(), options, {})
    assert asked.hours(asked.gpus) == pytest.approx(gpu_hours)
    assert asked.hours(asked.cpus) == pytest.approx(cpu_hours)


def test_restarts_of_our_own_script_count() -> None:
    asked = demands.demand(f"{HEAD}#SBATCH --gpus=1\nmax_restarts=10\nscontrol requeue 1\n".encode(), (), {})
    assert asked.hours(asked.gpus) == 11


@pytest.mark.parametrize(
    ("text", "says", "fix"),
    [
        ("#!/bin/bash\n#SBATCH --gpus=1\nx\n", "it has no time limit", "--time"),
        (f"{HEAD}#SBATCH --time=UNLIMITED\nx\n", "it has no time limit", "--time"),
        (f"{HEAD}#SBATCH hetjob\n#SBATCH --gpus=8\nx\n", "heterogeneous", "component"),
        (f"{HEAD}#SBATCH --gpus-per-socket=4 --sockets-per-node=2\nx\n", "leaves its GPUs open", "--gpus-per-node"),
        (f"{HEAD}scontrol requeue $SLURM_JOB_ID\n", "number of its restarts", "--no-requeue"),
    ],
)  # fmt: skip
def test_what_can_not_be_counted_is_refused(text: str, says: str, fix: str) -> None:
    with pytest.raises(BudgetError, match=says) as caught:
        demands.demand(text.encode(), (), {})
    assert fix in caught.value.problems[0].fix


def test_a_script_that_may_not_be_requeued_is_counted() -> None:
    text = f"{HEAD}scontrol requeue $SLURM_JOB_ID\n"
    assert demands.demand(text.encode(), ("--no-requeue",), {}).starts == 1


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("gpu_hours: many\n", 0o600, "not a whole number"),
        ("gpu_hour: 5\n", 0o600, "unknown key 'gpu_hour'"),
        ("gpu_hours: 5\ngpu_hours: 500\n", 0o600, "duplicate key"),
        ("gpu_hours: -1\n", 0o600, "below 0"),
        ("until: soon\n", 0o600, "not a time"),
        ("partitions: gpu\n", 0o600, "must be a list"),
        ("{}\n", 0o600, "no limit is set"),
        ("", 0o600, "no limit is set"),
        ("gpu_hours: [\n", 0o600, "YAML"),
        ("gpu_hours: 5\n", 0o666, "can be written by everybody"),
        ("gpu_hours: 5\n", 0o664, "can be written by its group"),
    ],
)
def test_a_file_that_can_not_be_believed_is_refused(tmp_path: Path, text: str, mode: int, says: str) -> None:
    file = tmp_path / "budget.yaml"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(BudgetError, match=says) as caught:
        allowances({VARIABLE: str(file)})
    assert caught.value.exit_status == 7
    assert all(problem.fix for problem in caught.value.problems)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "budget.yaml"
    file.write_text("gpu_hours: 5\n")
    os.chown(file, 54321, -1)
    with pytest.raises(BudgetError, match="belongs to another user"):
        allowances({VARIABLE: str(file)})


def test_a_file_that_is_gone_and_a_relative_path_are_refused(tmp_path: Path) -> None:
    for name in (str(tmp_path / "gone.yaml"), "budget.yaml"):
        with pytest.raises(BudgetError):
            allowances({VARIABLE: name})


def test_all_budgets_that_are_named_hold(tmp_path: Path) -> None:
    settings = Path(os.environ["HOME"], ".config/sbatchgen/settings.yaml")
    settings.parent.mkdir(parents=True)
    settings.write_text("budget: {gpu_hours: 1}\n")
    for name in ("a", "b"):
        (tmp_path / name).write_text("gpu_hours: 5\n")
    known = allowances({VARIABLE: f"{tmp_path}/a:{tmp_path}/b", "XDG_CONFIG_HOME": "/nowhere"})
    assert [*known] == [str(settings), f"{tmp_path}/a", f"{tmp_path}/b"]


def test_a_child_that_unsets_the_variable_keeps_to_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("gpu_hours: 5\n")
    code = "from sbatchgen.jobs.budget.allowance import allowances; print(*allowances({}))"
    child = f"env -u {VARIABLE} {sys.executable} -c '{code}'; true"
    for value, shown in ((f"{tmp_path}/a", f"{tmp_path}/a"), ("", "")):
        env = {**os.environ, VARIABLE: value, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(["bash", "-c", child], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == shown
