"""Disks that fill up, quotas, and folders that take no writes: the training continues as long as it can."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from training import files
from training.errors import UserError
from training.output.log import Log
from training.saving import checkpoint
from training.saving.reading import load
from training.saving.writer import Writer

from .states import encoded, found_step, names, save, state
from .trainers import HANGS_S, Here, Trainers, events, finish, status


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A disk that is full when a folder holds more than so many bytes; it is noticed at the sync."""

    def limit(folder: Path, room: float, *, number: int = errno.ENOSPC) -> None:
        sync = os.fsync

        def full(descriptor: int) -> None:
            if sum(path.stat().st_size for path in folder.iterdir()) > room:
                raise OSError(number, os.strerror(number))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", full)

    return limit


@pytest.mark.parametrize("number", sorted(checkpoint.NO_ROOM))
def test_older_ones_make_way(tmp_path: Path, disk: Callable[..., None], number: int) -> None:
    size = len(encoded(state(1)))
    save(tmp_path, 1, 2, 3)
    disk(tmp_path, 3.5 * size, number=number)
    save(tmp_path, 4)
    assert names(tmp_path) == ["step-00000003.pt", "step-00000004.pt"]

    disk(tmp_path, 1.5 * size, number=number)
    with pytest.raises(OSError, match=os.strerror(number)):
        save(tmp_path, 5)
    assert names(tmp_path) == ["step-00000004.pt"]
    assert found_step(tmp_path, []) == 4


def test_torch_does_not_hide_what_the_disk_said() -> None:
    """/dev/full takes nothing; there is one on every Linux."""
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as raised,
    ):
        checkpoint.encode(state(1), full)
    assert raised.value.errno == errno.ENOSPC


Room = Callable[[float], None]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """How much the disk says is free."""

    def free(size: float) -> None:
        usage = shutil._ntuple_diskusage(10**12, 10**12 - int(size), int(size))
        monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage)

    return free


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sizes", "refused", "warned"), [(6, False, False), (4, False, True), (0.9, True, False)]
)
def test_a_run_without_room_does_not_begin(
    here: Here, tmp_path: Path, room: Room, sizes: float, *, refused: bool, warned: bool
) -> None:
    plain = here(tmp_path / "plain")
    size = (tmp_path / "plain" / "checkpoints" / "step-00000008.pt").stat().st_size
    room(sizes * size)
    ended = here(tmp_path / "run")

    assert [plain.code, ended.code] == [0, int(refused)], ended.err
    assert ("older ones will be deleted" in ended.out) == warned
    assert ended.err.count("\n") == int(refused)
    if refused:
        assert f"no room for a checkpoint: it needs {size / 1e6:.1f} MB, " in ended.err
        assert f"at: {tmp_path / 'run' / 'checkpoints'}; fix: make room" in ended.err
        assert not names(tmp_path / "run" / "checkpoints")
        assert not events(tmp_path / "run", "start")
        assert status(tmp_path / "run")["state"] == "failed"


def test_what_makes_way_counts_as_room(tmp_path: Path, room: Room) -> None:
    save(tmp_path, 1, 2, 3)
    size = len(encoded(state(1)))
    lines: list[str] = []
    room(0.5 * size)
    checkpoint.check_room(tmp_path, size, keep=3, tell=lines.append)  # two can go
    assert len(lines) == 1
    (tmp_path / "best.pt").hardlink_to(tmp_path / "step-00000002.pt")
    (tmp_path / "step-00000001.pt").unlink()
    with pytest.raises(UserError, match="no room"):
        checkpoint.check_room(tmp_path, size, keep=3, tell=lines.append)  # one is the best
    room(0)
    (tmp_path / "best.pt").unlink()
    checkpoint.check_room(tmp_path, size, keep=1, tell=lines.append)


def test_a_disk_that_does_not_know_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(0, 0, 0))
    lines: list[str] = []
    checkpoint.check_room(tmp_path, 10**9, keep=3, tell=lines.append)
    assert lines == []


