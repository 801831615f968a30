"""Each error of one rank, the first or the last, under each launcher: a line that names it, and a true status.json."""

from __future__ import annotations

import os
import socket
import textwrap
from pathlib import Path

import pytest

from .forks import QUICKLY
from .trainers import ROOT, SPAWN_2, TORCHRUN_2, Trainers, status

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
# Before the processes meet, what comes of an error depends on all three. Later ones: each two of the three meet.
TRIED = [
    (wrong, launcher, rank)
    for number, wrong in enumerate(ERRORS)
    for other, launcher in enumerate(LAUNCHERS)
    for rank in (0, 1)
    if wrong in {"detect", "device"} or (number + other + rank) % 2
]


@pytest.mark.parametrize(("wrong", "launcher", "rank"), TRIED)
def test_an_error_of_one_rank(
    trainers: Trainers, tmp_path: Path, wrong: str, launcher: str, rank: int
) -> None:
    (tmp_path / "errors_own.py").write_text(textwrap.dedent(OWN))
    started = (QUICKLY / "sitecustomize.py").read_text()
    (tmp_path / "sitecustomize.py").write_text(f"{started}\n{textwrap.dedent(EARLY)}")
    env = {"PYTHONPATH": str(tmp_path), "WRONG": f"{rank}:{wrong}", "ROOT": str(ROOT)}
    met = wrong not in {"detect", "device"}  # then the other rank waits for none that has ended
    flags = (*FLAGS, "--dist-timeout", "90" if met else "9", "--sync-every", "1", "--epochs", "1")
    run_dir = tmp_path / "run"
    if launcher == "srun":
        ended = trainers.run_ranks(2, run_dir, *flags, env=env)
    elif launcher == "spawn":
        ended = trainers.run(run_dir, *flags, *SPAWN_2, env=env)
    else:
        ended = trainers.run(run_dir, *flags, launcher=TORCHRUN_2, env=env)

    what = "the loss is not finite at step 1" if wrong == "loss" else f"here is a wrong {wrong}"
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ") and what in line]
    place = f"rank {rank} of 2 on {os.environ.get('SLURMD_NODENAME') or socket.gethostname()}"
    assert ended.code != 0
    assert len(lines) == 1, ended.err
    assert place in lines[0]
    assert status(run_dir)["state"] == "failed"
    reason = status(run_dir)["reason"]
    if (wrong, launcher) == ("detect", "srun"):  # the two have not met, and may give up in either order
        assert place in reason or "the 2 processes did not meet" in reason
    else:
        assert what in reason
        assert place in reason
