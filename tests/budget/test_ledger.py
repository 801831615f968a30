"""What jobs took of a budget, on the real Slurm: the most at first, then what Slurm says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest

from tests.budget.calls import SCRIPT, where
from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.jobs.jobs import PROFILE

pytestmark = on_one_release
SWEEP = (
    "sweep",
    "single",
    "--profile",
    "./testing.yaml",
    "--trainer",
    "train.py",
    "--yes",
    "--max-restarts",
    "0",
)
CHAIN = ("submit", "ddp", "--profile", "./testing.yaml", "--yes")


@pytest.fixture
def user(cluster: Cluster) -> Iterator[User]:
    """The user in a folder with a script, a profile and a budget of 10 GPU-hours and 4 jobs."""
    cluster.put("ledger/job.sh", SCRIPT)
    cluster.put("ledger/testing.yaml", PROFILE)
    cluster.put("ledger/train.py", "import torch\n")
    cluster.run(["rm", "-rf", ".local", ".config/sbatchgen/settings.yaml", "ledger/runs"])
    user = User(cluster)
    yield user
    cluster.run(["scancel", "--me"])
    cluster.until(lambda: not user.jobs(), "no job")  # none that is still completing


class User:
    """Types commands in the folder."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def type(
        self, *words: str, budget: str = "gpu_hours: 10\njobs: 4\n", **more: str
    ) -> CompletedProcess[str]:
        self.cluster.put("ledger/budget.yaml", budget)
        env = {
            "PYTHONPATH": str(REPOSITORY),
            "SBATCHGEN_BUDGET": f"{self.cluster.home}/ledger/budget.yaml",
        } | more
        return self.cluster.run(
            [sys.executable, "-m", "sbatchgen", *words], env=env, cwd=self.cluster.home / "ledger"
        )

    def jobs(self) -> int:
        return len(self.cluster.run(["squeue", "--me", "--noheader"]).stdout.splitlines())


@pytest.mark.proof
def test_the_sum_is_told_with_a_time_that_fits(user: User) -> None:
    until = "gpu_hours: 10\nuntil: 2199-12-01\n"
    assert user.type("submit", "job.sh", "--yes", budget=until).returncode == 0
    refused = user.type("submit", "job.sh", "--yes", "--gpus-per-node=4", "--time=16:00:00", budget=until)
    assert refused.returncode == 7
    assert "this job may take 64 GPU-hours; 9 of 10 are left until 1 December 2199" in refused.stderr
    assert "fix: --time 0-02:15:00" in refused.stderr
    words = ("submit", "job.sh", "--yes", "--gpus-per-node=4", "--time", "0-02:15:00")
    assert user.type(*words, budget=until).returncode == 0
    assert user.type("submit", "job.sh", "--yes", "--dry-run", "--time=10", budget=until).returncode == 7


def test_a_job_that_ended_gives_back_what_it_did_not_take(user: User) -> None:
    words = ("submit", "job.sh", "--yes", "--again", "--time=9:00:00")
    assert user.type(*words).returncode == 0
    assert user.type(*words).returncode == 7
    user.cluster.run(["scancel", "--me"])
    user.cluster.wait(int(json.loads(where(user.cluster).read_text())[0][9]), {"CANCELLED"})
    assert user.type(*words).returncode == 0
    first, second = json.loads(where(user.cluster).read_text())
    assert first[7] < 0.1
    assert second[7] == 9


def test_what_slurm_refuses_is_not_charged(user: User) -> None:
    refused = user.type(
        "submit", "job.sh", "--yes", "--gpus-per-node=9999", "--time=1", budget="gpu_hours: 999\n"
    )
    assert refused.returncode in (3, 4, 5)
    file = where(user.cluster)
    assert not file.exists() or json.loads(file.read_text()) == []


@pytest.mark.proof
def test_a_sweep_runs_no_more_points_at_once_than_the_budget_leaves(user: User) -> None:
    assert user.type("submit", "job.sh", "--yes").returncode == 0
    done = user.type(*SWEEP, "--param", "x=1,2,3,4,5,6,7,8", budget="gpu_hours: 10\njobs: 4\n")
    assert done.returncode == 0, done.stderr
    assert "at most 3 points run at a time" in done.stderr
    assert "ArrayTaskThrottle=3" in user.cluster.run(["scontrol", "show", "job", done.stdout.strip()]).stdout
    assert user.type("submit", "job.sh", "--yes", "--again").returncode == 7


def test_of_a_chain_that_does_not_fit_no_job_is_submitted(user: User) -> None:
    done = user.type(*CHAIN, "--chain", "3", "--time", "1:00:00", "--nodes", "1", "--gpus-per-node", "4")
    assert (done.returncode, user.jobs()) == (7, 0), done.stderr
    assert "this submission of 3 jobs may take 12 GPU-hours; 10 of 10 are left" in done.stderr


@pytest.mark.proof
def test_the_same_job_needs_again(user: User) -> None:
    assert user.type("submit", "job.sh", "--yes").returncode == 0
    twice = user.type("submit", "job.sh", "--yes")
    assert (twice.returncode, user.jobs()) == (2, 1)
    assert "--again" in twice.stderr
    assert user.type("submit", "job.sh", "--yes", "--time=30").returncode == 0
    assert user.type("submit", "job.sh", "--yes", "--again").returncode == 0


