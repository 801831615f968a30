"""rehearse --on: a short job on the cluster, without a Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sbatchgen.cli import rehearse
from tests.conftest import Command
from tests.slurm import fakes

WORDS = ("rehearse", "single", "--on", "public_cluster", "--trainer", "train.py", "--yes")


@pytest.fixture
def submitted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of submission; sbatch takes any job, and Slurm has forgotten the job at once."""
    place = folder / "bin"
    fakes.squeue(place, [])
    fakes.failing(place, "sacct", "Slurm accounting storage is disabled")
    (place / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    (place / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    (folder / "train.py").write_text("print(1)\n")
    return folder


EVENTS = (
    {"event": "start", "processes": 1},
    {"event": "train", "step": 8, "loss": 0.5},
    {"event": "preempted", "step": 9, "reason": "SIGUSR1"},
    {"event": "start", "processes": 1, "step": 9},
    {"event": "train", "step": 10, "loss": 0.25},
)


def script(folder: Path) -> str:
    """The script of the only job."""
    (file,) = folder.glob("runs/*-rehearsal-*/job-4711.slurm")
    return file.read_text()


@pytest.mark.parametrize(
    "options",
    [("--seconds", "60"), ("--stop-after", "9"), ("--network",), ("--see", "."), ("--see", ".", "--network")],
)
def test_options_of_a_rehearsal_on_this_machine_are_refused(
    submitted: Path, command: Command, options: tuple[str, ...]
) -> None:
    refused = command(*WORDS, *options)
    assert (refused.status, refused.out) == (2, "")
    typed = [word for word in options if word.startswith("--")]
    assert all(word in refused.err.splitlines()[0] for word in typed)
    assert not (submitted / "runs").exists()


@pytest.mark.parametrize(
    ("options", "signal"),
    [
        ((), "B:USR1@150"),
        (("--time", "00:02:00"), "B:USR1@60"),
        (("--time", "1:00:00"), "B:USR1@1800"),
        (("--time", "00:40:00", "--signal", "B:USR1@7"), "B:USR1@7"),
    ],
)
def test_the_job_is_stopped_after_half_of_its_time(
    submitted: Path, command: Command, options: tuple[str, ...], signal: str
) -> None:
    command(*WORDS, *options)
    assert f"#SBATCH --signal={signal}\n" in script(submitted)


@pytest.mark.parametrize(
    ("options", "place"),
    [((), "."), (("--array", "2-5"), "2"), (("--array", "7,3"), "3"), (("--array", "1-2%1"), ".")],
)
def test_the_events_of_the_first_task_of_an_array_are_read(
    submitted: Path, command: Command, options: tuple[str, ...], place: str
) -> None:
    """Each element of an array has a run folder of its own."""
    (submitted / "events").write_text("".join(f"{json.dumps(event)}\n" for event in EVENTS))
    writes = f'for run in runs/*-rehearsal-*; do mkdir -p "$run/{place}"; cp events "$run/{place}/events.jsonl"; done'
    (submitted / "bin" / "sbatch").write_text(f"#!/bin/sh\n{writes}\necho 4711\n")
    shown = command(*WORDS, *options, "--format", "json")
    rows = {row["what"]: (row["outcome"], row["detail"]) for row in json.loads(shown.out)["rows"]}
    assert {outcome for outcome, _ in rows.values()} == {"ok"}, rows
    assert rows["restart"] == ("ok", "it begins at step 9, after step 9")


def test_a_run_that_is_not_in_the_index_is_found_by_its_folder(
    submitted: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (submitted / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(submitted / "file"))
    shown = command(*WORDS, "--array", "0-1")
    assert shown.status == 2
    (folder,) = submitted.glob("runs/*-rehearsal-*")
    assert f"  fix: sbatchgen status --scan {folder}\n" in shown.err
    monkeypatch.delenv("XDG_STATE_HOME")
    shown = command("status", "--scan", str(folder))
    assert "-rehearsal" in shown.out
    assert rehearse.SHORT_TIME in script(submitted)


@pytest.mark.parametrize("option", ["--seconds", "--stop-after"])
@pytest.mark.parametrize("value", ["nan", "inf", "soon"])
def test_a_time_that_is_not_finite_is_refused(command: Command, option: str, value: str) -> None:
    refused = command("rehearse", "single", "--profile", "local", option, value)
    assert (refused.status, f"'{value}' is not a number" in refused.err) == (2, True), refused.err


def test_a_second_profile_is_refused(submitted: Path, command: Command) -> None:
    refused = command(*WORDS, "--profile", "nosuch")
    assert (refused.status, refused.out) == (2, "")
    assert "--profile and --on both name a profile" in refused.err
    assert not (submitted / "runs").exists()
