"""Before a restart: whether a start of a job has trained the same as the one before it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from training import repeats
from training.repeats import repeated_steps

from .trainers import ROOT

PROGRAM = (sys.executable, f"{ROOT}/training/repeats.py")
HEAD = "Job 4711 on g[01-02], restart {} of at most 10"
AGAIN = "Requeueing: restart 1 of at most 10"


def log(old: Iterable[str], new: Iterable[str], *, end: str = AGAIN) -> list[bytes]:
    lines = [HEAD.format(0), *old, end, "slurmstepd: error: *** CANCELLED ***", HEAD.format(1), *new]
    return [f"{line}\n".encode() for line in lines]


def steps(first: int, last: int, form: str = "step {}: loss 0.5") -> list[str]:
    return [form.format(step) for step in range(first, last)]


@pytest.mark.parametrize(
    "form",
    [
        "step {}: loss 0.5",
        "iter {}: loss 4.2, time 12.3ms",
        "Epoch: [{}][  0/391]\tTime 0.2",
        '{{"step": {}, "loss": 0.2}}',
        "{{'loss': '1.2', 'epoch': '{}.5'}}",
        "Epoch {}:  12%|#  | 5/40\rEpoch {}:  15%|#  | 6/40",
    ],
)
def test_a_start_that_trains_the_same_steps_again_is_seen(form: str) -> None:
    form = form.replace("{}", "{0}")
    assert repeated_steps(log(steps(0, 10, form), steps(0, 9, form)))
    assert not repeated_steps(log(steps(0, 10, form), steps(8, 18, form)))


def test_what_it_began_with_is_returned() -> None:
    assert repeated_steps(log(["config: epochs 90", *steps(0, 9)], steps(0, 9))) == "step 0, step 1, step 2"


@pytest.mark.parametrize(
    "lines",
    [
        log(steps(0, 10), []),
        log(steps(0, 2), steps(0, 2)),
        log(["no", "numbers"] * 9, ["no", "numbers"] * 9),
        log(steps(0, 10), steps(0, 10), end="slurmstepd: error: node failure"),  # it had no time to save
        log(steps(0, 10), steps(0, 40)),  # it may have saved later than the first one ended
        log(steps(0, 10) * 3, steps(0, 10) * 3),  # steps of each epoch: which epoch is not printed
        log(["step 100", *steps(0, 9)], ["step 100", *steps(500, 509)]),  # a setting that looks like a step
        log(steps(0, 10), steps(0, 10))[1:],
        [],
    ],
)
def test_what_is_not_certain_is_not_said(lines: list[bytes]) -> None:
    assert not repeated_steps(lines)


def test_ranks_may_print_in_any_order() -> None:
    first = ["step 0", "step 0", "step 1", "step 1", "step 2", "step 2", "step 3", "step 3", "step 4"]
    other = ["step 0", "step 1", "step 0", "step 1", "step 2", "step 3", "step 2", "step 3", "step 4"]
    assert repeated_steps(log(first, other))


def test_the_last_two_starts_are_compared() -> None:
    lines = log(steps(0, 9), steps(0, 9)) + log([], steps(9, 18))[2:]
    assert not repeated_steps(lines)


@pytest.mark.parametrize(("first", "status"), [(0, 0), (9, 1)])
def test_a_script_gets_the_answer_as_a_status_and_the_log_an_error(
    tmp_path: Path, first: int, status: int
) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(b"".join(log(steps(0, 9), steps(first, first + 9))))
    with path.open("ab") as stdout:
        done = subprocess.run([*PROGRAM, "1", "9"], stdout=stdout, check=False)
    assert done.returncode == status
    assert (path.read_text().splitlines()[-1].startswith("error: this start has trained the same")) == (
        not status
    )


def test_a_checkpoint_that_is_removed_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trainer keeps the newest files, and removes an old one after the check has seen that it is there."""
    kept, removed = tmp_path / "kept.pt", str(tmp_path / "removed.pt")
    kept.touch()
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path == removed or exists(path))
    assert repeats.main(["1", "9", removed, str(kept)]) == 1
    assert capsys.readouterr().out == ""


def test_without_a_log_nothing_is_said() -> None:
    for stdout in (subprocess.PIPE, subprocess.DEVNULL):
        assert subprocess.run([*PROGRAM, "1", "9"], stdout=stdout, check=False).returncode == 1


@pytest.mark.parametrize(
    ("restarts", "age", "status"),
    [("1", 4000, 0), ("0", 4000, 1), ("1", 3000, 1), ("1", 3700, 1)],
)
def test_a_restart_that_has_left_no_newer_checkpoint_is_the_last(
    tmp_path: Path, restarts: str, age: int, status: int
) -> None:
    old, new = tmp_path / "old.pt", tmp_path / "new.pt"
    for file, seconds in ((old, 9000), (new, age)):
        file.touch()
        os.utime(file, (time.time() - seconds,) * 2)
    done = subprocess.run(
        [*PROGRAM, restarts, "3600", old, new], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, "left no newer checkpoint" in done.stdout) == (status, not status)


def test_a_pattern_that_no_file_fits_has_no_checkpoint() -> None:
    done = subprocess.run([*PROGRAM, "1", "3600", "/nowhere/*.pt"], stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0
