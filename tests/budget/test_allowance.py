"""Budgets without a Slurm: which files hold, what can't be believed, and what is counted of a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.base.errors import BudgetError, SlurmError
from sbatchgen.base.units import Hours
from sbatchgen.jobs.budget import demand as demands
from sbatchgen.jobs.budget import share
from sbatchgen.jobs.budget.allowance import VARIABLE, allowances
from sbatchgen.jobs.budget.debit import Debit
from sbatchgen.jobs.slurm.node import SlurmNode, nodes_in
from sbatchgen.jobs.slurm.partition import SlurmPartition, partitions_in
from tests.conftest import REPOSITORY

HEAD = "#!/bin/bash\n#SBATCH --time=60\n"


def partition(name: str, **facts: str) -> SlurmPartition:
    """A partition as scontrol shows it."""
    shown = {"Default": "NO", "TotalNodes": "40", "MaxTime": "UNLIMITED", "OverSubscribe": "NO"} | facts
    text = " ".join(f"{key}={value}" for key, value in shown.items())
    return next(partitions_in(f"PartitionName={name} {text}\n"))


PARTITIONS = [
    partition("gpu", Default="YES"),
    partition("whole", OverSubscribe="EXCLUSIVE"),
    partition("short", DefaultTime="00:30:00"),
    partition("most", MaxTime="02:00:00"),
    partition("two", TotalNodes="2"),
]
NODE = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=32 CPUTot=64 Sockets=2 ThreadsPerCore=1 RealMemory=1000 Gres=gpu:a100:4,shard:64,mps:400 \
State=IDLE Partitions=gpu,whole,short,most,two
"""


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """What scontrol would say."""
    monkeypatch.setattr(share, "partitions", lambda _: PARTITIONS)
    monkeypatch.setattr(share, "nodes", lambda _: [*nodes_in(NODE)])
    monkeypatch.setattr(share, "config", lambda _: {})


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
        ("--gpus-per-node=4 --ntasks=8 --partition=two", (), 8, 8),  # there are two
        ("--gpus-per-node=1 --gpus=16 --partition=two", (), 16, 2),  # which never runs
        ("--gres=shard:16 --partition=gpu", (), 1, 1),
        ("--gres=mps:50 --partition=gpu", (), 0.5, 1),
        ("--gres=gres/gpu:2,gpu:a100:1", (), 3, 1),
        ("--nodelist=n[1-3] --gpus-per-node=1", (), 3, 3),
        ("--ntasks=8 --ntasks-per-gpu=4 --nodes=1", (), 2, 8),
        ("--exclusive=user --gpus-per-node=1", (), 1, 1),
        ("--core-spec=2", (), 4, 64),
        ("--gres=gpu:1 --exclusive --nodes=2 --partition=gpu", (), 8, 128),
        ("--partition=whole", (), 4, 64),
        ("--time=10\n#SBATCH --gpus=1 --time=120", (), 2, 2),  # the last one counts
    ],
)
def test_what_may_be_taken_is_counted_at_the_most(
    lines: str, options: tuple[str, ...], gpu_hours: float, cpu_hours: float
) -> None:
    asked = demands.compute_demand(f"{HEAD}#SBATCH {lines}\nsrun x\n".encode(), options, {})
    assert asked.hours(asked.gpus) == pytest.approx(gpu_hours)
    assert asked.hours(asked.cpus) == pytest.approx(cpu_hours)


def test_restarts_of_our_own_script_count() -> None:
    asked = demands.compute_demand(
        f"{HEAD}#SBATCH --gpus=1\nmax_restarts=10\nscontrol requeue 1\n".encode(), (), {}
    )
    assert asked.hours(asked.gpus) == 11


@pytest.mark.parametrize(
    ("text", "says", "fix"),
    [
        ("#!/bin/bash\n#SBATCH --gpus=1\nx\n", "it has no time limit", "--time"),
        (f"{HEAD}#SBATCH --time=UNLIMITED\nx\n", "it has no time limit", "--time"),
        (f"{HEAD}#SBATCH hetjob\n#SBATCH --gpus=8\nx\n", "heterogeneous", "component"),
        (f"{HEAD}#SBATCH --gpus-per-socket=4 --sockets-per-node=2\nx\n", "leaves open what it gets", "--gpus-per-node"),
        (f"{HEAD}scontrol requeue $SLURM_JOB_ID\n", "number of its restarts", "--no-requeue"),
    ],
)  # fmt: skip
def test_what_can_not_be_counted_is_refused(text: str, says: str, fix: str) -> None:
    with pytest.raises(BudgetError, match=says) as caught:
        demands.compute_demand(text.encode(), (), {})
    assert fix in caught.value.problems[0].fix


