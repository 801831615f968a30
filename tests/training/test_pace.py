"""A slow rank is named; one that saves, validates or is late once is not."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from training.run import pace
from training.run.pace import Pace

from .trainers import Trainers, events

OWN = """
    import os, time
    import torch

    WHERE, _, HOW_S = os.environ["SLOW"].partition(":")
    HERE = os.environ["SLURM_PROCID"] == os.environ["BAD"]

    class Own(torch.utils.data.Dataset):
        classes = ("a", "b")

        def __init__(self, samples):
            self.samples = samples

        def __len__(self):
            return self.samples

        def __getitem__(self, index):
            time.sleep(float(HOW_S) if HERE and WHERE == "data" else 0.002)
            return torch.ones(1, 4, 4), index % 2

    class Model(torch.nn.Linear):
        def forward(self, x):
            time.sleep(float(HOW_S) if HERE and WHERE == "model" else 0.02)
            return super().forward(x.flatten(1))

    def data(config):
        return Own(3 * 40), Own(3)

    def model(config):
        return Model(16, 2)
"""
FLAGS = (
    "--dataset",
    "own:data",
    "--model",
    "own:model",
    "--workers",
    "0",
    "--batch-size",
    "3",
    "--epochs",
    "1",
)


def train(
    trainers: Trainers, folder: Path, slow: str, bad: int, *flags: str
) -> tuple[str, list[dict[str, Any]]]:
    """What three ranks print, and their events of steps."""
    (folder / "own.py").write_text(textwrap.dedent(OWN))
    env = {"PYTHONPATH": str(folder), "SLOW": slow, "BAD": str(bad), "SLURMD_NODENAME": "n7"}
    ended = trainers.run_ranks(
        3, folder / "run", *FLAGS, "--sync-every", "5", "--log-every", "5", *flags, env=env
    )
    assert ended.code == 0, ended.err
    return ended.out, events(folder / "run", "train")


@pytest.mark.proof
@pytest.mark.parametrize(
    ("slow", "what"), [("data:0.2", "data wait of 0.2"), ("model:0.2", "forward pass of 0.2")]
)
def test_a_slow_rank_is_named_in_the_log_and_in_events(
    trainers: Trainers, tmp_path: Path, slow: str, what: str
) -> None:
    out, steps = train(trainers, tmp_path, slow, 1)
    assert out.count("Slow: ") == 1
    assert f"Slow: rank 1 on n7: {what}" in out
    assert "slow" not in steps[1]  # after ten steps
    assert steps[-1]["slow"].startswith(f"rank 1 on n7: {what}")


def test_no_rank_of_a_healthy_run_is_named(trainers: Trainers, tmp_path: Path) -> None:
    out, steps = train(trainers, tmp_path, "no:0", 1, "--epochs", "2", "--save-every", "15")
    assert "Slow: " not in out
    assert len(steps) > 10
    assert not [event for event in steps if "slow" in event]


def judged(*rounds: list[float], steps: int = 7, part_s: float = 0.3) -> list[str]:
    """What is said after each round, of the forward passes of all ranks."""
    made = Pace([f"n{rank}" for rank in range(len(rounds[0]))], 0, on_gpu=False)
    said = []
    for each in rounds:
        for _ in range(3 * steps):
            made.mark()
        made.take_times(saves=False, is_saving=False)
        made.judge([value for passes in each for value in (0.0, passes)], part_s)
        said.append(made.slow_ranks)
    return said


SLOW, EVEN = [0.1, 0.1, 0.2, 0.1], [0.1] * 4
NAMED = "rank 2 on n2: forward pass of 0.2 s, median of the ranks 0.1 s"


@pytest.mark.parametrize(
    ("rounds", "last"),
    [
        ([SLOW] * 3, NAMED),
        ([SLOW] * 2, ""),  # 14 steps
        ([SLOW, SLOW, EVEN, SLOW, SLOW], ""),
        ([SLOW] * 3 + [EVEN] * 2, NAMED),
        ([SLOW] * 3 + [EVEN] * 3, ""),
        ([[0.1, 0.1, 0.14, 0.1]] * 9, ""),  # not 1.5 times
        ([[0.01, 0.01, 0.03, 0.01]] * 9, ""),  # others lose a fifteenth of a step
        ([[0.1, 0.2]] * 3, "rank 1 on n1: forward pass of 0.2 s, median of the ranks 0.1 s"),
        ([[0.0, 0.1, 0.2, 0.1]] * 9, ""),  # rank 0 saves
        ([[0.2]] * 9, ""),
    ],
)
def test_it_takes_twenty_steps(rounds: list[list[float]], last: str) -> None:
    assert judged(*rounds)[-1] == last


def test_steps_after_a_synchronisation_that_is_far_away_count_little() -> None:
    """A single pause of a second would else be twenty slow steps."""
    assert judged(SLOW, SLOW, steps=500) == ["", ""]
    assert judged(SLOW, SLOW, SLOW, steps=500)[-1] == NAMED


def test_a_rank_that_waits_for_data_is_not_slow_if_others_lose_little() -> None:
    for rounds, says in ((0.1, ""), (0.2, "rank 1 on b: data wait of 0.2 s, median of the ranks 0 s")):
        made = Pace(["a", "b", "c"], 0, on_gpu=False)
        for _ in range(3):
            made._timed_parts = 7
            made.judge([0.0, 0.05, rounds, 0.05, 0.0, 0.05], 0.4)
        assert made.slow_ranks == says


def test_a_rank_tells_nothing_of_steps_while_it_saves() -> None:
    made = Pace(["a", "b"], 1, on_gpu=False)

    def spent(*, saves: bool = False, is_saving: bool = False) -> bool:
        for _ in range(3):
            made.mark()
        return any(made.take_times(saves=saves, is_saving=is_saving))

    assert spent(saves=True)  # the next ones
    assert not spent()
    assert not spent(is_saving=True)
    assert spent()


class Event:
    """A GPU's: each is a millisecond after the one before."""

    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        Event.made += 1
        self.time_ms = 0

    def record(self) -> None:
        self.time_ms = Event.made

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return end.time_ms - self.time_ms


def test_the_times_of_a_gpu_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    made = Pace(["a", "b"], 1, on_gpu=True)
    for _ in range(3 * pace.MAX_TIMED_PARTS + 3):
        made.mark()
    assert made.take_times(saves=False, is_saving=False) == pytest.approx([0, 0, 0.001, 0.001])
    assert Event.made == 3 * pace.MAX_TIMED_PARTS
