"""The points of a sweep by a metric."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.base.errors import CommandLineError, DocumentError
from sbatchgen.jobs.resolved.sweep import Sweep
from sbatchgen.jobs.runs.index import Index, Run, index_file
from sbatchgen.jobs.runs.overview import page
from sbatchgen.jobs.runs.points import POINTS_FILE, Point, SweepState, read_sweep, sweep_state
from sbatchgen.jobs.runs.progress import Progress
from sbatchgen.jobs.runs.record import Record, records, write_accepted
from sbatchgen.jobs.runs.status import RunState
from tests.conftest import Command
from tests.slurm import fakes

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
    return RunState(run=Run("lr", str(tmp_path), shared=False, created=0.0), jobs=(), sweep=state)


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


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("sentiment_accuracy", [1, 0]),
        ("timeliness", [1, 0]),
        ("interrupted/f1", [1, 0]),
        ("val_loss2", [0, 1]),
        ("test/RMSE", [0, 1]),
        ("step-time", [0, 1]),
        ("error_rate", [0, 1]),
    ],
)
def test_the_order_follows_from_whole_words_of_a_metric(tmp_path: Path, name: str, order: list[int]) -> None:
    points = tuple(
        Point(number, ("",), "done", progress=Progress(state="", metrics={name: value}))
        for number, value in enumerate((0.1, 0.9))
    )
    assert [point.number for point in SweepState(("lr",), points).sorted_by(name)] == order


def test_the_table_has_a_column_of_the_metric_and_all_points(state: SweepState, run: RunState) -> None:
    rows = [line.split() for line in page(run, [], [], sort="f1").splitlines()]
    at = rows.index(["POINT", "lr", "opt", "f1", "STATE", "TRAINING"])
    assert [row[:4] for row in rows[at + 1 :]] == [
        ["1", "1e-3", "sgd", "0.9"], ["3", "1", "adam", "0.8"], ["0", "0.1", "sgd", "0.7"], ["2", "0.01", "adam", "not"],
    ]  # fmt: skip


def test_an_unknown_metric_is_answered_with_the_known_ones(state: SweepState) -> None:
    with pytest.raises(CommandLineError, match="no point of this sweep has a value for 'f2'") as error:
        state.sorted_by("f2")
    assert error.value.problems[0].fix == "choose one of lr, opt, f1, grad_norm, loss, val_loss"


def test_a_file_of_points_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert read_sweep(tmp_path) is None
    (tmp_path / POINTS_FILE).symlink_to(tmp_path / POINTS_FILE)  # not readable, even for root
    with pytest.raises(DocumentError, match=r"can't read .*points\.csv"):
        read_sweep(tmp_path)


@pytest.mark.parametrize("words", [("--sort", "loss"), ("x", "--reverse"), ("x", "y", "--sort", "loss")])
def test_sorting_needs_one_run(command: Command, words: tuple[str, ...]) -> None:
    done = command("status", *words)
    assert done.status == 2
    assert "--sort METRIC and --reverse are about the table of one sweep" in done.err


def test_a_run_that_is_no_sweep_has_nothing_to_sort(command: Command, folder: Path) -> None:
    Index(index_file(os.environ)).begin("c0ffee", folder, "plain", shared=False)
    done = command("status", "plain", "--sort", "loss")
    assert done.status == 2
    assert "run plain is not a sweep\n  at:  --sort\n  fix: leave --sort out" in done.err


@pytest.fixture
def sweep(folder: Path, programs: Path) -> Path:
    """The folder of the sweep lr: point 0 is done, 1 has failed, 2 runs, 3 was not submitted."""
    run_dir = folder / "runs/lr"
    for point, status in (("0", "0"), ("1", "3"), ("2", "")):
        (run_dir / point).mkdir(parents=True)
        (run_dir / point / "events.jsonl").write_text('{"step": 7, "loss": 0.5}\n')
        (run_dir / f"lr-4711_{point}.out").write_text(f"point {point}\n")
        if status:
            (run_dir / point / "exit").write_text(status)
    (run_dir / POINTS_FILE).write_text("lr\n0.1\n0.2\n0.3\n0.4\n")
    about = Record(key="c0ffee", run="lr", shared=False, name="lr", job="4711", folder=str(folder))
    write_accepted(
        run_dir, replace(about, array="0-2", log=f"{run_dir}/lr-%A_%a.out", command=("sbatchgen", "sweep"))
    )
    index = Index(index_file(os.environ))
    index.begin("c0ffee", run_dir, "lr", shared=False)
    index.accept("c0ffee", "4711")
    states = {"4711_0": "COMPLETED", "4711_1": "FAILED", "4711_2": "RUNNING"}
    rows = [{"JobArrayID": task, "State": state, "NodeList": "n1"} for task, state in states.items()]
    fakes.squeue(programs, [row | {"exit_code": "768" * (row["State"] == "FAILED")} for row in rows])
    fakes.saying(programs, "scancel", "")
    return run_dir


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lr/0", "completed;"),
        ("lr/1", "failed: exit status 3;"),
        ("lr/2", "running "),
        ("runs/lr/2", "running "),
    ],
)
def test_a_point_has_a_page_and_a_log_as_a_run_has(
    sweep: Path, command: Command, name: str, says: str
) -> None:
    number = name[-1]
    shown = command("status", name).out.splitlines()
    assert shown[0] == f"lr/{number}"
    assert shown[1].split() == ["folder", str(sweep / number)]
    assert f"job 4711  {says}" in shown[2]
    assert "step 7, loss 0.5" in shown[3]
    assert shown[-1].split() == ["log", str(sweep / f"lr-4711_{number}.out")]
    assert command("logs", name).out == f"point {number}\n"
    assert command("report", name).out.startswith(f"lr/{number}: ")


def test_points_are_named_beside_runs_and_diagnosed(sweep: Path, command: Command) -> None:
    shown = command("status", "lr", "lr/2", "lr/1").out.splitlines()
    assert [line.split()[0] for line in shown] == ["RUN", "lr", "lr/2", "lr/1"]
    assert command("status", "lr/1").err == "note: sbatchgen diagnose lr/1 says why it failed\n"
    assert command("diagnose", "lr/1").out.startswith("lr: point 1 of job 4711 failed, exit status 3\n")
    assert command("diagnose", "lr/0").out == "lr: point 0 has not failed\n"


def test_the_log_of_a_point_stands_for_it(sweep: Path, command: Command) -> None:
    log = "runs/lr/lr-4711_1.out"
    assert command("logs", log).out == "point 1\n"
    assert command("diagnose", log).out == command("diagnose", "lr/1").out
    assert command("status", log).out == command("status", "lr/1").out


def test_a_point_is_cancelled_alone(sweep: Path, programs: Path, command: Command) -> None:
    (programs / "scancel").write_text('#!/bin/sh\necho "$@" >cancelled\n')
    assert command("cancel", "--yes", "lr/2").err == "note: cancelled job 4711_2 of run lr\n"
    assert Path("cancelled").read_text() == "4711_2\n"
    refused = command("cancel", "--yes", "lr/3")
    assert (refused.status, "has a task 3" in refused.err) == (2, True)


def test_without_an_answer_to_what_trains_nothing_is_cancelled(
    sweep: Path, programs: Path, command: Command
) -> None:
    (programs / "squeue").rename(programs / "squeue.once")
    once = f"#!/bin/sh\n[ ! -e asked ] && touch asked && exec '{programs}/squeue.once' \"$@\"\nexit 1\n"
    (programs / "squeue").write_text(once)
    (programs / "squeue").chmod(0o755)
    (programs / "scancel").write_text('#!/bin/sh\necho "$@" >cancelled\n')
    refused = command("cancel", "--yes", "lr/2")
    assert (refused.status, refused.err) == (5, "error: squeue ended with exit status 1\n")
    assert (Path("asked").exists(), Path("cancelled").exists()) == (True, False)
    Path("asked").unlink()
    assert command("cancel", "--yes", "--now", "lr/2").status == 0
    assert Path("cancelled").read_text() == "4711_2\n"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("words", "array"),
    [
        (("resume", "lr/1"), "1"),
        (("resubmit", "lr/1"), "1"),
        (("resume", "lr"), "1,3"),
        (("resubmit", "lr", "--failed"), "1"),
        (("resubmit", "lr", "--points", "0,3"), "0,3"),
    ],
)
def test_points_are_submitted_again(
    sweep: Path, programs: Path, command: Command, words: tuple[str, ...], array: str
) -> None:
    job = ("sbatchgen", "sweep", "single", "--profile", "troila", "--runtime", "host", "--job-name", "lr")
    (record,) = records(sweep)
    write_accepted(
        sweep, replace(record, command=(*job, "--run-dir", str(sweep), "--param", "lr=0.1,0.2,0.3,0.4"))
    )
    fakes.saying(programs, "sbatch", "4712")
    done = command(*words, "--yes")
    assert done.status == 0, done.err
    assert f"#SBATCH --array={array}\n" in (sweep / "job-4712.slurm").read_text()


def test_a_run_has_no_other_points(sweep: Path, command: Command) -> None:
    missing = command("status", "lr/4")
    assert missing.status == 2
    assert missing.err == "error: run lr has no point 4\n  fix: sbatchgen status lr shows the whole run\n"
    assert "there is no run 'missing'" in command("status", "missing/0").err
    Index(index_file(os.environ)).begin("ab12", sweep.parent / "plain", "plain", shared=False)
    for verb in ("status", "logs", "diagnose", "cancel", "plot", "resume", "resubmit"):
        said = command(verb, "plain/0")
        assert (said.status, said.err) == (
            2,
            "error: run plain is not a sweep or an array\n  fix: leave out /0\n",
        )


def test_of_what_sacct_says_a_point_has_its_own(sweep: Path, programs: Path, command: Command) -> None:
    fields = ["JobID", "ElapsedRaw", "TimelimitRaw", "NNodes", "AllocTRES", "NTasks", "MaxRSS", "TotalCPU"]
    runs = [[f"4711_{point}", str(60 * (1 + point)), "5", "1", "cpu=1", "", "", "0"] for point in range(3)]
    (sweep / "sacct.json").write_text(json.dumps({"fields": fields, "jobs": [], "runs": runs}))
    fakes.sacct(programs, sweep / "sacct.json")
    used = [json.loads(command("report", name, "--format", "json").out)["used_s"] for name in ("lr/1", "lr")]
    assert used == [120, 360]
