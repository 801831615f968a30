"""The benchmark of the training package: its arithmetic, its table, and that it starts. Nothing is timed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.speed.figures import Figure, UnmeasurableError, in_rounds, table
from benchmarks.speed.mnist import accuracy, valid_rounds
from benchmarks.speed.resume import compared
from benchmarks.speed.runs import Run

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "training.py"


def test_help_names_what_is_measured() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True)
    assert "--examples" in done.stdout


@pytest.mark.parametrize("flags", [("--only", "C1,C99"), ("--rounds", "0"), ("--threads", "0")])
def test_what_makes_no_sense_is_refused(flags: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: " in done.stderr


@pytest.mark.proof
@pytest.mark.slow
def test_without_the_examples_it_says_what_it_left_out(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), "--quick", "--only", "C3", "--scratch", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 2, done.stderr
    assert done.stdout.count("left out: needs --examples DIR") == 3
    assert not list(tmp_path.iterdir())


def test_the_rate_leaves_out_the_warm_up() -> None:
    run = Run([9.0, 10.0, 10.5, 11.0, 11.5], "")

    assert run.rate(64, skip=2, last=5) == 64 * 3 / 1.5
    with pytest.raises(UnmeasurableError, match="5 steps of 6"):
        run.rate(64, skip=2, last=6)


def test_a_ratio_is_of_one_round() -> None:
    """The second round was three times as slow for both."""
    figure = Figure("x", "s", 1.2, higher=False, ours=[2.0, 6.0, 2.0], theirs=[1.0, 3.0, 2.0])

    assert figure.ratios == [2.0, 2.0, 1.0]
    assert figure.verdict == "MISS"


@pytest.mark.parametrize(
    ("higher", "ours", "verdict"),
    [(True, 1.1, "PASS"), (True, 1.0, "MISS"), (False, 1.1, "PASS"), (False, 1.2, "MISS")],
)
def test_the_target_is_a_bound(*, higher: bool, ours: float, verdict: str) -> None:
    assert Figure("x", "s", 1.1, higher=higher, ours=[ours], theirs=[1.0]).verdict == verdict


def test_every_other_round_is_backwards() -> None:
    asked: list[str] = []

    def contender(name: str) -> Callable[[int], str]:
        def ask(number: int) -> str:
            asked.append(f"{name}{number}")
            return asked[-1]

        return ask

    rounds = list(in_rounds(2, {name: contender(name) for name in "ab"}))

    assert asked == ["a0", "b0", "b1", "a1"]
    assert rounds == [{"a": "a0", "b": "b0"}, {"a": "a1", "b": "b1"}]


@pytest.mark.parametrize(
    ("output", "percent"),
    [
        (
            "Test set: Average loss: 0.2, Accuracy: 1/4 (25%)\nTest set: Average loss: 0.1, Accuracy: 3/4 (75%)",
            75,
        ),
        ("Epoch 1 - Avg Loss: 0.123456, Accuracy: 97.25%, 1800 samples/s", 97.25),
    ],
)
def test_accuracies_are_read(output: str, percent: float) -> None:
    assert accuracy(output) == percent
    with pytest.raises(UnmeasurableError):
        accuracy("nothing")


def test_a_run_that_learned_less_does_not_count() -> None:
    def run(percent: float) -> Run:
        return Run([], f"Accuracy: {percent}%")

    runs = [{"theirs": run(96), "fp32": run(ours)} for ours in (93.9, 94.0, 97)]

    assert valid_rounds(runs, "fp32") == runs[1:]


def test_values_are_compared_to_the_bit(tmp_path: Path) -> None:
    value = {"model": {"w": torch.ones(2), "b": torch.zeros(1)}, "sums": [1.0, 2.0], "step": 3}
    other = value | {"model": {"w": torch.ones(2) + torch.finfo().eps, "b": torch.zeros(1)}, "more": 1}
    for name, state in (("a.pt", value), ("b.pt", other)):
        torch.save(state, tmp_path / name)

    assert compared(tmp_path / "a.pt", tmp_path / "a.pt") == (5, 5)
    assert compared(tmp_path / "a.pt", tmp_path / "b.pt") == (4, 6)


def test_the_table_shows_what_was_measured_and_what_was_not() -> None:
    figures = [
        Figure("fast", "images/s", 1.1, higher=True, ours=[1200.0, 1500.0], theirs=[1000.0, 1000.0]),
        Figure("none", "s", 1.0, higher=False, left_out="no reason"),
    ]
    lines = list(table(figures))

    assert lines[1].split("  ")[0] == "fast"
    assert "1350 (1200..1500)" in lines[1]
    assert "1.35 (1.20..1.50)" in lines[1]
    assert lines[1].endswith(">= 1.1  PASS")
    assert lines[2] == "none: left out: no reason"
