"""A job that starts again continues its run of Weights & Biases, unless a user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.processes.stacks import with_hook
from training.task import environment_of_task

from .trainers import ROOT

SHOWS = "import os, sys; print(*[os.environ.get(n) for n in ('WANDB_RUN_ID', 'WANDB_RESUME')], 'wandb_run' in sys.modules)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOWS!r}])"


@pytest.fixture
def rank_0(tmp_path: Path) -> dict[str, str]:
    """The environment of rank 0 of a trainer whose Python has wandb."""
    (tmp_path / "packages/wandb").mkdir(parents=True)
    (tmp_path / "packages/wandb/__init__.py").touch()
    (tmp_path / "run").mkdir()
    talk = {"RUN_DIR": f"{tmp_path}/run", "SBATCHGEN_AGAIN_FILE": f"{tmp_path}/run/again"}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}/packages", "RANK": "0", **talk}


def seen(environment: dict[str, str], program: str = SHOWS) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=with_hook(environment),
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


def test_each_start_of_a_run_folder_has_the_same_name(rank_0: dict[str, str], tmp_path: Path) -> None:
    first = seen(rank_0)
    assert (len(first[0]), first[1:]) == (8, ["allow", "False"])
    assert seen(rank_0) == first
    (tmp_path / "other").mkdir()
    assert seen({**rank_0, "RUN_DIR": f"{tmp_path}/other"})[0] not in (first[0], "None")


def test_a_trainer_that_is_alone_has_no_rank_and_gets_it_too(rank_0: dict[str, str]) -> None:
    alone = environment_of_task({**rank_0, "LOCAL_RANK": "0"}, "none")
    assert "RANK" not in alone
    assert seen(alone)[1:] == ["allow", "False"]
    assert seen(alone) == seen(rank_0)
    assert seen(alone, CHILD) == seen({**alone, "PYTHONPATH": ""}, CHILD) == ["None", "None", "False"]
    assert seen(environment_of_task(rank_0, "spawn")) == ["None", "None", "False"]  # which of its processes?


def test_a_trainer_that_is_alone_gets_each_signal_itself(tmp_path: Path) -> None:
    """No process of ours is before it."""
    (tmp_path / "train.py").write_text("import os\nprint(os.getpid(), os.environ.get('RANK'))\nos._exit(7)")
    call = [
        sys.executable,
        str(ROOT / "training/task.py"),
        "--launcher",
        "none",
        "--",
        str(tmp_path / "train.py"),
    ]
    with subprocess.Popen(
        call, env={**os.environ, "RANK": "3"}, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.communicate()[0].split() == [str(started.pid), "None"]
    assert started.returncode == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": "1"},  # a run of its own, if it begins one
        {"RANK": ""},
        {"PYTHONPATH": ""},  # an environment without wandb
        {"SBATCHGEN_AGAIN_FILE": ""},  # a job that is not resumed
        {"RUN_DIR": ""},  # not the user's own trainer
        {"RUN_DIR": "/nowhere"},
        {"WANDB_MODE": "offline"},
    ],
)
def test_nothing_is_said_where_it_might_join_what_is_apart(
    rank_0: dict[str, str], changes: dict[str, str]
) -> None:
    environment = {name: value for name, value in {**rank_0, **changes}.items() if value}
    assert seen(environment) == ["None", "None", "False"]


def test_who_names_a_run_decides(rank_0: dict[str, str], tmp_path: Path) -> None:
    assert seen({**rank_0, "WANDB_RUN_ID": "mine"}) == ["mine", "None", "False"]
    assert seen({**rank_0, "WANDB_RESUME": "never"}) == ["None", "never", "False"]
    assert not list((tmp_path / "run").iterdir())


def test_a_program_that_rank_0_starts_has_a_run_of_its_own(rank_0: dict[str, str]) -> None:
    assert seen(rank_0, CHILD) == ["None", "None", "False"]