def test_what_is_no_lack_of_room_costs_no_checkpoint(tmp_path: Path, disk: Callable[..., None]) -> None:
    save(tmp_path, 1, 2)
    disk(tmp_path, 0, number=errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        save(tmp_path, 3)

    assert names(tmp_path) == ["step-00000001.pt", "step-00000002.pt"]


def test_the_best_takes_no_room_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, state(1), step=1, keep=1, best=True)
    assert (tmp_path / "best.pt").stat().st_nlink == 2

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    checkpoint.save(tmp_path, state(1), step=2, keep=1, best=True)
    assert (tmp_path / "best.pt").stat().st_nlink == 1
    assert load(io.BytesIO((tmp_path / "best.pt").read_bytes()))["step"] == 1
    assert names(tmp_path) == ["best.pt", "step-00000002.pt"]


def test_a_full_disk_does_not_end_the_training(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault F3: nothing can be written from step 4 to 6, not even that."""
    written, append = checkpoint._write, files.open_regular
    clock = {"step": 0}

    def full(path: Path, fill: Callable[..., None]) -> None:
        clock["step"] = int(path.name[5:13]) if path.name.startswith("step-") else clock["step"]
        if 4 <= clock["step"] <= 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        written(path, fill)

    def opened(path: Path, mode: str = "rb") -> IO[bytes]:
        if mode == "ab" and clock["step"] == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(path, mode)

    monkeypatch.setattr(checkpoint, "_write", full)
    monkeypatch.setattr("training.output.log.open_regular", opened)
    ended = here(tmp_path, "--save-every", "2", "--sync-every", "1")

    assert ended.code == 0, ended.err
    assert [event["step"] for event in events(tmp_path, "save")] == [2, 8, 8]
    assert [event["step"] for event in events(tmp_path, "save_failed")] == [6]
    assert ended.out.count("Cannot write") == 1
    assert ended.out.count("Could not save step") == 2
    assert (status(tmp_path)["state"], status(tmp_path)["step"]) == ("done", 8)


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ENOSPC, "make room"), (errno.EACCES, "make the folder writable")]
)
def test_only_a_last_save_that_fails_is_a_failure(
    here: Here, tmp_path: Path, disk: Callable[..., None], number: int, fix: str
) -> None:
    here(tmp_path)
    size = (tmp_path / "checkpoints" / "step-00000008.pt").stat().st_size
    (tmp_path / "checkpoints" / "best.pt").unlink()
    disk(tmp_path / "checkpoints", 1.5 * size, number=number)
    ended = here(tmp_path, "--epochs", "2", "--save-every", "4")

    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "cannot save step 16" in ended.err
    assert ended.err.endswith(f"; fix: {fix}, then start again\n")
    assert [event["step"] for event in events(tmp_path, "save_failed")] == [12, 16, 16]
    assert (status(tmp_path)["state"], status(tmp_path)["checkpoint"]) == (
        "failed",
        "checkpoints/step-00000008.pt",
    )
    assert names(tmp_path / "checkpoints") == ["step-00000008.pt"]


def test_no_half_line_in_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(run_dir=tmp_path, speaks=True)
    log.event("one")
    write = files.open_regular

    class Short:
        """A file on a disk with ten bytes left."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: bytes) -> int:
            return int(self.file.write(data[:10]))

    with monkeypatch.context() as patched:
        patched.setattr("training.output.log.open_regular", lambda *args: Short(write(*args)))
        log.event("two")
    log.event("three")

    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["one", "three"]


def test_a_log_that_takes_no_more_ends_nothing(trainers: Trainers, tmp_path: Path) -> None:
    """Slurm's log is often on the disk that is full; and a pipe has lost its reader where `tee` was killed."""
    with Path("/dev/full").open("w") as full:
        process = trainers.start(tmp_path / "full", "--epochs", "1", output=full)
        assert finish(process).code == 0
    assert status(tmp_path / "full")["state"] == "done"

    process = trainers.start(tmp_path / "pipe", "--epochs", "1")
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    assert process.wait(timeout=HANGS_S) == 0
    assert status(tmp_path / "pipe")["state"] == "done"


def test_a_failure_has_its_status_without_a_log(trainers: Trainers, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = trainers.start(tmp_path / "run", "--data-dir", str(tmp_path / "nowhere"), output=full)
        assert finish(process).code == 1
    assert "fix: sbatchgen data mnist" in status(tmp_path / "run")["reason"]


@pytest.mark.parametrize("what", ["checkpoints", "."])
def test_a_folder_that_is_removed_is_made_again(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    run_dir, start, starts = tmp_path / "run", Writer.start, list[bool]()

    def removed(writer: Writer, work: Callable[[], None], *, after: bool = False) -> None:
        if not starts:
            shutil.rmtree(run_dir / what)
        starts.append(after)
        start(writer, work, after=after)

    monkeypatch.setattr(Writer, "start", removed)
    monkeypatch.setattr("training.run.resume.RETRY_S", 0.01)
    ended = here(run_dir, "--save-every", "2", "--sync-every", "1", "--tensorboard", "off")

    assert ended.code == 0, ended.err
    assert ended.out.count("was removed, and is made again") == 1
    assert "Could not save" not in ended.out
    assert {"model.pt", "status.json"} <= {*names(run_dir)}
    assert (run_dir / "checkpoints/step-00000008.pt").exists()


def test_what_could_not_be_saved_is_tried_again_and_told(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale handle of NFS, for the first two tries of each file."""
    written, tries = checkpoint._write, dict[str, int]()
    seen: list[Any] = []

    def stale(path: Path, fill: Callable[..., None]) -> None:
        tries[path.name] = tries.get(path.name, 0) + 1
        if path.name == "step-00000002.pt" and tries[path.name] <= 2:
            raise OSError(errno.ESTALE, "Stale file handle")
        if path.name == "step-00000002.pt":
            seen.append(status(tmp_path)["reason"])
        written(path, fill)

    monkeypatch.setattr(checkpoint, "_write", stale)
    monkeypatch.setattr("training.run.resume.RETRY_S", 0.01)
    monkeypatch.setattr("training.saving.writer.Writer.pause", lambda *_: True)  # no save waits for it
    ended = here(tmp_path, "--save-every", "2", "--sync-every", "1")

    assert ended.code == 0, ended.err
    assert "Could not save step 2 ([Errno 116] Stale file handle)" in ended.out
    assert "Step 2 is saved after all" in ended.out
    assert seen == ["Could not save step 2 ([Errno 116] Stale file handle)"]
    assert [event["step"] for event in events(tmp_path, "save_failed")] == [2]
    assert 2 in [event["step"] for event in events(tmp_path, "save")]
    assert status(tmp_path)["state"] == "done"


@pytest.mark.parametrize("step", [2, 8])
def test_a_file_system_that_does_not_answer_is_told_while_the_training_waits(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A hard mount of NFS whose server is away; the save of the last step is that of the end."""
    written = checkpoint._write

    def stuck(path: Path, fill: Callable[..., None]) -> None:
        why = f"The save of step {step} has not ended: the training has waited 0.05 s for its file system"
        while path.name == f"step-{step:08}.pt" and status(tmp_path)["reason"] != why:
            time.sleep(0.01)
        written(path, fill)

    monkeypatch.setattr(checkpoint, "_write", stuck)
    monkeypatch.setattr("training.run.resume.LATE_S", 0.05)
    ended = here(tmp_path, "--save-every", "2", "--sync-every", "1")

    assert ended.code == 0, ended.err
    late = [event["step"] for event in events(tmp_path, "save_late")]
    assert late.count(step) == 1  # on a busy machine, other saves may be late, too
    assert ended.out.count("s for its file system, and waits on") == len(late)
    assert step in [event["step"] for event in events(tmp_path, "save")]
    assert (status(tmp_path)["state"], status(tmp_path)["reason"]) == ("done", None)


def test_the_weights_are_written_if_the_last_checkpoint_is_not(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(checkpoint, "save", fails)
    ended = here(tmp_path)
    assert ended.code == 1
    assert ended.err.endswith("; fix: make the folder writable, then start again\n")
    assert (tmp_path / "model.pt").exists()
    assert status(tmp_path)["state"] == "failed"
