"""Others may write in the run folder: links, FIFOs and broken files that lie there are no trap."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from training import files
from training.data.mnist import read_idx, read_mnist
from training.errors import UserError
from training.output.log import read_events, read_status, write_json
from training.processes import jobscript
from training.saving.checkpoint import save as save_checkpoint
from training.saving.lock import RunLock

from .trainers import ROOT, Here, Trainers, alive, events, finish, status, wait_for

NAMES = ("status.json", "events.jsonl", "lock.json", "stop", "config.json")


def as_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def as_dangling_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret.with_name("nothing"))


def as_fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def as_bytes(path: Path, secret: Path) -> None:
    path.write_bytes(b"\xff\xfe{\0" * 1000)


def as_deep_json(path: Path, secret: Path) -> None:
    path.write_text("[" * 200_000)


def as_other_json(path: Path, secret: Path) -> None:
    path.write_text("[1, 2]")


@pytest.mark.parametrize("plant", [as_link, as_dangling_link, as_fifo, as_bytes, as_deep_json, as_other_json])
@pytest.mark.parametrize("names", [("lock.json",), ("stop",), ("status.json", "events.jsonl", "config.json")])
def test_what_lies_in_the_run_folder_is_no_trap(
    here: Here, tmp_path: Path, names: tuple[str, ...], plant: Callable[[Path, Path], None]
) -> None:
    """It is told in a line, or replaced; nothing hangs, and nothing outside is written."""
    run_dir, secret = tmp_path / "run", tmp_path / "secret"
    run_dir.mkdir()
    secret.write_text("mine")
    for name in names:
        plant(run_dir / name, secret)
    lock = run_dir / "lock.json"
    if lock.is_file() and not lock.is_symlink():
        os.utime(lock, (0, 0))  # no beat for long: a fresh one is waited for, a minute
    ended = here(run_dir)

    assert secret.read_text() == "mine"
    assert not secret.with_name("nothing").exists()
    assert "Traceback" not in ended.err
    allowed = {0, 75} if names == ("stop",) else {0}
    if ended.code not in allowed:
        assert ended.code == 1
        assert ended.err.startswith("error: ")
        assert ended.err.count("\n") == 1


def test_readers_take_what_is_no_record_for_nothing(tmp_path: Path) -> None:
    for number, plant in enumerate([as_fifo, as_bytes, as_deep_json, as_other_json]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in NAMES:
            plant(folder / name, tmp_path)
        assert read_status(folder) == {}
        assert list(read_events(folder)) == []
        assert jobscript.read_stop_file(folder / "stop") == ""


def test_temporary_names_are_new_each_time_and_follow_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    assert files.temporary_name(path) != files.temporary_name(path)
    assert str(os.getpid()) not in files.temporary_name(path).name
    secret = tmp_path / "secret"
    secret.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    (tmp_path / "status.json.tmp-known").symlink_to(secret)
    with pytest.raises(FileExistsError):
        write_json(path, {})
    (tmp_path / "step-00000001.pt.tmp-known").symlink_to(secret)
    with pytest.raises(FileExistsError):
        save_checkpoint(tmp_path, {"model": {}}, step=1, keep=1, best=False)
    assert secret.read_text() == "mine"


def test_answers_to_the_script_follow_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    for name in ("AGAIN", "EXIT"):
        (tmp_path / name).symlink_to(secret)
        monkeypatch.setenv(f"SBATCHGEN_{name}_FILE", str(tmp_path / name))
    jobscript.leave_status(3)
    with pytest.raises(OSError, match="symbolic"):
        jobscript.ask_again()
    assert secret.read_text() == "mine"


def test_a_lock_that_is_a_link_is_told(tmp_path: Path) -> None:
    (tmp_path / "lock.json").symlink_to(tmp_path / "nothing")
    with pytest.raises(OSError, match="symbolic"):
        RunLock(tmp_path).take(lambda _: None)


LAUNCHED = {
    "torchrun": (str(ROOT / "training/torchrun.py"), "--nproc-per-node=2", "--", str(ROOT / "training")),
    "spawn": (str(ROOT / "training"), "--launcher", "spawn", "--nproc-per-node", "2"),
}


@pytest.mark.parametrize(("launcher", "when"), [("torchrun", "at the start"), ("spawn", "in training")])
def test_ranks_end_with_the_process_that_started_them(
    trainers: Trainers, tmp_path: Path, launcher: str, when: str
) -> None:
    flags = ("--step-delay", "0.1", "--epochs", "50", "--log-every", "1", "--sync-every", "1")
    process = trainers.start(tmp_path, *flags, launcher=LAUNCHED[launcher])
    wait_for(lambda: len(ranks(process.pid)) == 2, "ranks")
    if when == "in training":
        wait_for(lambda: events(tmp_path, "train"), "progress")
    pids = ranks(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), "end of the ranks")
    ended = finish(trainers.start(tmp_path, "--epochs", "1"))
    assert ended.code == 0, ended.err
    assert "Waiting up to" not in ended.out


def ranks(parent: int) -> list[int]:
    """The processes below that train."""
    with contextlib.suppress(OSError):
        listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in listed if b"RANK=" in Path(f"/proc/{pid}/environ").read_bytes()]
    return []


def test_a_rank_whose_parent_is_gone_already_does_not_begin(trainers: Trainers, tmp_path: Path) -> None:
    ended = finish(trainers.start(tmp_path, env={"SBATCHGEN_PARENT": "1"}))
    assert ended.code == 128 + signal.SIGKILL
    assert not (tmp_path / "lock.json").exists()


def idx(sizes: tuple[int, ...], values: bytes) -> bytes:
    return bytes((0, 0, 8, len(sizes))) + struct.pack(f">{len(sizes)}I", *sizes) + values


def test_a_packed_file_is_unpacked_no_further_than_its_header_says(tmp_path: Path) -> None:
    """A gigabyte of zeros packs to a megabyte."""
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(
        gzip.compress(idx((4,), b"")) + 1024 * gzip.compress(bytes(1 << 20))
    )  # members of one file
    began = time.process_time()
    with pytest.raises(UserError, match="more than 4 values where its header says 4"):
        read_idx(bomb, dimensions=1)
    assert time.process_time() - began < 2
    huge = tmp_path / "huge"
    huge.write_bytes(idx((1 << 31, 1 << 31, 9), b""))
    with pytest.raises(UserError, match="more than"):
        read_idx(huge, dimensions=3)


def test_a_label_over_the_number_of_classes_is_told_with_its_file(small_digits: Path, tmp_path: Path) -> None:
    for file in small_digits.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    images, labels = read_mnist(tmp_path, "train")
    assert int(labels.max()) == 9
    (path,) = tmp_path.glob("train-labels*")
    data = bytearray(path.read_bytes())
    data[-1] = 200
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a label is 200, and MNIST has 10 classes; at: .*train-labels"):
        read_mnist(tmp_path, "train")
    assert isinstance(images, torch.Tensor)


def test_the_state_of_a_run_is_whole_after_all_this(here: Here, tmp_path: Path) -> None:
    here(tmp_path)
    assert status(tmp_path)["state"] == "done"
    assert not list(tmp_path.rglob("*.tmp-*"))
