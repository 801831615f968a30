"""A whole training in a project of a group: only its owner can write what it leaves, and nothing planted holds it up."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import _need
from tests.conftest import REPOSITORY
from tests.training.forks import QUICKLY

from . import lab
from .lab import User, put

pytestmark = pytest.mark.slow

SECRET = "secret-4711"  # noqa: S105 - of no account
TRAINING = "--dataset fake --fake-samples 32 --batch-size 16 --model tiny_model:make --tensorboard off --epochs".split()
MODEL = """from torch import nn

def make(_):
    return nn.Sequential(nn.AvgPool2d(56), nn.Flatten(), nn.Linear(48, 1000))
"""
PLANTS = ("mkfifo", "ln -s /dev/zero", "mkdir")


@pytest.fixture(scope="module")
def members() -> Iterator[tuple[User, User]]:
    """With a run of the owner's that has trained an epoch, in runs/a."""
    _need(lab.why_not(), what="files of two users")
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as folder:
        attacker, owner = lab.make(Path(folder).resolve())
        flags = ("--yes", "--profile", "local", "--job-name", "a", "--env", f"WANDB_API_KEY={SECRET}")
        put(owner.lab / "tiny_model.py", MODEL, owner=0)
        done = owner.sbatchgen("submit", "cpu", *flags, "--", *TRAINING, "1", PYTHONPATH=path(owner))
        assert done.returncode == 0, done.stdout
        yield attacker, owner


def path(user: User) -> str:
    return f"{REPOSITORY}:{QUICKLY}:{user.lab}"


def train(owner: User, name: str) -> subprocess.CompletedProcess[str]:
    """A copy of the run that trains another epoch; 124 if it hangs."""
    words = ("--run-dir", f"runs/{name}", "--device", "cpu", "--launcher", "none", *TRAINING, "2")
    return owner.run(
        "timeout",
        "-k",
        "1",
        "120",
        "python3",
        REPOSITORY / "training",
        *words,
        env={"PYTHONPATH": path(owner)},
    )


def test_only_the_owner_writes_what_a_training_leaves(members: tuple[User, User]) -> None:
    attacker, owner = members
    folder = owner.project / "runs/a"
    listing = subprocess.run(
        ["find", folder, "!", "-type", "l", "-perm", "/022"], capture_output=True, text=True, check=True
    )
    assert listing.stdout == ""
    assert {path.stat().st_uid for path in folder.rglob("*")} == {owner.uid}
    assert json.loads(attacker.bash("cat runs/a/status.json").stdout)["state"] == "done"


def test_the_value_of_a_variable_is_read_by_its_owner_alone(members: tuple[User, User]) -> None:
    attacker, owner = members
    search = f"grep -rsl --devices=skip {SECRET} {owner.lab}"
    assert "/runs/a/job-" in owner.bash(search).stdout
    assert attacker.bash(search).stdout == ""


@pytest.mark.proof
def test_the_owners_checkpoints_that_are_no_files_are_passed_over(members: tuple[User, User]) -> None:
    _, owner = members
    owner.bash("cp -a runs/a runs/b")
    for number, plant in enumerate(PLANTS):
        owner.bash(f"{plant} runs/b/checkpoints/step-9999999{number}.pt")
    done = train(owner, "b")
    assert done.returncode == 0, done
    assert done.stdout.count("it is not a regular file") + done.stderr.count("it is not a regular file") == 3
    assert "Epoch 2 - " in done.stdout + done.stderr
    assert "Epoch 1 - " not in done.stdout + done.stderr


def test_checkpoints_of_others_are_refused(members: tuple[User, User]) -> None:
    """In a folder that an earlier version left open to the group."""
    attacker, owner = members
    owner.bash("cp -a runs/a runs/c; chmod 2775 runs/c/checkpoints")
    for number, plant in enumerate(PLANTS):
        assert attacker.bash(f"{plant} runs/c/checkpoints/step-9999999{number}.pt").returncode == 0
    done = train(owner, "c")
    assert (done.returncode, done.stdout) == (1, ""), done
    assert "belongs to another user (20011); at: " in done.stderr
    assert (owner.project / "runs/c/checkpoints").stat().st_mode & 0o022 == 0
