"""The rows of a rehearsal, from what its starts reported."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from sbatchgen.lab.rehearsal import controller
from sbatchgen.lab.rehearsal.controller import StartReport
from sbatchgen.lab.rehearsal.outcome import Row, cluster_rows, rows
from sbatchgen.lab.rehearsal.rehearsal import Rehearsal
from tests.scripts import resolved

NOT_LOADED = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 2, in <module>\n    import nothing_such\n'
    "ModuleNotFoundError: No module named 'nothing_such'\n"
)
START: dict[str, Any] = {
    "ending": "limit", "signal_lead_s": 60, "is_ready": True, "trained_s": 30.0, "silent_before_stop_s": 1.0, "events_before_stop": 0, "stopped_at": None, "stop_took_s": None,
    "was_killed": False, "was_requeued": False, "status": 0, "events": [], "log": "", "silent_at_end_s": 1.0, "saved_at": None, "checkpoint": "",
}  # fmt: skip


def of(**start: Any) -> dict[str, Row]:
    """The rows of a rehearsal with one start."""
    job = resolved("single", "public_cluster", trainer="train.py", metrics=r"loss (?P<loss>\S+)")
    shown: dict[str, Any] = {
        "processes": 1,
        "unproven": (),
        "seconds": 1.0,
        "memory": 0,
        "limit": "",
        "disk_bytes": 0,
        "failure": "",
    }
    return {
        row.what: row
        for row in rows(Rehearsal(resolved=job, starts=(cast("StartReport", START | start),), **shown))
    }


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"step": 7}, "step 7"),
        ({"epoch": 2}, "epoch 2"),
        ({"step": None, "epoch": 2}, "epoch 2"),
        ({}, "a step"),
    ],
)
def test_progress_is_a_step_or_an_epoch(event: dict[str, Any], says: str) -> None:
    trained = {"event": "train", "time": 2.0, "loss": 0.5, **event}
    shown = of(
        events=[trained, {"event": "save", "time": 9.0, **event}],
        events_before_stop=1,
        stopped_at=8.0,
        stop_took_s=1.0,
    )
    assert shown["first steps"].detail == f"{says} after 30 s, loss 0.5"
    assert f"saved {says} and ended" in shown["time limit"].detail


def test_a_program_that_did_not_load_before_its_stop_failed() -> None:
    row = of(stopped_at=30.0, stop_took_s=3.0, status=1, log=NOT_LOADED)["start"]
    assert (row.outcome, "no module 'nothing_such' (train.py:2)" in row.detail) == ("failed", True)
    assert of(stopped_at=30.0, stop_took_s=3.0, status=143, log="epoch 1\n")["start"].outcome == "ok"
    assert of(stopped_at=30.0, stop_took_s=3.0, status=0, log="")["start"].outcome == "ok"


def test_a_start_that_only_waits_is_not_ok() -> None:
    """As ranks that wait for one that hangs; a silent trainer looks the same."""
    waits = {
        "stopped_at": 30.0,
        "stop_took_s": 3.0,
        "status": 143,
        "log": "Job 7 on n1\n",
        "silent_before_stop_s": 28.0,
    }
    row = of(**waits)["start"]
    assert (row.outcome, "train.py has printed nothing for 28 s: it may hang" in row.detail) == (
        "unknown",
        True,
    )
    trained = {"event": "train", "time": 2.0, "loss": 0.5, "step": 1}
    assert of(**waits, events=[trained], events_before_stop=1)["start"].outcome == "ok"


def test_a_program_that_ended_by_itself_does_not_hang() -> None:
    """Its last words may be older than half of a short life."""
    ended = {"stopped_at": None, "status": 0, "log": "1\n", "trained_s": 0.2, "silent_before_stop_s": 0.19}
    row = of(**ended)["start"]
    assert (row.outcome, "ran for 0.2 s" in row.detail) == ("ok", True)


def test_a_job_of_a_cluster_without_steps_has_no_step_none() -> None:
    events: list[dict[str, Any]] = [
        {"event": "start"},
        {"event": "train", "epoch": 1},
        {"event": "preempted", "reason": "the limit"},
    ]
    shown = {
        row.what: row
        for row in cluster_rows([*events, {"event": "start"}], "", resolved("single", "public_cluster"))
    }
    assert not [row for row in shown.values() if "None" in row.detail]
    assert shown["restart"].outcome == "unknown"


@pytest.mark.parametrize(("load", "times"), [(0.1, 1.0), (6.0, 3.0), (90.0, 4.0)])
def test_a_program_has_longer_to_load_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, load: float, times: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert controller._slowdown() == times
