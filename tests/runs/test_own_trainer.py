"""Findings about a trainer of one's own, before it is submitted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.rules import judge
from tests.conftest import Command

PLAIN = "import torch\nprint(torch.nn.Linear(8, 1))\n"
SAVES = f"{PLAIN}torch.save(1, 'last.pt')\n"
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=4)\ntorch.save(1, 'last.pt')\n"


def review(command: Command, *words: str, mode: str = "ddp", trainer: str = "train.py") -> dict[str, Any]:
    result = command("review", mode, "--profile", "msu", "--trainer", trainer, *words, "--format", "json")
    made: dict[str, Any] = json.loads(result.out)
    return made


def says(made: dict[str, Any]) -> list[str]:
    """The findings about trainers."""
    ids = {rule.id for rule in judge.rules(judge.TRAINERS)}
    about = (finding for finding in made["findings"] if finding["rule"] in {"", *ids})
    return [f"{finding['severity']}: {finding['what']}" for finding in about]


COPIES = "warning: 8 copies of the same training: train.py uses no torch.distributed"
AGAIN = "warning: train.py saves nothing: each restart begins at the beginning"
LOST = "info: train.py saves nothing: at the time limit its work is lost"
TWICE = "warning: train.py starts its own processes (mp.spawn), and torchrun starts it 8 times"


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (SAVES, (), [COPIES]),
        (PLAIN, (), [COPIES, LOST]),
        (PLAIN, ("--requeue-on-timeout",), [COPIES, AGAIN]),
        (PLAIN, ("--chain", "3"), [COPIES, AGAIN]),
        (PLAIN, ("--max-restarts", "0"), [COPIES]),
        (PLAIN, ("--nodes", "1", "--nproc-per-node", "1"), [LOST]),
        (SPAWNS, (), [TWICE]),
        (SPAWNS, ("--launcher", "spawn"), []),
        (f"import horovod\n{PLAIN}", (), []),
    ],
)
def test_what_is_wrong_with_a_trainer(
    command: Command, folder: Path, text: str, words: tuple[str, ...], expected: list[str]
) -> None:
    (folder / "train.py").write_text(text)
    assert says(review(command, *words)) == expected


def test_one_process_trains_alone(command: Command, folder: Path) -> None:
    (folder / "train.py").write_text(SAVES)
    assert says(review(command, mode="single")) == []


def test_restarts_are_counted_where_there_may_be_some(command: Command, folder: Path) -> None:
    (folder / "train.py").write_text(SAVES)
    asks_for_none = review(command, mode="single")
    assert asks_for_none["request"]["restarts"] == 0
    assert asks_for_none["job"]["restarts"].startswith(
        "train.py asks for none: at the time limit the job ends"
    )
    assert review(command, "--requeue-on-timeout", mode="single")["request"]["restarts"] == 10
    (folder / "train.py").write_text(f"{SAVES}import own_library\n")
    assert review(command, mode="single")["request"]["restarts"] == 10


@pytest.mark.parametrize("trainer", ["torchrun", "accelerate", "./job.sh", "torch.distributed.run"])
def test_a_launcher_and_a_script_of_shell_are_no_trainers(
    command: Command, folder: Path, trainer: str
) -> None:
    (folder / "job.sh").write_text("#!/bin/bash -l\ntorchrun train.py\n")
    (finding,) = says(review(command, trainer=trainer))
    severity = "warning" if trainer.startswith("torch.") else "error"
    assert finding.startswith(f"{severity}: ")


def test_a_trainer_that_is_a_pipe_does_not_stop_a_review(command: Command, folder: Path) -> None:
    os.mkfifo(folder / "train.py")
    assert says(review(command)) == []


def test_a_script_of_python_may_have_any_name(command: Command, folder: Path) -> None:
    (folder / "train").write_text(f"#!/usr/bin/env python3\nimport os\n{SAVES}")
    assert says(review(command, mode="single", trainer="./train")) == []


def environment(place: Path, *packages: str) -> Path:
    """An environment whose Python must not be run, with these packages."""
    (place / "lib/python3.12/site-packages").mkdir(parents=True)
    for package in packages:
        (place / "lib/python3.12/site-packages" / package).write_text("")
    (place / "bin").mkdir()
    (place / "bin/python3").write_text("#!/bin/sh\ntouch ran\n")
    (place / "bin/python3").chmod(0o755)
    return place


VENV = ("review", "single", "--profile", "local", "--runtime", "venv", "--format", "json", "--venv")


@pytest.mark.parametrize("trainer", [(), ("--trainer", "train.py")])
def test_an_environment_without_torch_is_found(
    command: Command, folder: Path, trainer: tuple[str, ...]
) -> None:
    (folder / "data").mkdir()
    (folder / "train.py").write_text(SAVES)
    place = environment(folder / "env", "numpy.py", "distutils-precedence.pth")
    assert says(json.loads(command(*VENV, str(place), *trainer).out)) == [
        f"warning: the Python of the job has no torch: {place}/bin/python3"
    ]
    (place / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert says(json.loads(command(*VENV, str(place), *trainer).out)) == []
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("package", ["torch", "torch.py", "site-of-the-centre.pth"])
def test_an_environment_that_may_have_torch_is_no_finding(
    command: Command, folder: Path, package: str
) -> None:
    (folder / "train.py").write_text(SAVES)
    made = command(*VENV, str(environment(folder / "env", package)), "--trainer", "train.py")
    assert says(json.loads(made.out)) == []


def test_the_python_of_this_shell_is_looked_at_if_it_is_that_of_the_job(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = environment(folder / "mine")
    monkeypatch.setenv("PATH", f"{mine}/bin:{os.environ['PATH']}")
    (folder / "train.py").write_text(SAVES)
    words = ("review", "single", "--profile", "local", "--trainer", "train.py", "--format", "json")
    assert says(json.loads(command(*words).out)) == []  # it may be another one on a node
    monkeypatch.setenv("VIRTUAL_ENV", str(mine))
    expected = f"warning: the Python of the job has no torch: {mine}/bin/python3"
    assert says(json.loads(command(*words).out)) == [expected]
    (folder / "train.py").write_text("print('no torch')\n")
    assert says(json.loads(command(*words).out)) == []


def test_a_trainer_is_read_and_never_run(command: Command, folder: Path) -> None:
    (folder / "train.py").write_text(f"{SAVES}open('ran', 'w')\n")
    (folder / "torch.py").write_text("open('ran', 'w')\n")
    review(command)
    assert not (folder / "ran").exists()


def test_what_happens_at_the_time_limit_is_said_once(command: Command, folder: Path) -> None:
    for text, row in ((SAVES, 1), (PLAIN, 0)):
        (folder / "train.py").write_text(text)
        lines = command("review", "single", "--profile", "msu", "--trainer", "train.py").out.splitlines()
        assert len([line for line in lines if line.startswith("restarts ")]) == row
        assert (
            len(
                [line for line in lines if "at the time limit the job ends" in line or "work is lost" in line]
            )
            == 1
        )
