"""The points of a sweep by a metric."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sbatchgen.errors import CommandLineError
from sbatchgen.resolved.sweep import Sweep
from sbatchgen.runs.index import Index, Run, place
from sbatchgen.runs.overview import page
from sbatchgen.runs.points import SweepState, sweep_state
from sbatchgen.runs.status import RunState
from tests.conftest import Command

# What the last line of each point's events says; the third has none.
LAST = ({"f1": 0.7, "loss": 0.3}, {"f1": 0.9, "loss": 0.5}, None, {"f1": 0.8, "val_loss": 0.2, "loss": 0.4})
SWEEP = Sweep(("lr", "opt"), (("0.1", "sgd"), ("1e-3", "sgd"), ("0.01", "adam"), ("1", "adam")))


@pytest.fixture
def state(tmp_path: Path) -> SweepState:
    """Four points, three of which have been validated."""
    for number, fields in enumerate(LAST):
        point = tmp_path / str(number)
        point.mkdir()
        lines = [{"event": "train", "loss": 9, "grad_norm": 1.5, "step": 3, "time": 1.0}]
        lines += [{"event": "epoch", "epoch": 1} | fields] if fields else []
        if fields:
            (point / "status.json").write_text('{"state": "done"}')
            (point / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return sweep_state(SWEEP, tmp_path, [], [])


@pytest.fixture
def run(state: SweepState, tmp_path: Path) -> RunState:
    """The run of the four points."""
    return RunState(run=Run("lr", tmp_path, shared=False, created=0.0), jobs=(), sweep=state)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("f1", [1, 3, 0]),  # more is better
        ("loss", [0, 3, 1]),  # less is better; the validation's, not that of the training
        ("val_loss", [3]),
        ("lr", [1, 2, 0, 3]),  # a parameter: the lowest first
    ],
)
def test_the_best_point_is_the_first(state: SweepState, name: str, order: list[int]) -> None:
    assert [point.number for point in state.sorted_by(name)] == order
    assert [point.number for point in state.sorted_by(name, reverse=True)] == order[::-1]


def test_the_table_has_a_column_of_the_metric_and_all_points(state: SweepState, run: RunState) -> None:
    rows = [line.split() for line in page(run, [], [], sort="f1").splitlines()]
    at = rows.index(["POINT", "lr", "opt", "f1", "STATE", "TRAINING"])
    assert [row[:4] for row in rows[at + 1 :]] == [
        ["1", "1e-3", "sgd", "0.9"], ["3", "1", "adam", "0.8"], ["0", "0.1", "sgd", "0.7"], ["2", "0.01", "adam", "not"],
    ]  # fmt: skip


def test_an_unknown_metric_is_answered_with_the_known_ones(state: SweepState) -> None:
    with pytest.raises(CommandLineError, match="no point of this sweep has a number 'f2'") as error:
        state.sorted_by("f2")
    assert error.value.problems[0].fix == "choose one of lr, opt, f1, grad_norm, loss, val_loss"


@pytest.mark.parametrize("words", [("--sort", "loss"), ("x", "--reverse"), ("x", "y", "--sort", "loss")])
def test_sorting_needs_one_run(command: Command, words: tuple[str, ...]) -> None:
    done = command("status", *words)
    assert done.status == 2
    assert "--sort METRIC and --reverse are about the table of one sweep" in done.err


def test_a_run_that_is_no_sweep_has_nothing_to_sort(command: Command, folder: Path) -> None:
    Index(place(os.environ)).begin("c0ffee", folder, "plain", shared=False)
    done = command("status", "plain", "--sort", "loss")
    assert done.status == 2
    assert "run plain is not a sweep\n  at:  --sort\n  fix: leave it out" in done.err
