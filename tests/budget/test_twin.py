"""The same job again, on the real Slurm: at the same moment, and after a command that was killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.budget.calls import SCRIPT
from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY

pytestmark = on_one_release
SUBMIT = f"{sys.executable} -m sbatchgen submit job.sh --yes"
ENV = {"PYTHONPATH": str(REPOSITORY)}


# No job starts: a signal to one that is just starting is lost, and then Slurm waits for KillWait, a minute.
LATER = SCRIPT.replace("#SBATCH --time=60\n", "#SBATCH --time=60\n#SBATCH --begin=now+1hour\n")


@pytest.fixture
def home(cluster: Cluster) -> Iterator[Cluster]:
    """A user with a script and no budget."""
    cluster.run(["rm", "-rf", "twin", ".local", ".config/sbatchgen/settings.yaml"])
    cluster.put("twin/job.sh", LATER)
    yield cluster
    cluster.run(["scancel", "--me"])
    cluster.until(lambda: not jobs(cluster), "no job")  # none that is still completing


def jobs(cluster: Cluster) -> int:
    return len(cluster.run(["squeue", "--me", "--noheader"]).stdout.splitlines())


@pytest.mark.proof
def test_of_twenty_at_once_one_is_submitted(home: Cluster) -> None:
    every = f"for i in $(seq 20); do ({SUBMIT} 2>$i.err; echo $? >$i.status) & done; wait; cat *.status *.err"
    done = home.run(["bash", "-c", every], env=ENV, cwd=home.home / "twin")
    assert jobs(home) == 1
    assert done.stdout.splitlines().count("0") == 1, done.stdout
    assert done.stdout.splitlines().count("2") == 19, done.stdout
    assert done.stdout.count("to submit it once more: --again") == 19


@pytest.mark.proof
def test_other_jobs_at_once_are_all_submitted(home: Cluster) -> None:
    for number in range(8):
        home.put(f"twin/{number}.sh", LATER.replace("300", f"30{number}"))
    each = SUBMIT.replace("job.sh", "$i.sh")
    every = (
        f"for i in $(seq 0 7); do ({each} >$i.job 2>$i.err; echo $? >$i.status) & done; wait; cat *.status"
    )
    done = home.run(["bash", "-c", f"{every}; cat *.job *.err >&2"], env=ENV, cwd=home.home / "twin")
    assert done.stdout.split() == ["0"] * 8, done.stderr
    assert len({line for line in done.stderr.splitlines() if line.isdecimal()}) == 8, done.stderr


def test_the_job_of_a_killed_command_is_a_twin(home: Cluster) -> None:
    """sbatchgen dies as soon as sbatch has answered: the lost answer of a conversation."""
    real = home.run(["bash", "-c", "command -v sbatch"]).stdout.strip()
    home.put("bin/sbatch", f'#!/bin/bash\n{real} "$@" >/dev/null\nkill -KILL $PPID\n', mode=0o755)
    killed = home.run(["bash", "-c", f"PATH=~/bin:$PATH {SUBMIT}"], env=ENV, cwd=home.home / "twin")
    home.run(["rm", "-r", "bin"])
    assert (killed.returncode, jobs(home)) == (-9, 1), killed.stderr
    again = home.run(["bash", "-c", SUBMIT], env=ENV, cwd=home.home / "twin")
    assert (again.returncode, jobs(home)) == (2, 1), again.stderr
    assert "is the same script with the same options" in again.stderr
    look = home.run([sys.executable, "-m", "sbatchgen", "status"], env=ENV, cwd=home.home / "twin")
    assert "job.sh" in look.stdout
