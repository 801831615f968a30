"""The script of a job believes nothing that another user has put in its way, and writes through no link."""

from __future__ import annotations

import pytest

from sbatchgen.base.units import Count
from tests.conftest import REPOSITORY
from tests.scripts import resolved, script

from .lab import User

pytestmark = pytest.mark.slow

EVIL = 'a[$(touch "$HOME/pwned")]'
KEY, OTHER = "0123456789abcdef", "fedcba9876543210"
CANCELLED = "kill -TERM $PPID; until [[ -s runs/ddp/stop ]]; do sleep 0.02; done; exit 7"


def chain(owner: User, launcher: str = "srun") -> str:
    """The script of a job whose run folder is runs/ddp."""
    return script(
        resolved("ddp", owner.home / "public.yaml", chain=Count(3), launcher=launcher, nodes=Count(2))
    )


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
@pytest.mark.parametrize(("left", "status"), [(EVIL, 7), ("00000", 7), ("-1", 7), ("3", 3)])
def test_exit_is_a_number_or_nothing(owner: User, launcher: str, left: str, status: int) -> None:
    job = owner.queued(chain(owner, launcher), KEY)
    done = owner.job(job, 'echo "$LEFT" >runs/ddp/exit; exit 7', LEFT=left)
    assert done.returncode == status, done.stderr
    assert not (owner.home / "pwned").exists()


@pytest.mark.parametrize("plant", ["true", "echo 1002 >chain", "mkfifo chain", "ln -s /dev/zero chain"])
def test_only_jobs_of_the_chain_that_wait_are_cancelled(attacker: User, owner: User, plant: str) -> None:
    """Slurm has given the third job's id to another run; a file `chain`, as earlier versions left it, counts for nothing."""
    text = chain(owner)
    for key in (KEY, KEY, OTHER, KEY):
        owner.queued(text, key)
    owner.bash('sed -i "s/^1003 PENDING/1003 RUNNING/" "$QUEUE"; mkdir -p -m 2775 runs/ddp')
    assert attacker.bash(f"cd runs/ddp && {plant}").returncode == 0
    assert owner.job(1000).returncode == 0
    assert owner.cancelled() == ["1001"]


@pytest.mark.parametrize("name", ["stop", "again", "exit"])
def test_links_in_an_open_run_folder_lead_nowhere(attacker: User, owner: User, name: str) -> None:
    """The folder is as an earlier version left it, and the script was submitted without `submit`."""
    job = owner.queued(chain(owner), KEY)
    owner.bash("mkdir -p -m 2775 runs/ddp")
    assert attacker.bash(f"ln -s {owner.home}/precious runs/ddp/{name}").returncode == 0
    assert owner.job(job, CANCELLED).returncode == 7
    assert (owner.home / "precious").read_text() == "mine"
    folder = owner.project / "runs/ddp"
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("stop", "cancelled\n")]
    assert folder.stat().st_mode & 0o022 == 0


def test_a_point_of_a_sweep_writes_through_no_link(attacker: User, owner: User) -> None:
    owner.bash("mkdir -p runs/s/0; chmod 2775 runs/s runs/s/0")
    assert attacker.bash(f"ln -s {owner.home}/precious runs/s/0/exit").returncode == 0
    owner.submit("single", "--job-name", "s", "--param", "lr=0.1,0.2")
    assert owner.job(1000, "exit 7").returncode == 7
    assert (owner.home / "precious").read_text() == "mine"
    assert (owner.project / "runs/s/0/exit").read_text() == "7\n"
    assert attacker.bash("rm -f runs/s/0/exit").returncode == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("whose", ["a link to the owner's folder", "another user's"])
def test_a_run_folder_that_is_not_the_owners_is_left_alone(attacker: User, owner: User, whose: str) -> None:
    owner.bash(
        "mkdir -p runs ~/private/checkpoints; touch ~/private/{stop,again,exit,checkpoints/step-00000001.pt}"
    )
    plant = f"ln -s {owner.home}/private runs/ddp" if "link" in whose else "mkdir -m 777 runs/ddp"
    assert attacker.bash(plant).returncode == 0
    before = sorted((owner.home / "private").rglob("*"))
    done = owner.job(owner.queued(chain(owner), KEY), "touch ~/trained")
    assert (done.returncode, f"{owner.project}/runs/ddp" in done.stderr) == (1, True)
    refused = owner.run(
        "python3", REPOSITORY / "training", "--run-dir", "runs/ddp", "--resume", "off", "--dataset", "fake"
    )
    assert (refused.returncode, refused.stdout) == (1, ""), refused
    assert refused.stderr.startswith("error: the run folder")
    refused = owner.submit("ddp", check=False)
    assert refused.returncode == 3, refused.stderr
    assert "the run folder" in refused.stderr
    assert sorted((owner.home / "private").rglob("*")) == before
    assert not (owner.home / "trained").exists()
    assert [path.name for path in (owner.project / "runs").iterdir()] == ["ddp"]
