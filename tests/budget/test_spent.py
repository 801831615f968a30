"""What jobs took that have ended is what sacct says, on a real Slurm with a database and on one without."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.budget.calls import where
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY

ALICE = ("add account mine", "add user alice account=mine")
HEAD = "#!/bin/bash\n#SBATCH --time=60\n#SBATCH --gpus-per-node=2\n#SBATCH --cpus-per-task=2\n"
BUDGET = "gpu_hours: 100\n"
LEFT = (
    "from sbatchgen.jobs.budget.spent import standings; import os; print(standings(os.environ)[0].gpu_hours)"
)


@pytest.fixture(scope="module", params=["with a database", "without"])
def site(slurm_root: Path | None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with sacct, or without."""
    accounts = ALICE if request.param == "with a database" else ()
    with Cluster(visible=VISIBLE, root=slurm_root, settings="MinJobAge=3600\n", accounts=accounts) as cluster:
        assert bool(accounts) == (cluster.run(["sacct"]).returncode == 0)
        yield cluster


class Account:
    """Submits scripts under a budget, and reads the ledger."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.keeps = cluster, bool(cluster.run(["sacct"]).returncode == 0)
        cluster.run(["rm", "-rf", ".local"])
        cluster.put("budget.yaml", BUDGET)
        self.env = {"PYTHONPATH": str(REPOSITORY), "SBATCHGEN_BUDGET": f"{cluster.home}/budget.yaml"}

    def submit(self, body: str, *options: str) -> int:
        self.cluster.put("job.sh", HEAD + body)
        words = [sys.executable, "-m", "sbatchgen", "submit", "job.sh", "--yes", "--again", *options]
        return int(self.cluster.run(words, env=self.env, check=True).stdout)

    def left(self) -> float:
        return float(self.cluster.run([sys.executable, "-c", LEFT], env=self.env, check=True).stdout)

    def until_left(self, least: float) -> float:
        """What is left, once it is known what the jobs took: slurmdbd hears of the end a moment later."""
        until = time.monotonic() + 60
        while (left := self.left()) < least and time.monotonic() < until:
            time.sleep(1)
        return left


@pytest.fixture
def account(site: Cluster) -> Iterator[Account]:
    yield Account(site)
    site.run(["scancel", "--me"])


def test_a_job_is_charged_with_what_elapsed(account: Account) -> None:
    job = account.submit("sleep 4\n")
    assert account.left() == 98  # two GPUs for an hour
    account.cluster.wait(job)
    left = account.until_left(99)
    assert 100 - 2 * 60 / 3600 < left <= 100 - 2 * 4 / 3600
    charge = json.loads(where(account.cluster).read_text())[0]
    assert charge[8] == pytest.approx(charge[7])  # as many CPUs as GPUs


@pytest.mark.sampled(2)
def test_a_job_that_never_ran_takes_nothing(account: Account) -> None:
    job = account.submit("true\n", "--begin=now+1hour")
    assert account.left() == 98
    account.cluster.run(["scancel", str(job)])
    account.cluster.wait(job)
    assert account.until_left(100) == 100


@pytest.mark.sampled(2)
def test_of_an_array_each_task_counts(account: Account) -> None:
    job = account.submit("sleep 3\n", "--array=0-3%2")
    assert account.left() == 92
    account.cluster.wait(job)
    left = account.until_left(99)
    assert 100 - 4 * 2 * 60 / 3600 < left <= 100 - 4 * 2 * 3 / 3600


@pytest.mark.sampled(2)
def test_an_array_that_was_cancelled_in_part(account: Account) -> None:
    job = account.submit("sleep 3\n", "--array=0-9%1")
    account.cluster.until(lambda: "COMPLETED" in str(account.cluster.jobs(job)), "a task that has ended")
    account.cluster.run(["scancel", str(job)])
    account.cluster.wait(job)
    left = account.until_left(99)
    assert 100 - 2 * 60 / 3600 < left <= 100 - 2 * 3 / 3600


@pytest.mark.sampled(2)
def test_of_a_requeued_job_all_starts_count(account: Account) -> None:
    """Without a database, the first start is not known: nothing is given back."""
    job = account.submit('[ "$SLURM_RESTART_COUNT" ] && exit\nsleep 300\n')
    account.cluster.wait(job, {"RUNNING"})
    time.sleep(4)
    account.cluster.run(["scontrol", "requeue", str(job)])
    account.cluster.wait(job, {"COMPLETED"}, timeout=180)
    if account.keeps:
        assert 100 - 2 * 120 / 3600 < account.until_left(99) <= 100 - 2 * 4 / 3600
    else:
        assert account.left() == 98


@pytest.mark.sampled(2)
def test_what_neither_knows_is_not_given_back(account: Account) -> None:
    """The id of another job is in the ledger: nothing is known of the submission."""
    account.submit("true\n")
    file = where(account.cluster)
    rows = json.loads(file.read_text())
    rows[0][0], rows[0][9] = "0123456789abcdef", "999999"
    file.write_text(json.dumps(rows))
    assert account.left() == 98


@pytest.mark.sampled(2)
def test_what_the_controller_has_forgotten(account: Account) -> None:
    """sacct says how the job ended, and then fails when it is asked how long it ran: nothing is given back."""
    job = account.submit("sleep 1\n")
    account.cluster.wait(job)
    ended = ["sacct", "--noheader", "--jobs", str(job), "--format=State"]
    if account.keeps:
        account.cluster.until(lambda: "COMPLETED" in account.cluster.run(ended).stdout, "an answer of sacct")
    fails = 'echo "sacct: error: Problem talking to the database" >&2; exit 1'
    text = f'#!/bin/bash\nif [[ $* == *AllocTRES* ]]; then {fails}; fi\nexec /usr/bin/sacct "$@"\n'
    sacct = account.cluster.put("bin/sacct", text, mode=0o755)
    account.cluster.put("bin/squeue", "#!/bin/bash\n", mode=0o755)
    account.env["PATH"] = f"{account.cluster.home}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert account.left() == 98
    sacct.unlink()
    left = account.until_left(99.9) if account.keeps else account.left()
    assert left == (pytest.approx(100, abs=0.1) if account.keeps else 98)
