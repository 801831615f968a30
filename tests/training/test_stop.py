"""When a run is asked to stop, and what it makes of that."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from training.config import parse
from training.errors import UserError
from training.processes import stop
from training.processes.stop import Stop, first_reason, parse_deadline
from training.run.session import Meter

from .trainers import SCRIPTS_TORCHRUN_2, Here, Trainers, events, finish, status, wait_for

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


def test_a_file_system_that_does_not_answer_stops_nothing(
    asked: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is looked for again, and the end of the time counts all the same."""

    def fail(path: Path) -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", fail)
        asked.watch(tmp_path / "stop", NEVER)
        assert first_reason(asked.requests()) == ""
        asked.watch(tmp_path / "stop", time.time())
        assert first_reason(asked.requests()) == "deadline"
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


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each sleep, by which all clocks are ahead; nothing sleeps."""
    sleeps: list[float] = []

    def ahead(clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() + sum(sleeps)

    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, ahead(getattr(time, name)))
    monkeypatch.setattr(time, "sleep", sleeps.append)
    return sleeps


@pytest.mark.parametrize(("step_s", "deadline_s"), [(6, 40), (40, 300), (90, 300), (2, 20)])
def test_slow_steps_end_before_the_deadline(
    here: Here, tmp_path: Path, slept: list[float], step_s: int, deadline_s: int
) -> None:
    ended = here(tmp_path, "--step-delay", str(step_s), "--deadline", str(deadline_s), "--epochs", "99")

    assert (ended.code, status(tmp_path)["reason"]) == (75, "deadline"), ended.err
    assert deadline_s / 3 < sum(slept) < deadline_s


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step_s", [0.6, 6, 40])
def test_a_stop_file_is_seen_within_a_step(
    here: Here, tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    at = 13

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == at:
            (tmp_path / "stop").touch()

    monkeypatch.setattr(time, "sleep", sleep)
    ended = here(tmp_path, "--step-delay", str(step_s), "--epochs", "99")

    assert (ended.code, status(tmp_path)["reason"]) == (75, "stop file"), ended.err
    assert status(tmp_path)["step"] <= at + 1


def test_quick_steps_synchronise_seldom(slept: list[float]) -> None:
    meter = Meter()
    synchronised = []
    for step in range(1, 61):
        slept.append(0.01)
        if meter.is_sync_due(step, 10):
            synchronised.append(step)
            meter.note_sync(meter.step_s())

    assert synchronised == [1, 10, 20, 30, 40, 50, 60]


@pytest.mark.proof
def test_further_signals_to_torchrun_do_not_end_its_wait_for_the_save(
    trainers: Trainers, tmp_path: Path
) -> None:
    """Slurm and the runtime of a container may both send one to torchrun, and each scancel sends more."""
    slowly = ("--step-delay", "2", "--sync-every", "1", "--log-every", "1", "--epochs", "9")
    process = trainers.start(tmp_path, *slowly, launcher=SCRIPTS_TORCHRUN_2)
    wait_for(lambda: events(tmp_path, "train"), "step")
    for _ in range(5):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    ended = finish(process)
    assert "checkpoint checkpoints/step-" in ended.out, ended
    assert status(tmp_path)["state"] == "preempted"
