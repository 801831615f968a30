"""When a run is asked to stop, and what it makes of that."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from training.config import parse
from training.errors import UserError
from training.processes import stop
from training.processes.stop import Stop, first_reason, parse_deadline

from .trainers import Here, status

NEVER = float("inf")
SLURM = {"SLURM_JOB_END_TIME": "1700000000"}


@pytest.mark.parametrize(
    ("deadline", "environ", "end"),
    [
        ("auto", {}, NEVER),
        ("auto", SLURM, 1.7e9),
        ("auto", {"SLURM_JOB_END_TIME": "Unknown"}, NEVER),
        ("off", SLURM, NEVER),
        ("90", SLURM, 1090),
        ("1700000001", SLURM, 1700000001),
    ],
)
def test_the_end_of_the_time(deadline: str, environ: dict[str, str], end: float) -> None:
    assert parse_deadline(deadline, environ, 1000) == end


@pytest.mark.parametrize("deadline", ["soon", "0", "-5", "nan", "inf", ""])
def test_a_deadline_that_cannot_be_meant(deadline: str) -> None:
    with pytest.raises(UserError, match=r"--deadline is .*fix: auto, off"):
        parse(["--deadline", deadline])


@pytest.fixture
def asked(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stop:
    """One that looks each time, in a test whose signal handlers are put back."""
    monkeypatch.setattr(stop, "LOOK_EVERY_S", 0)
    return Stop()


@pytest.mark.parametrize(
    ("of_s", "left_s", "save_s", "stops"),
    [
        (9000, 300, 0, False),
        (9000, 300, 134, False),
        (9000, 300, 136, True),
        (40, 25, 0, False),
        (40, 19, 0, True),
        (-9, -9, 0, True),
    ],
)
def test_time_is_left_for_two_saves(
    asked: Stop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_s: float,
    left_s: float,
    save_s: float,
    *,
    stops: bool,
) -> None:
    """A job too short for that uses half its time."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    asked.began = now + left_s - of_s
    asked.watch(tmp_path / "stop", now + left_s)
    asked.save_s = save_s

    assert first_reason(asked.requests()) == ("deadline" if stops else "")


def test_each_reason_has_its_name(asked: Stop, tmp_path: Path) -> None:
    asked.watch(tmp_path / "stop", NEVER)
    assert first_reason(asked.requests()) == ""
    signal.raise_signal(signal.SIGUSR2)
    assert first_reason(asked.requests()) == "SIGUSR2"
    signal.raise_signal(signal.SIGTERM)
    assert first_reason(asked.requests()) == "SIGTERM"
    (tmp_path / "stop").touch()
    assert first_reason(asked.requests()) == "stop file"


def test_the_end_of_the_job_stops_the_run_in_time(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1))
    slow = ("--step-delay", "0.3", "--sync-every", "1", "--epochs", "9")
    ended = here(tmp_path, *slow)
    saved = status(tmp_path)
    on = here(tmp_path, "--deadline", "off")

    assert (ended.code, saved["state"], saved["reason"]) == (75, "preempted", "deadline"), ended.err
    assert "Stopped by deadline at step" in ended.out
    assert on.code == 0, on.err
