"""Losses and metrics of the user's own, in the same loop as classification."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from training.data.splits import as_target

from .states import equal, weights
from .trainers import ROOT, Here, Trainers, events

OWN = """
    import torch
    from torch import nn

    class Pairs:
        def __init__(self, targets):
            self.targets = targets

        def __len__(self):
            return len(self.targets)

        def __getitem__(self, index):
            return torch.full((1, 4, 4), float(index)), self.targets[index]

    def numbers(config):
        return Pairs([0.5, 1.5, 2.5, 3.5]), Pairs([0.5, 1.5])

    def uneven(config):
        return Pairs([torch.zeros(2), torch.zeros(2), torch.zeros(3), torch.zeros(2)]), Pairs([torch.zeros(2)])

    def model(config):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Flatten(0))

    def error(output, target):
        return (output - target.reshape(len(target), -1)[:, 0]).abs()

    def low(output, target):
        return {"negative_error": -100 * error(output, target) - 7}

    def task(config):
        return error, low

    def one_loss(config):
        return (lambda output, target: error(output, target).mean()), low

    def no_metric(config):
        return error, lambda output, target: {}

    def broken(config):
        return (lambda output, target: output["out"]), low
"""
FLAGS = ("--optimizer", "sgd", "--batch-size", "2", "--workers", "0", "--model", "tasks_own:model")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import textwrap

    (tmp_path / "tasks_own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.proof
@pytest.mark.usefixtures("own")
def test_a_run_with_numbers_as_targets(here: Here, tmp_path: Path) -> None:
    """The best metric is below -1, and the epochs have it under its name."""
    flags = (*FLAGS, "--dataset", "tasks_own:numbers", "--task", "tasks_own:task")
    ended = here(tmp_path / "run", *flags)
    assert ended.code == 0, ended.err
    epoch = events(tmp_path / "run", "epoch")[0]
    assert epoch["negative_error"] == pytest.approx(-100 * epoch["loss"] - 7, rel=1e-5)
    assert f"best negative_error {epoch['negative_error']:.4g}" in ended.out
    assert (tmp_path / "run" / "checkpoints" / "best.pt").is_file()
    assert events(tmp_path / "run", "save")[-1]["best"]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("dataset", "task", "message"),
    [
        ("numbers", "one_loss", "the loss is () for 2 images; fix: a value for each image"),
        ("numbers", "no_metric", "has no metric"),
        ("numbers", "broken", "cannot take the model's output"),
        ("uneven", "task", "the target of sample 2 has the shape (3,), the first one (2,)"),
    ],
)
def test_tasks_that_are_wrong_are_one_line(
    here: Here, tmp_path: Path, dataset: str, task: str, message: str
) -> None:
    ended = here(tmp_path / "run", *FLAGS, "--dataset", f"tasks_own:{dataset}", "--task", f"tasks_own:{task}")
    assert ended.code == 1
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_numbers_become_float32() -> None:
    assert (as_target(0.5).dtype, as_target(3).dtype) == (torch.float32, torch.int64)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "metric", "least"), [("regression", "within_0.02", 0.7), ("segmentation", "iou", 0.9)]
)
def test_the_example_learns_and_resumes_exactly(
    trainers: Trainers, tmp_path: Path, name: str, metric: str, least: float
) -> None:
    for file in (f"{name}.py", "own.py"):
        shutil.copy(ROOT / "examples" / file, tmp_path)
    flags = [
        f"--{part}={name}:{function}"
        for part, function in (("dataset", "data"), ("model", "model"), ("task", "task"))
    ]
    flags += ["--optimizer", "adamw", "--epochs"]
    env = {"PYTHONPATH": str(tmp_path)}
    for run, epochs in (("whole", 3), ("parted", 1), ("parted", 3)):
        ended = trainers.run(tmp_path / run, *flags, str(epochs), env=env)
        assert ended.code == 0, ended.err
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "parted"))
    assert events(tmp_path / "whole", "epoch")[-1][metric] >= least
