"""Each error of one rank, the first or the last, under each launcher: a line that names it, and a true status.json."""

from __future__ import annotations

import os
import socket
import subprocess
import textwrap
from pathlib import Path

import pytest

from .forks import QUICKLY
from .trainers import ROOT, SPAWN_2, TORCHRUN_2, Trainers, finish, status, tasks

# Errors before the processes meet.
EARLY = """
    import os
    import sys

    rank, _, wrong = os.environ["WRONG"].partition(":")
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID")) == rank and wrong in ("detect", "device"):
        sys.path.insert(0, os.environ["ROOT"])
        import training.command
        import training.processes.world
        from training.errors import UserError

        def fail(*_):
            raise UserError(f"here is a wrong {wrong}", fix="another one")

        if wrong == "detect":
            training.command.detect = fail
        training.processes.world._choose_device = fail
"""
OWN = """
    import os
    import sys
    import torch
    from torch import nn
    from training.errors import UserError

    RANK, _, WRONG = os.environ["WRONG"].partition(":")
    HERE = os.environ.get("RANK", os.environ.get("SLURM_PROCID")) == RANK

    def fail(*where):
        name, kind = where[:2]
        if HERE and WRONG == name:
            raise kind(*where[2:])

    class Own(torch.utils.data.Dataset):
        classes = ("a", "b")

        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            if index:
                fail("sample", OSError, 5, "here is a wrong sample")
            return torch.ones(1, 4, 4), index % 2

    def data(config):
        fail("user", UserError, "here is a wrong user")
        fail("folder", PermissionError, 13, "here is a wrong folder")
        fail("exit", SystemExit, "here is a wrong exit")
        return Own(16), Own(4)

    class Model(nn.Linear):
        def forward(self, x):
            if torch.is_grad_enabled():
                fail("step", ValueError, "here is a wrong step")
                fail("memory", MemoryError, "here is a wrong memory")
                fail("gpu", RuntimeError, "CUDA error: here is a wrong gpu")
            elif not self.training:
                fail("validation", TypeError, "here is a wrong validation")
            lost = torch.is_grad_enabled() and HERE and WRONG == "loss"
            return super().forward(x.flatten(1)) * (float("nan") if lost else 1)

    def model(config):
        fail("model", KeyError, "here is a wrong model")
        return Model(16, 2)
"""
FLAGS = ("--dataset", "errors_own:data", "--model", "errors_own:model", "--workers", "0", "--batch-size", "8")
ERRORS = [
    *("detect", "device", "user", "folder", "exit", "model"),
    *("sample", "step", "memory", "gpu", "loss", "validation"),
]
LAUNCHERS = ("srun", "spawn", "torchrun")
EARLY_ERRORS = ERRORS[:2]
# Before the processes meet, what comes of an error depends on all three. Later ones: each two of the three meet. Of errors
# that differ from others in their class alone, each has one launcher.
ALIKE = {"folder": "srun", "memory": "spawn", "gpu": "torchrun"}
TRIED = [
    (wrong, launcher, rank)
    for number, wrong in enumerate(ERRORS[2:])
    for other, launcher in enumerate(LAUNCHERS)
    for rank in (0, 1)
    if (number + other + rank) % 2 and ALIKE.get(wrong, launcher) == launcher
]
# `make test` tries each error once, by turns with each launcher and each rank; the proofs try the rest.
OF_ERROR = {wrong: [each for each in TRIED if each[0] == wrong] for wrong in ERRORS[2:]}
SOON = {cases[number % len(cases)] for number, cases in enumerate(OF_ERROR.values())}
CASES = [pytest.param(*case, marks=() if case in SOON else pytest.mark.proof) for case in TRIED]


@pytest.mark.proof
@pytest.mark.parametrize(
    "launcher", ["torchrun", *(pytest.param(each, marks=pytest.mark.proof) for each in LAUNCHERS[:2])]
)
def test_an_error_of_one_rank_before_the_processes_meet(
    trainers: Trainers, tmp_path: Path, launcher: str
) -> None:
    """The other rank waits for a while, so the runs wait side by side."""
    cases = [(wrong, rank) for wrong in EARLY_ERRORS for rank in (0, 1)]
    started = [start(trainers, tmp_path / f"{wrong}-{rank}", wrong, launcher, rank) for wrong, rank in cases]
    for (wrong, rank), processes in zip(cases, started, strict=True):
        is_told(tmp_path / f"{wrong}-{rank}", processes, wrong, launcher, rank)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("wrong", "launcher", "rank"), CASES)
def test_an_error_of_one_rank(
    trainers: Trainers, tmp_path: Path, wrong: str, launcher: str, rank: int
) -> None:
    is_told(tmp_path, start(trainers, tmp_path, wrong, launcher, rank), wrong, launcher, rank)


def start(
    trainers: Trainers, folder: Path, wrong: str, launcher: str, rank: int
) -> list[subprocess.Popen[str]]:
    """A training of two ranks, of which one has an error."""
    folder.mkdir(exist_ok=True)
    (folder / "errors_own.py").write_text(textwrap.dedent(OWN))
    quick = (QUICKLY / "sitecustomize.py").read_text()
    (folder / "sitecustomize.py").write_text(f"{quick}\n{textwrap.dedent(EARLY)}")
    env = {"PYTHONPATH": str(folder), "WRONG": f"{rank}:{wrong}", "ROOT": str(ROOT)}
    met = wrong not in EARLY_ERRORS  # then the other rank waits for none that has ended
    flags = (*FLAGS, "--dist-timeout", "90" if met else "9", "--sync-every", "1", "--epochs", "1")
    run_dir = folder / "run"
    if launcher == "srun":
        return tasks(trainers, (run_dir, run_dir), *flags, env=env)
    if launcher == "spawn":
        return [trainers.start(run_dir, *flags, *SPAWN_2, env=env)]
    return [trainers.start(run_dir, *flags, launcher=TORCHRUN_2, env=env)]


def is_told(
    folder: Path, processes: list[subprocess.Popen[str]], wrong: str, launcher: str, rank: int
) -> None:
    """Its error is one line that names its rank, and the reason in status.json."""
    ended = [*map(finish, processes)]
    assert len({process.code for process in ended}) == 1, ended  # as srun's tasks end alike
    said = "".join(process.err for process in ended)
    what = "the loss is not finite at step 1" if wrong == "loss" else f"here is a wrong {wrong}"
    lines = [line for line in said.splitlines() if line.startswith("error: ") and what in line]
    place = f"rank {rank} of 2 on {os.environ.get('SLURMD_NODENAME') or socket.gethostname()}"
    assert ended[0].code != 0
    assert len(lines) == 1, said
    assert place in lines[0]
    state = status(folder / "run")
    assert state["state"] == "failed"
    reason = state["reason"]
    if (wrong, launcher) == ("detect", "srun"):  # the two have not met, and may give up in either order
        assert place in reason or "the 2 processes did not meet" in reason
    else:
        assert what in reason
        assert place in reason
