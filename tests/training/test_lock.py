"""One job a run folder; and a run that was killed is never kept out by what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from training.errors import FolderError
from training.files import LOCK
from training.saving import lock
from training.saving.lock import RunLock

from .trainers import Here, Trainers, events, finish, status, wait_for

ELSEWHERE = {"host": "n7", "pid": 1, "job": "41", "restart": "0", "machine": "other", "born": 1, "key": "k"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of silence is enough, and nothing of Slurm is around."""
    for name, value in (("BEAT_S", 0.1), ("STALE_S", 0.6), ("WATCH_EVERY_S", 0.02)):
        monkeypatch.setattr(lock, name, value)
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


def left(folder: Path, **changes: Any) -> Path:
    """A lock as another job leaves it."""
    path = folder / LOCK
    path.write_text(json.dumps(ELSEWHERE | changes))
    return path


def take(folder: Path) -> tuple[RunLock, list[str]]:
    lines: list[str] = []
    made = RunLock(folder)
    made.take(lines.append)
    return made, lines


def test_taken_released_and_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        made, lines = take(tmp_path)
        assert not lines
        made.check()
        made.release()
        assert list(tmp_path.iterdir()) == []


def test_the_second_of_one_machine_is_told_who_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    made, _ = take(tmp_path)

    with pytest.raises(FolderError, match=rf"process {os.getpid()} on .*, job 77; at: .*{LOCK}; fix: "):
        take(tmp_path)
    made.release()


def test_a_holder_whose_process_is_gone_or_another_now(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = lock._own_facts({})
    for pid, born in ((ended.pid, 5), (os.getpid(), mine["born"] - 1)):
        left(tmp_path, machine=mine["machine"], pid=pid, born=born)
        made, lines = take(tmp_path)
        assert "its process is gone" in lines[0]
        made.release()


@pytest.mark.parametrize("before", [None, "1"])
def test_a_requeued_job_takes_over_from_itself_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    left(tmp_path, restart=before or "0")
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"waited for {seconds} s"))
    made, lines = take(tmp_path)

    assert lines == [
        "Taking over the run folder from process 1 on n7, job 41: it is an earlier start of this job"
    ]
    made.release()


def test_another_machines_lock_counts_while_it_moves(tmp_path: Path, quick: None) -> None:
    path = left(tmp_path)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    with pytest.raises(FolderError, match="process 1 on n7, job 41"):
        take(tmp_path)
    over.set()
    thread.join()
    made, lines = take(tmp_path)

    assert "Waiting up to" in lines[0]
    assert "no sign of life" in lines[1]
    made.release()


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_an_old_one_without_a_name_waits_for_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    os.utime(tmp_path / LOCK, (1, 1))
    made, lines = take(tmp_path)

    assert len(lines) == 1
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    made.release()


def test_it_beats_and_notices_that_it_was_taken_over(tmp_path: Path, quick: None) -> None:
    made, _ = take(tmp_path)
    os.utime(tmp_path / LOCK, (1, 1))
    wait_for(lambda: (tmp_path / LOCK).stat().st_mtime > 1, "beat")
    path = left(tmp_path)
    with pytest.raises(FolderError, match="taken over by process 1 on n7"):
        made.check()
    made.release()

    assert path.exists()  # it is the other's


def test_one_alone_takes_over(tmp_path: Path) -> None:
    """Many find the same dead holder at one moment."""
    left(tmp_path, machine=lock._machine())
    script = f"""
import sys, time
from pathlib import Path
from training.saving.lock import RunLock, FolderError
try:
    RunLock(Path({str(tmp_path)!r})).take(lambda line: None)
except FolderError:
    sys.exit(0)
print("mine", flush=True)
sys.stdin.read()
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(6)
    ]
    wait_for(lambda: sum(process.poll() is None for process in started) == 1, "single winner")
    outs = [process.communicate()[0] for process in started]

    assert sorted(outs) == [""] * 5 + ["mine\n"]


def test_a_second_run_is_refused_while_the_first_lives(
    trainers: Trainers, here: Here, tmp_path: Path
) -> None:
    """Fault F15, and what the first one leaves when it is killed."""
    first = trainers.start(
        tmp_path, "--step-delay", "0.3", "--log-every", "1", "--save-every", "1", "--sync-every", "1"
    )
    wait_for(lambda: events(tmp_path, "save"), "save")
    second = here(tmp_path)

    assert second.code == 1
    assert second.err.count("\n") == 1
    assert f"another job is running in this folder: process {first.pid} on " in second.err
    assert status(tmp_path)["state"] == "running"  # the first's: the second leaves it alone
    assert first.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    finish(first)
    third = here(tmp_path)

    assert third.code == 0, third.err
    assert f"Taking over the run folder from process {first.pid}" in third.out
    assert "Resuming from" in third.out
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("part", ["lock", "mkdir"])
def test_a_folder_that_takes_no_writes_is_one_line(here: Here, tmp_path: Path, part: str) -> None:
    """Fault F18; as root a read-only folder would be written all the same."""
    run_dir = tmp_path / "file" / "run"
    (tmp_path / "file").write_text("") if part == "mkdir" else (run_dir / LOCK).mkdir(parents=True)
    ended = here(run_dir)

    assert ended.code == 1
    assert ended.err.count("\n") == 1, ended.err
    assert ended.err.startswith("error: cannot write in the run folder (")
