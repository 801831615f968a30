"""What a run folder holds about its submissions, its code and its training."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.errors import DocumentError
from sbatchgen.jobs.runs import run_folder
from sbatchgen.jobs.runs.index import scan
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.runs.record import (
    Code,
    Process,
    Record,
    ResolvedValue,
    code_in,
    read_record,
    read_submitting,
    records,
    write_accepted,
    write_submitting,
)

WHOLE = Record(
    key="ab12",
    run="ddp-2",
    shared=True,
    name="ddp",
    job="4711",
    cluster="alpha",
    submitted=1_795_338_625.5,
    folder="/home/ann/work",
    command=("sbatchgen", "render", "ddp"),
    log="/home/ann/work/runs/ddp/%x-%j.out",
    array="1-9%2",
    profile="msu",
    version="0.1.0",
    values=(ResolvedValue(name="--time", value="1:00:00", by="job", at="job.yaml:3"),),
    code=Code(folder="/home/ann/work", commit="c0ffee", dirty=True),
    process=Process(pid=7, born=9, host="vm", boot="x"),
)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_submitting(tmp_path, replace(WHOLE, job=""))
    assert read_submitting(tmp_path) == replace(WHOLE, job="")
    write_accepted(tmp_path, WHOLE)
    assert [file.name for file in tmp_path.iterdir()] == ["job-4711.json"]
    assert stat.S_IMODE((tmp_path / "job-4711.json").stat().st_mode) == 0o600
    assert read_record(tmp_path, "4711") == WHOLE
    least = Record(
        key="0c", run="r", shared=False, name="r", job="1", submitted=1.0, folder="/", version="0.1.0"
    )
    write_accepted(tmp_path, least)
    assert records(tmp_path) == [least, WHOLE]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"format": "1"}, {"key": 7}, {"submitted": "now"}, {"submitted": True}, {"shared": 1}, {"command": "x"},
        {"command": [1]}, {"code": []}, {"code": {"folder": 1}}, {"code": {}}, {"values": [{}]}, {"process": {"pid": 1.5}},
        {"run": "-x"}, {"run": "$(touch pwned)"}, {"run": "a b"}, {"array": "0-4294967295"}, {"first": -1}, {"first": 10**9},
    ],
)  # fmt: skip
def test_what_is_not_a_record_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    write_accepted(tmp_path, WHOLE)
    file = tmp_path / "job-4711.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "later": "unknown"}))
    assert read_record(tmp_path, "4711") == WHOLE  # a later version may add to it
    file.write_text(json.dumps({**data, **change}))
    assert read_record(tmp_path, "4711") is None


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 10_000, "{", "\udc00", '"x"', "{}"])
def test_other_files_are_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job-1.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert read_record(tmp_path, "1") is None
    os.mkfifo(tmp_path / "job-2.json")
    (tmp_path / "job-3.json").mkdir()
    (tmp_path / "job-4.json").symlink_to("job-4.json")
    assert records(tmp_path) == []


def test_runs_are_found_in_folders(tmp_path: Path) -> None:
    first, second = tmp_path / "runs" / "a", tmp_path / "runs" / "deep" / "b"
    for folder in (first, second):
        folder.mkdir(parents=True)
    write_accepted(first, replace(WHOLE, run="a", job="1", key="1", submitted=1.0))
    write_accepted(first, replace(WHOLE, run="a", job="2", key="2", submitted=2.0))
    write_accepted(second, replace(WHOLE, run="b", job="3", key="3", submitted=3.0))
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs")
    pairs = [pair for pair in scan(tmp_path) if pair]
    runs = {run.name: (run.folder, [job.id for job in jobs]) for run, jobs in pairs}
    assert runs == {"a": (first, ["1", "2"]), "b": (second, ["3"])}
    assert list(scan(tmp_path / "nothing")) == []


def test_what_git_says_of_the_code(tmp_path: Path) -> None:
    assert code_in(tmp_path) == Code(folder=str(tmp_path))
    assert code_in(tmp_path / "nothing") == Code(folder=str(tmp_path / "nothing"))

    def git(*arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", "-C", tmp_path, *author, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "--quiet")
    assert code_in(tmp_path) == Code(folder=str(tmp_path))  # no commit yet
    (tmp_path / "train.py").write_text("1\n")
    git("add", "train.py")
    git("commit", "--quiet", "--message", "1")
    (tmp_path / "new.txt").write_text("not of git\n")
    (tmp_path / "below").mkdir()
    clean = Code(folder=str(tmp_path), commit=git("rev-parse", "HEAD"))
    assert code_in(tmp_path / "below") == clean
    (tmp_path / "train.py").write_text("2\n")
    assert code_in(tmp_path) == replace(clean, dirty=True)


def write(folder: Path, status: dict[str, Any], *events: dict[str, Any] | str) -> None:
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "config.json").write_text(json.dumps({"epochs": 10}))
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_how_far_a_training_is(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/x.pt").touch()
    write(
        tmp_path,
        {
            "state": "running",
            "step": 40,
            "epoch": 2,
            "checkpoint": "checkpoints/x.pt",
            "reason": None,
            "time": 5.5,
        },
        {"event": "start", "train_samples": 640, "global_batch_size": 64},
        {"event": "epoch", "epoch": 1, "loss": 0.5, "accuracy": 0.9},
        {"event": "train", "step": 15, "samples_per_s": 100.0},
        {"event": "epoch", "step": 44, "epoch": 2, "loss": 0.25, "accuracy": 0.875},
        '{"event": "epoch", "loss": 0.1, "acc',
    )
    progress = read_progress(tmp_path)
    assert progress == Progress(
        state="running", step=44, steps=100, epoch=2, epochs=10, loss=0.25, accuracy=0.875, best=0.9, samples_per_s=100.0,
        checkpoint="checkpoints/x.pt", time=5.5, metrics={"samples_per_s": 100.0, "loss": 0.25, "accuracy": 0.875},
    )  # fmt: skip
    assert progress.says == "epoch 2 of 10, step 44 of 100, loss 0.25, accuracy 87.5%"


def test_of_odd_files_nothing_is_taken(tmp_path: Path) -> None:
    for state in ("", "\x1b[2J", 7, None, ["running"]):
        write(tmp_path, {"state": state})
        assert read_progress(tmp_path) is None
    odd = {"step": -1, "epoch": True, "loss": "low", "accuracy": 10**400, "samples_per_s": [], "reason": 5}
    write(
        tmp_path,
        {"state": "done", **odd},
        {"event": "epoch", **odd},
        {"event": 5},
        "[]",
        "NaN",
        '{"event": "epoch", "loss": NaN}',
    )
    assert read_progress(tmp_path) == Progress(state="done", epochs=10, metrics={"reason": 5.0})


@pytest.mark.parametrize("exchanged", ["run", "run/old"])
def test_no_link_in_place_of_a_run_folder_or_in_it_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged: str
) -> None:
    """Whoever can write the folder above could else have the user open a private folder to others."""
    (tmp_path / "run/old").mkdir(parents=True)
    (tmp_path / "run/file").touch()
    (tmp_path / "private").mkdir()
    for place in ("run", "run/old", "run/file", "private"):
        (tmp_path / place).chmod(0o775)
    run_folder.make_run_folder(tmp_path / "run")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("run", "run/old", "run/file")] == [
        0o755
    ] * 3

    def exchange(_: Path) -> None:
        (tmp_path / exchanged).rename(tmp_path / "moved")
        (tmp_path / exchanged).symlink_to(tmp_path / "private")

    monkeypatch.setattr(run_folder, "why_not_trusted", exchange)
    with contextlib.suppress(DocumentError):
        run_folder.make_run_folder(tmp_path / "run")
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o775


def test_checkpoints_on_another_disk_stay_as_they_are(tmp_path: Path) -> None:
    for place in ("run", "scratch"):
        (tmp_path / place).mkdir()
        (tmp_path / place).chmod(0o775)
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "scratch")
    run_folder.make_run_folder(tmp_path / "run")
    assert [(tmp_path / place).stat().st_mode & 0o777 for place in ("run", "scratch")] == [0o755, 0o775]
