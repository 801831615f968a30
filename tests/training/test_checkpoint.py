"""Checkpoints are whole, checked and never silently given up."""

from __future__ import annotations

import errno
import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

from training.errors import UserError
from training.saving import checkpoint

from .states import Evil, encoded, found_step, names, save, state


def test_round_trip() -> None:
    back = checkpoint.decode(io.BytesIO(encoded(state(4))))

    assert back["step"] == 4
    assert torch.equal(back["model"]["w"], torch.full((64, 64), 4.0))


def test_saving_takes_no_second_copy(tmp_path: Path) -> None:
    big = state(1) | {"model": {"w": torch.ones(1 << 21)}}
    tracemalloc.start()
    try:
        _, size = checkpoint.save(tmp_path, big, step=1, keep=1, best=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size == (tmp_path / "step-00000001.pt").stat().st_size > 1 << 23
    assert peak < size / 4


def test_keeps_the_newest_and_the_best_also_of_earlier_starts(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(1), step=1, keep=9, best=True)
    save(tmp_path, 2, 3, 100000000)
    save(tmp_path, 4, keep=2)

    assert names(tmp_path) == ["best.pt", "step-00000004.pt", "step-100000000.pt"]


def test_a_failed_write_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)

    assert names(tmp_path) == ["step-00000001.pt"]


@pytest.mark.parametrize("point", ["fsync", "replace"])
def test_a_save_that_dies_half_way_is_never_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    save(tmp_path, 1)
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "fsync" if point == "fsync" else "replace", lambda *_: os._exit(9))
        monkeypatch.setattr(Path, "replace", lambda *_: os._exit(9))
        save(tmp_path, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    lines: list[str] = []

    assert len(names(tmp_path)) == 2  # one of them is what the dead save left
    checkpoint.prepare(tmp_path, "auto", lines.append)
    assert names(tmp_path) == ["step-00000001.pt"]
    assert found_step(tmp_path, lines) == 1


@pytest.mark.parametrize("share_left", [0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_one_is_passed_over(tmp_path: Path, share_left: float) -> None:
    save(tmp_path, 1, 2)
    newest = tmp_path / "step-00000002.pt"
    newest.write_bytes(newest.read_bytes()[: int(newest.stat().st_size * share_left)])
    lines: list[str] = []

    assert found_step(tmp_path, lines) == 1
    assert names(tmp_path) == ["step-00000001.pt", "step-00000002.pt.corrupt"]
    assert "step-00000002.pt is corrupt" in lines[0]


@pytest.mark.parametrize("place", [0.3, 0.5, 0.7])
def test_a_flipped_byte_is_noticed(tmp_path: Path, place: float) -> None:
    save(tmp_path, 1, 2)
    newest = tmp_path / "step-00000002.pt"
    data = bytearray(newest.read_bytes())
    data[int(len(data) * place)] ^= 1
    newest.write_bytes(data)
    lines: list[str] = []

    assert found_step(tmp_path, lines) == 1
    assert "checksum" in lines[0]


@pytest.mark.parametrize("kind", ["flipped", "zeroed"])
def test_no_damage_is_loaded(kind: str) -> None:
    """A hundred random places: what is there is refused, or is what was written all the same."""
    whole = encoded(state(1) | {"model": {"w": torch.arange(64.0 * 64).view(64, 64) + 1}})
    places = torch.randint(len(whole), (100,), generator=torch.Generator().manual_seed(1)).tolist()
    refused = 0
    for place in places:
        data = bytearray(whole)
        if kind == "flipped":
            data[place] ^= 1 << place % 8
        else:
            page = place // 4096 * 4096
            data[page : page + 4096] = bytes(len(data[page : page + 4096]))
        try:
            back = checkpoint.decode(io.BytesIO(data))
        except checkpoint.CorruptError:
            refused += 1
        else:
            assert torch.equal(back["model"]["w"], torch.arange(64.0 * 64).view(64, 64) + 1)
            assert back["step"] == 1

    assert refused > 80


def test_a_disk_that_fails_says_nothing_of_what_is_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def fail(_: zipfile.ZipFile) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(zipfile.ZipFile, "testzip", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        checkpoint.find(tmp_path, "auto", lambda _line: None)
    assert names(tmp_path) == ["step-00000001.pt"]


def test_without_a_good_one_nothing_starts_afresh(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000001.pt").write_bytes(b"no")

    for _ in range(2):  # the second start finds only what the first one renamed
        with pytest.raises(UserError, match=r"all checkpoints are corrupt.*--resume off"):
            checkpoint.find(tmp_path, "auto", lambda _line: None)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "ran"))
    evil = {"format": 1, **state(1), "step": Evil()}
    for kind in ("ours", "old", "bare"):
        buffer = io.BytesIO()
        if kind == "bare":
            pickle.dump(evil, buffer)
        else:
            torch.save(evil, buffer, _use_new_zipfile_serialization=kind == "ours")
        (tmp_path / "weights.pt").write_bytes(buffer.getvalue())
        with pytest.raises(checkpoint.CorruptError):
            checkpoint.decode(buffer)
        with pytest.raises(UserError, match="other values than tensors"):
            checkpoint.decode_weights(tmp_path / "weights.pt")
    assert not (tmp_path / "ran").exists()


def test_a_later_format_is_refused_but_not_called_corrupt(tmp_path: Path) -> None:
    save(tmp_path, 1)
    buffer = io.BytesIO()
    torch.save({"format": 2, **state(1)}, buffer)
    (tmp_path / "step-00000009.pt").write_bytes(buffer.getvalue())

    with pytest.raises(UserError, match="format 2"):
        checkpoint.find(tmp_path, "auto", lambda _line: None)
    assert "step-00000009.pt" in names(tmp_path)


def test_resume_by_name_path_and_not_at_all(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    lines: list[str] = []

    assert found_step(tmp_path, lines, "step-00000001.pt") == 1
    assert found_step(tmp_path, lines, str(tmp_path / "step-00000001.pt")) == 1
    assert checkpoint.find(tmp_path, "off", lines.append) is None
    with pytest.raises(UserError, match="was not found"):
        checkpoint.find(tmp_path, "step-00000007.pt", lines.append)


def test_off_and_going_back_leave_nothing_that_auto_would_take(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    save(folder, 1, 2)
    lines: list[str] = []

    checkpoint.drop_after(folder, 1, lines.append)
    assert found_step(folder, lines) == 1
    checkpoint.prepare(folder, "off", lines.append)
    assert checkpoint.find(folder, "auto", lines.append) is None
    assert names(tmp_path / "checkpoints.old-1") == ["step-00000001.pt", "step-00000002.pt.abandoned"]


@pytest.mark.parametrize("key", ["model", "model_state_dict", "state_dict", ""])
def test_weights_of_other_trainers(tmp_path: Path, key: str) -> None:
    weights = {"module.w": torch.ones(2)}
    torch.save({key: weights, "epoch": 3} if key else weights, tmp_path / "theirs.pt")

    assert torch.equal(checkpoint.decode_weights(tmp_path / "theirs.pt")["module.w"], torch.ones(2))


def test_a_file_without_weights(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "none.pt")

    with pytest.raises(UserError, match="no weights found"):
        checkpoint.decode_weights(tmp_path / "none.pt")
