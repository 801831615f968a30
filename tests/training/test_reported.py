"""What a training says of its weights beside its log: confused classes, trackers, a table of evaluations."""

from __future__ import annotations

import csv
import json
import sys
import threading
from pathlib import Path

import pytest
import torch

from training.model.confusion import as_lines, as_rows, count_confused
from training.output.log import Log, read_events

from .trainers import Here

OWN = """
import json, os
def logger(event):
    with open("seen.jsonl", "a") as file:
        file.write(json.dumps(event) + "\\n")
    event.clear()
def broken(event):
    raise RuntimeError("no disk")
"""


def test_the_last_column_is_all_other_classes() -> None:
    given, right = torch.tensor([0, 1, 1, 2, 3]), torch.tensor([0, 1, 0, 1, 1])
    logits_BK = torch.nn.functional.one_hot(given, 4)

    rows = as_rows(count_confused(logits_BK, right, classes=2).tolist())

    assert rows == [[1, 1, 0], [0, 1, 2]]
    assert as_lines(rows, ("cat", "dog", "fish")) == [
        "right  cat  dog  others",
        "  cat    1    1       0",
        "  dog    0    1       2",
    ]
    assert not as_lines(as_rows([]), ())
    assert as_lines([[12, 0, 0], [1, 2, 0]], ()) == ["right   0  1", "    0  12  0", "    1   1  2"]


def test_trackers_get_events_of_two_threads_in_the_order_of_the_file(tmp_path: Path) -> None:
    """The thread that saves has an event while a slow tracker is given one of the training."""
    log, seen = Log(run_dir=tmp_path, speaks=True), []
    saving = threading.Thread(target=log.event, args=("save",))

    def slow(event: dict[str, object]) -> None:
        if event["event"] == "epoch":
            saving.start()
            saving.join(0.2)  # without an order of the two, the other event is first
        seen.append(event["event"])

    log.trackers["slow"] = slow
    log.event("epoch")
    saving.join()
    assert seen == [event["event"] for event in read_events(tmp_path)] == ["epoch", "save"]


@pytest.mark.proof
def test_each_tracker_gets_the_events_and_none_ends_the_run(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reported_own.py").write_text(OWN)
    trackers = ("--log-to", "reported_own:logger,reported_own:broken")
    ended = here(tmp_path / "run", "--log-every", "2", *trackers)

    assert ended.code == 0
    assert ended.out.count("No more events for --log-to reported_own:broken (RuntimeError: no disk)") == 1
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    events = [*read_events(tmp_path / "run")]
    assert seen == events
    assert {event["event"] for event in seen} >= {"start", "train", "epoch", "save", "done"}
    last = [event for event in seen if event["event"] == "epoch"][-1]
    assert sum(map(sum, last["confusion"])) == last["samples"] == 101
    assert sum(row[at] for at, row in enumerate(last["confusion"])) == round(last["accuracy"] * 101)

    for _ in range(2):
        evaluated = here(tmp_path / "run", "--evaluate", *trackers[:1], "reported_own:logger")
    assert "\n".join(as_lines(last["confusion"], ())) in evaluated.out
    again = json.loads((tmp_path / "seen.jsonl").read_text().splitlines()[-1])
    assert (again["event"], again["confusion"]) == ("evaluation", last["confusion"])
    with (tmp_path / "run/evaluations.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert [(row["weights"], float(row["accuracy"])) for row in rows] == [
        (again["weights"], last["accuracy"])
    ] * 2
    assert [*read_events(tmp_path / "run")] == events


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reported_own:nothing", "has no attribute 'nothing'; fix: name a function of that module"),
        ("nope", "--log-to nope is not known"),
        ("wandb", "--log-to wandb: this Python has no wandb; fix: install wandb, or leave it out"),
    ],
)
def test_a_tracker_that_there_is_not_is_told_before_the_training(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    (tmp_path / "reported_own.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "reported_own", raising=False)
    ended = here(tmp_path / "run", "--log-to", name)

    assert ended.code == 1
    assert said in ended.err


def test_a_table_of_other_columns_keeps_its_rows(here: Here, tmp_path: Path) -> None:
    assert here(tmp_path, "--epochs", "1").code == 0
    (tmp_path / "evaluations.csv").write_text("mine\n1\n")
    ended = here(tmp_path, "--evaluate")

    assert ended.code == 0
    assert "it has other columns: move it away" in ended.out
    assert (tmp_path / "evaluations.csv").read_text() == "mine\n1\n"