def test_nothing_trains_on_a_login_node_under_a_budget(user: User) -> None:
    done = user.type("submit", "single", "--profile", "local", "--trainer", "train.py", "--yes")
    assert done.returncode == 7
    assert "--profile local trains on this machine" in done.stderr


ROW = '"k", ["/b"], 1.0, 1, 1, 1, 1'


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "text",
    ["[[1]]", "{}x", f"[[{ROW}, -50.0, 0.0]]", f"[[{ROW}, NaN, 0.0]]", '[["k", null, 1.0, 1, 1, 1, 1, 5.0, 0.0]]'],
)  # fmt: skip
def test_a_damaged_ledger_stops_all(user: User, text: str) -> None:
    user.cluster.put(".local/state/sbatchgen/budget.json", text)
    done = user.type("submit", "job.sh", "--yes")
    assert (done.returncode, user.jobs()) == (7, 0)
    assert "budget.json is damaged" in done.stderr
    fix = done.stderr.rpartition("count from zero again: ")[2]
    assert user.cluster.run(("bash", "-c", fix)).returncode == 0
    assert user.type("submit", "job.sh", "--yes").returncode == 0


def test_a_ledger_that_can_not_be_read_stops_all(user: User) -> None:
    user.cluster.put(".local/state/sbatchgen/budget.json", "[]", mode=0)
    done = user.type("submit", "job.sh", "--yes")
    assert (done.returncode, user.jobs()) == (7, 0)
    assert "budget.json can't be used: Permission denied" in done.stderr
    fix = done.stderr.rpartition("see who may use it: ")[2]
    assert user.cluster.run(("bash", "-c", fix)).stdout.startswith("----------")


def test_as_many_jobs_as_the_budget_has_may_wait(user: User) -> None:
    single = "jobs: 1\n"
    assert user.type("submit", "job.sh", "--yes", budget=single).returncode == 0
    refused = user.type("submit", "job.sh", "--yes", "--again", budget=single)
    assert refused.returncode == 7
    assert "this adds 1 job that may wait or run; 0 of 1 are left" in refused.stderr
    assert "sbatchgen status" in refused.stderr
    assert user.type("status").returncode == 0
    user.cluster.run(["scancel", "--me"])
    user.cluster.until(lambda: not user.jobs(), "no job")
    assert user.type("submit", "job.sh", "--yes", "--again", budget=single).returncode == 0


def test_of_a_chain_with_too_many_jobs_none_is_submitted(user: User) -> None:
    done = user.type(*CHAIN, "--chain", "5", "--time", "10", "--nodes", "1", budget="jobs: 2\n")
    assert (done.returncode, user.jobs()) == (7, 0), done.stderr
    assert "this adds 5 jobs that may wait or run; 2 of 2 are left" in done.stderr
    assert (
        user.type(*CHAIN, "--chain", "2", "--time", "10", "--nodes", "1", budget="jobs: 2\n").returncode == 0
    )
    assert user.jobs() == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["SLURM_HOSTFILE", "SBATCH_ACCOUNT", "SLURM_HINT"])
def test_what_variables_change_is_not_counted(user: User, name: str) -> None:
    user.cluster.put("ledger/nodes", "n1\nn2\nn3\n")
    env = {name: "nodes" if name == "SLURM_HOSTFILE" else "nomultithread"}
    done = user.type("submit", "job.sh", "--yes", "--keep-sbatch-env", **env)
    assert (done.returncode, user.jobs()) == (7, 0), done.stderr
    assert f"can't count a job that {name} changes" in done.stderr
    assert user.type("submit", "job.sh", "--yes", "--again", **env).returncode == 0


@pytest.mark.proof
def test_preflight_and_a_rehearsal_keep_to_it(user: User) -> None:
    small = "gpu_hours: 0\n"
    for words in (
        ("preflight", "--yes"),
        ("rehearse", "single", "--on", "./testing.yaml", "--trainer", "train.py", "--yes"),
    ):
        place = () if "--on" in words else ("--profile", "./testing.yaml")
        done = user.type(*words, *place, budget=small)
        assert (done.returncode, user.jobs()) == (7, 0), done.stderr
        if words[0] in ("submit", "sweep"):
            assert user.type(*words, *place, "--dry-run", budget=small).returncode == 7, words


@pytest.mark.proof
def test_resume_and_resubmit_keep_to_it(user: User) -> None:
    assert user.type("submit", "job.sh", "--yes").returncode == 0
    sweep = user.type(*SWEEP, "--param", "x=1,2", "--job-name", "lr", budget="gpu_hours: 10\n")
    assert sweep.returncode == 0, sweep.stderr
    user.cluster.run(["scancel", "--me"])
    user.cluster.wait(int(sweep.stdout), {"CANCELLED", "FAILED"})
    for words in (("resume", "job.sh", "--yes"), ("resubmit", "lr", "--yes")):
        done = user.type(*words, "--time", "12:00:00")
        assert (done.returncode, user.jobs()) == (7, 0), done.stderr
