"""Pictures of runs: what is drawn of what a run folder tells, and what is said where there is nothing.

Tests that draw load matplotlib, which takes seconds: they are slow.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.machine.packages import to_install
from sbatchgen.jobs.runs.plot import read_history
from tests.conftest import Command

CONFIG = {"dataset": "mnist", "model": "convnet", "global_batch_size": 64, "lr": 0.1, "processes": 2}


def start(step: int) -> dict[str, Any]:
    return {"event": "start", "step": step, "epoch": step // 4}


def train(step: int, loss: float = 0.5) -> dict[str, Any]:
    facts = {"loss": loss, "accuracy": 0.75, "lr": 0.1, "samples_per_s": 1000.0 + step}
    return {"event": "train", "epoch": 1, "step": step, **facts}


def epoch(step: int, loss: float = 0.4) -> dict[str, Any]:
    return {
        "event": "epoch",
        "epoch": step // 4,
        "step": step,
        "loss": loss,
        "accuracy": 0.875,
        "samples": 10,
    }


def run(folder: Path, *events: dict[str, Any], end: str = "", state: str = "running", **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + end)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "status.json").write_text(json.dumps({"state": state, "step": 8}))
    return folder


def shown(svg: Path) -> list[str]:
    """The texts in a picture: matplotlib draws them as paths, each below a comment with its words."""
    return re.findall(r"<!-- (.*?) -->", svg.read_text())


ORDINARY = (start(0), train(2), train(4), epoch(4), train(6), epoch(8))


@pytest.mark.slow
def test_one_run_is_drawn_into_its_folder(command: Command, folder: Path) -> None:
    """Not to where somebody has planted a link."""
    picture = run(folder / "runs/ddp", *ORDINARY) / "plot.png"
    (folder / "victim").write_text("mine")
    picture.symlink_to(folder / "victim")
    result = command("plot", "runs/ddp")

    assert (result.status, result.out, result.err) == (0, "runs/ddp/plot.png\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert not picture.is_symlink()
    assert (folder / "victim").read_text() == "mine"


@pytest.mark.slow
def test_what_a_picture_says(command: Command, folder: Path) -> None:
    run(folder / "ddp", *ORDINARY, start(6), train(8), {"event": "preempted", "step": 8})
    assert command("plot", "ddp", "--output", "one.svg").out == "one.svg\n"
    words = shown(Path("one.svg"))

    for word in ("Step", "Loss", "Accuracy (%)", "Throughput (samples/s)"):
        assert words.count(word) == 1
    assert "ddp: mnist, convnet, batch 64, lr 0.1, 2 processes" in words
    assert words[-5:] == [
        "ddp: mnist, convnet, batch 64, lr 0.1, 2 processes",
        "training",
        "validation",
        "restart",
        "stopped",
    ]


@pytest.mark.proof
@pytest.mark.slow
def test_several_runs_have_a_colour_and_a_name_each(command: Command, folder: Path) -> None:
    names = ["a", "b$x$_y", "_c", "d", "e"]
    for i, name in enumerate(names):
        run(folder / name, *ORDINARY, lr=0.1 * 2**i)
    result = command("plot", *names)
    assert (result.status, result.out) == (0, "plot.png\n")
    assert command("plot", *names, "--output", "all.svg").status == 0
    words, text = shown(Path("all.svg")), Path("all.svg").read_text()

    assert [word for word in words if "(lr" in word] == [
        "a (lr 0.1)",
        "b$x$_y (lr 0.2)",
        " _c (lr 0.4)",
        "d (lr 0.8)",
        "e (lr 1.6)",
    ]
    assert "mnist, convnet, batch 64, 2 processes" in words
    assert "restart" not in words
    for color in ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#000000"):
        assert f"stroke: {color}" in text


@pytest.mark.slow
def test_runs_of_one_name_are_told_apart_by_their_folders(command: Command, folder: Path) -> None:
    for part in ("x", "y"):
        run(folder / part / "ddp", *ORDINARY)
    command("plot", "x/ddp", "y/ddp", "--output", "two.svg")

    assert {"x/ddp", "y/ddp"} <= set(shown(Path("two.svg")))


@pytest.mark.proof
@pytest.mark.slow
def test_the_same_runs_are_the_same_bytes_whatever_the_user_has_set(folder: Path) -> None:
    run(folder / "ddp", *ORDINARY)
    (folder / "mine").mkdir()
    (folder / "mine" / "matplotlibrc").write_text("font.size: 30\nlines.color: red\naxes.grid: False\n")
    os.mkfifo("matplotlibrc")  # of the current folder: up to 3.10 matplotlib evaluates it as Python
    pictures: dict[str, set[bytes]] = {"png": set(), "svg": set()}
    for settings in ({}, {"MPLCONFIGDIR": str(folder / "mine"), "MPLBACKEND": "TkAgg", "DISPLAY": ""}):
        for suffix, contents in pictures.items():
            output = str(folder / f"plot.{suffix}")
            command = [sys.executable, "-m", "sbatchgen", "plot", "ddp", "--output", output]
            subprocess.run(command, env=os.environ | settings, check=True, capture_output=True)
            contents.add(Path(output).read_bytes())

    assert [len(contents) for contents in pictures.values()] == [1, 1]


def test_what_was_trained_again_counts_once(tmp_path: Path) -> None:
    crashed = (start(0), train(2, 0.9), train(4, 0.8), epoch(4), train(6, 0.7), train(8, 0.6), epoch(8))
    again = (start(5), train(6, 0.71), train(8, 0.61), epoch(8, 0.41))
    history = read_history(run(tmp_path / "a", *crashed, *again))

    assert history.curves["train loss"] == [(2, 0.9), (4, 0.8), (6, 0.71), (8, 0.61)]
    assert history.curves["epoch loss"] == [(4, 0.4), (8, 0.41)]
    assert (history.restarts, history.last_step, history.end) == ([5], 8, "")

    back = read_history(run(tmp_path / "b", *crashed, *again, start(3), train(4, 0.81)))
    assert back.curves["train loss"] == [(2, 0.9), (4, 0.81)]
    assert (back.restarts, back.last_step) == ([3], 4)

    afresh = read_history(run(tmp_path / "c", *crashed, start(0), train(2, 0.5)))
    assert {name: points for name, points in afresh.curves.items() if points} == {
        "train loss": [(2, 0.5)],
        "train accuracy": [(2, 0.75)],
        "train samples_per_s": [(2, 1002.0)],
    }
    assert afresh.restarts == []


@pytest.mark.parametrize(
    ("events", "state", "end"),
    [
        ((start(0), train(2)), "running", ""),
        ((start(0), train(2), {"event": "preempted", "step": 3}), "preempted", "stopped"),
        ((start(0), train(2), {"event": "preempted", "step": 3}, start(3)), "running", ""),
        ((start(0), train(2)), "failed", "failed"),
        ((start(0), train(2), {"event": "done", "step": 4}), "done", "done"),
    ],
)
def test_how_a_run_ended(tmp_path: Path, events: tuple[dict[str, Any], ...], state: str, end: str) -> None:
    assert read_history(run(tmp_path / "a", *events, state=state)).end == end


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        '{"event": "train", "st',
        '\x00\x00\x00\n[1]\n{"event": "train"}\n{"event": "train", "step": "6"}\n{"step": 9}\n',
        "\n",
    ],
)
def test_what_is_no_event_is_passed_over(command: Command, folder: Path, end: str) -> None:
    run(folder / "ddp", *ORDINARY, end=end)
    (folder / "ddp/config.json").write_text("{")
    (folder / "ddp/status.json").unlink()

    assert read_history(folder / "ddp").curves["train loss"] == [(2, 0.5), (4, 0.5), (6, 0.5)]
    assert command("plot", "ddp", "--output", "one.svg").err == ""
    assert "ddp" in shown(Path("one.svg"))


def test_a_number_that_is_none_is_left_out(tmp_path: Path) -> None:
    bad = train(6) | {"loss": float("nan"), "accuracy": None}
    curves = read_history(run(tmp_path / "a", *ORDINARY, bad)).curves

    assert [step for step, _ in curves["train loss"]] == [2, 4, 6]
    assert [step for step, _ in curves["train samples_per_s"]] == [2, 4, 6, 6]


@pytest.mark.proof
@pytest.mark.slow
def test_a_loss_that_falls_far_is_on_a_logarithmic_scale(command: Command, folder: Path) -> None:
    run(folder / "a", start(0), train(1, 100.0), train(2, 1.0))
    run(folder / "b", start(0), train(1, 4.0), train(2, 1.0))
    command("plot", "a", "--output", "a.svg")
    command("plot", "b", "--output", "b.svg")

    assert any("mathdefault{10^" in word for word in shown(Path("a.svg")))
    assert not any("mathdefault{10^" in word for word in shown(Path("b.svg")))


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (
            ("nowhere",),
            2,
            "error: there is no run 'nowhere'\n",
        ),
        (
            ("empty",),
            3,
            "error: can't read the events of the run: No such file or directory\n  at:  empty/events.jsonl\n",
        ),
        (("early",), 3, "error: nothing was measured in this run so far\n  at:  early/events.jsonl\n"),
        (
            ("good", "--output", "a.gif"),
            2,
            "error: can't draw a '.gif'\n  at:  --output\n  fix: name a .png or a .svg\n",
        ),
        pytest.param(
            ("good", "--output", "no/a.png"),
            3,
            "No such file or directory\n  fix: mkdir -p no\n",
            marks=pytest.mark.slow,
        ),
        ((), 2, "missing argument RUN..."),
    ],
)
def test_what_cannot_be_drawn_is_said(
    command: Command, folder: Path, args: tuple[str, ...], status: int, message: str
) -> None:
    (folder / "empty").mkdir()
    run(folder / "early", start(0))
    run(folder / "good", *ORDINARY)
    result = command("plot", *args)

    assert (result.status, result.out) == (status, "")
    assert message in result.err


def test_without_matplotlib_curves_are_drawn_with_characters(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder / "a", start(0), train(2, 2.0), train(6, 1.0), epoch(8, 1.5))
    run(folder / "b", start(0), train(4, 1.5), lr=0.2)
    drawn = command("plot", "a", "b", "--text")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    without = command("plot", "a", "b")

    assert (drawn.status, drawn.err, without.out) == (0, "", drawn.out)
    assert without.err == f"note: a picture needs matplotlib: {to_install('matplotlib')}\n"
    loss = drawn.out.split("\n\n")[0].splitlines()
    marks = [
        (mark, row, column)
        for row, line in enumerate(loss)
        for column, mark in enumerate(line)
        if mark in "abA"
    ]
    assert [mark for mark, *_ in sorted(marks, key=lambda mark: mark[2])] == ["a", "b", "a", "A"]
    assert {mark: row for mark, row, _ in marks if mark == "a"} == {"a": 12}, loss
    assert (loss[1].split()[0], loss[12].split()[0], loss[13].split()[-2:]) == ("2", "1", ["8", "steps"])
    assert drawn.out.endswith("a a (lr 0.1), b b (lr 0.2); capital letters: validation\n")


def test_without_matplotlib_one_error_says_what_to_install(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder / "ddp", *ORDINARY)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = command("plot", "ddp", "--output", "ddp/plot.png")

    assert result.status == 3
    assert result.err.startswith("error: plot needs matplotlib (")
    assert result.err.endswith(f"  fix: {to_install('matplotlib')}\n")
    assert not (folder / "ddp/plot.png").exists()