@pytest.mark.parametrize(("partition", "hours"), [("short", 0.5), ("most", 2), ("short,most", 2)])
def test_without_a_time_limit_that_of_the_partition_counts(partition: str, hours: float) -> None:
    text = f"#!/bin/bash\n#SBATCH --gpus=1 --partition={partition}\nx\n"
    asked = demands.compute_demand(text.encode(), (), {})
    assert asked.hours(asked.gpus) == hours


def test_whole_nodes_that_slurm_does_not_show_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(_: object) -> list[SlurmNode]:
        raise SlurmError.of("Access/permission denied")

    monkeypatch.setattr(share, "nodes", hidden)
    with pytest.raises(BudgetError, match="gets whole nodes, and Slurm does not show"):
        demands.compute_demand(f"{HEAD}#SBATCH --exclusive\nx\n".encode(), (), {})
    asked = demands.compute_demand(f"{HEAD}#SBATCH --gpus=1\nx\n".encode(), (), {})
    assert (asked.gpus, asked.cpus) == (1, 2)  # a core may have two threads


def test_slurm_that_gives_sockets_is_counted_in_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "config", lambda _: {"SelectTypeParameters": "CR_SOCKET_MEMORY"})
    assert demands.compute_demand(f"{HEAD}x\n".encode(), (), {}).cpus == 32
    monkeypatch.setattr(share, "config", lambda _: {"SelectType": "select/linear"})
    assert demands.compute_demand(f"{HEAD}x\n".encode(), (), {})[2:4] == (4, 64)


def test_a_script_that_may_not_be_requeued_is_counted() -> None:
    text = f"{HEAD}scontrol requeue $SLURM_JOB_ID\n"
    assert demands.compute_demand(text.encode(), ("--no-requeue",), {}).starts == 1


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("gpu_hours: many\n", 0o600, "not a number of hours"),
        ("gpu_hours: 1:30\n", 0o600, "is ambiguous"),
        ("gpu_hours: 1e9\n", 0o600, "not a number of hours"),
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


@pytest.mark.parametrize(
    ("text", "hours", "shown"),
    [
        ("200", 200, "200"),
        ("0.25", 0.25, "0.25"),
        ("1.5", 1.5, "1.5"),
        ("30m", 0.5, "0.5"),
        ("2h", 2, "2"),
        ("00:20:00", 1 / 3, "0.3333"),
        ("1-12:00:00", 36, "36"),
        ("1-00", 24, "24"),
        ("12345.5", 12345.5, "12,345.5"),
    ],
)
def test_hours_are_decimals_or_times_of_slurm(text: str, hours: float, shown: str) -> None:
    read = Hours.parse(text)
    assert read == pytest.approx(hours)
    assert str(read) == shown


def debit(script: bytes, file: Path) -> Debit:
    """A submission before the budget of a file."""
    environment = {VARIABLE: str(file), "HOME": str(file.parent)}
    return Debit("", allowances(environment), script, (), environment=environment)


def test_a_part_of_an_hour_is_shown_as_it_is(tmp_path: Path) -> None:
    """What is asked for is never shown as less, and what is left never as more."""
    file = tmp_path / "budget.yaml"
    file.write_text("gpu_hours: 0.5\ngpu_hours_per_job: 15m\n")
    file.chmod(0o600)
    script = f"{HEAD.replace('60', '20')}#SBATCH --gpus=2\nsrun x\n".encode()
    with pytest.raises(BudgetError) as caught:
        debit(script, file).enter(only_check=True)
    whats = [(problem.what, problem.fix) for problem in caught.value.problems]
    assert whats == [
        ("this job may take 0.6667 GPU-hours; 0.5 of 0.5 are left", "--time 0-00:15:00"),
        ("this job may take 0.6667 GPU-hours; 0.25 may be in one submission", "--time 0-00:07:00"),
    ]


def test_a_job_that_fits_with_fewer_restarts_is_told_how_many(tmp_path: Path) -> None:
    file = tmp_path / "budget.yaml"
    file.write_text("gpu_hours: 4.5\n")
    file.chmod(0o600)
    script = f"{HEAD}#SBATCH --gpus=1\nmax_restarts=10\nscontrol requeue 1\n".encode()
    with pytest.raises(BudgetError) as caught:
        debit(script, file).enter(only_check=True)
    (problem,) = caught.value.problems
    assert problem.what == "this job may take 11 GPU-hours in 11 starts; 4.5 of 4.5 are left"
    assert problem.fix == "--max-restarts 3 or --time 0-00:24:00"
    fewer = debit(script.replace(b"=10", b"=3"), file)
    fewer.enter(only_check=True)
