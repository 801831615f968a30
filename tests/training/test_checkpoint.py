"""Checkpoints are whole, checked and never silently given up."""

from __future__ import annotations

import copy
import errno
import io
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import torch

from training.config import Config, critical_settings
from training.errors import UserError
from training.model.optimizer import Ema, Updater
from training.run.resume import _apply
from training.saving import checkpoint
from training.saving.reading import CorruptError, State, load

from . import damages
from .states import Evil, encoded, found_step, names, save, state


def test_round_trip() -> None:
    back = load(io.BytesIO(encoded(state(4))))

    assert back["step"] == 4
    assert torch.equal(back["model"]["w"], torch.full((64, 64), 4.0))


def test_saving_takes_no_second_copy(tmp_path: Path) -> None:
    big = state(1) | {"model": {"w": torch.ones(1 << 21)}}
    (tmp_path / "first").mkdir()
    checkpoint.save(tmp_path / "first", state(1), step=1, keep=1, best=False)  # imports what saving needs
    tracemalloc.start()
    try:
        size = checkpoint.save(tmp_path, big, step=1, keep=1, best=False)
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


def test_no_damage_is_loaded() -> None:
    """Of each kind fifty: what is there is refused, or is what was written all the same."""
    outcomes = damages.at_random(50 * len(damages.KINDS))

    assert outcomes.keys() == {"refused", "the same"}
    assert outcomes["refused"] > 400


@pytest.mark.proof
def test_no_bit_of_the_directory_changes_what_is_loaded() -> None:
    """One of them makes torch take a tensor for a folder: it would have what was in memory before."""
    outcomes = damages.each_bit_of_the_directory()

    assert outcomes.keys() == {"refused", "the same"}
    assert outcomes["refused"] > 2000


def as_folder(data: bytes) -> bytes:
    """The same archive, with its first tensor marked as a folder."""
    place = data.rindex(b"/data/0")
    entry = data.rindex(b"PK\1\2", 0, place)
    return data[: entry + 38] + bytes([data[entry + 38] | 0x10]) + data[entry + 39 :]


def test_weights_that_torch_would_not_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.pt"
    torch.save({"w": torch.ones(99)}, path)
    assert checkpoint.decode_weights(path)["w"].sum() == 99
    path.write_bytes(as_folder(path.read_bytes()))

    with pytest.raises(UserError, match="data/0 is not stored as torch"):
        checkpoint.decode_weights(path)


def packed(path: Path) -> None:
    """Four megabytes of zeros in four kilobytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 22))


def overlapping(path: Path) -> None:
    """A thousand names of the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 16))
        for number in range(1000):
            archive.filelist.append(copy.copy(archive.filelist[0]))
            archive.filelist[-1].filename = f"archive/data/{number}"


@pytest.mark.parametrize(("make", "said"), [(packed, "not stored as"), (overlapping, "its parts overlap")])
def test_a_small_file_that_takes_long_to_check_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    save(tmp_path, 1)
    make(tmp_path / "step-00000002.pt")
    lines: list[str] = []

    assert found_step(tmp_path, lines) == 1
    assert said in lines[0]


def kept(**state: Any) -> dict[str, Any]:
    """What an optimizer keeps for its only weight."""
    return {"state": {0: state}, "param_groups": [{"params": [0], "lr": 1}]}


def adam(**other: Any) -> dict[str, Any]:
    """The same, of AdamW."""
    means = {name: torch.ones(64, 64) for name in ("exp_avg", "exp_avg_sq")}
    return kept(**({"step": torch.tensor(4.0)} | means | other))


def applied(path: Path, state: State, _file: IO[bytes]) -> int:
    """The step of a state, after it was loaded into a model of one weight and AdamW."""
    model, config = torch.nn.Module(), Config()
    model.w = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    settings = critical_settings(config, batch=0) | {"train_samples": 250, "data_checksum": ""}
    updater = Updater(optimizer=optimizer, ema=Ema(model, 0.9))
    session: Any = SimpleNamespace(config=config, settings=settings, model=model, updater=updater)
    step = _apply(session, state, path.name).step
    model.w.grad = torch.ones(64, 64)
    optimizer.step()
    return step


NO_STATE: dict[str, dict[str, Any]] = {
    "a step below 0": {"step": -1, "consumed": 10**9},
    "a step of thirty digits": {"step": 10**30},
    "a step of thousands of digits": {"step": 10**5000},
    "another step": {"step": 3},
    "a step that is a text": {"step": "2"},
    "a step that is a tensor": {"step": torch.tensor([2, 2])},
    "more epochs than there are": {"epoch": 10**9},
    "more images than there are": {"consumed": 251},
    "no best": {"best": float("nan")},
    "two sums": {"sums": [0.0, 0.0]},
    "sums without an end": {"sums": [0.0, 0.0, float("inf")]},
    "no processes": {"world": None},
    "a list of weights": {"model": [torch.ones(3)]},
    "weights without names": {"model": {1: torch.ones(3)}},
    "weights without values": {"model": {"w": torch.ones(3, device="meta")}},
    "sparse weights": {"model": {"w": torch.ones(3).to_sparse()}},
    "means of no weights": {"ema": [1]},
    "a scale that is a text": {"scaler": {"scale": "x"}},
    "no optimizer": {"optimizer": None},
    "an optimizer without groups": {"optimizer": {"state": {}}},
    "groups without weights": {"optimizer": {"state": {}, "param_groups": [{"lr": 1}]}},
    "groups of no numbers": {"optimizer": {"state": {}, "param_groups": [{"params": [[1]], "lr": 1}]}},
    "a state that is a list": {"optimizer": {"state": [1], "param_groups": []}},
    "a state of texts": {"optimizer": adam(step="x")},
    "a state before the first step": {"optimizer": adam(step=torch.tensor(-1.0))},
    "a step without a number": {"optimizer": adam(step=None)},
    "a step of two parts": {"optimizer": adam(step=torch.tensor(1j))},
    "a step that is not a number": {"optimizer": adam(step=torch.tensor(float("nan")))},
    "a step that is true": {"optimizer": adam(step=torch.tensor(True))},
    "means that are no tensors": {"optimizer": adam(exp_avg=[1])},
    "means without values": {"optimizer": adam(exp_avg=torch.ones((64, 64), device="meta"))},
    "sparse means": {"optimizer": adam(exp_avg=torch.ones(64, 64).to_sparse())},
    "means of another shape": {"optimizer": adam(exp_avg=torch.ones(3))},
    "means of other names": {"optimizer": kept(momentum_buffer=torch.ones(64, 64))},
    "a weight too many": {"optimizer": {"state": {}, "param_groups": [{"params": [0, 1], "lr": 1}]}},
    "a mean of another shape": {"ema": {"w": torch.ones(())}},
    "no settings": {"config": None},
    "settings that are lists": {"config": {"train_samples": 250, "lr": [1]}},
    "a setting of thousands of digits": {"config": {"train_samples": 250, "seed": 10**5000}},
    "another format": {"format": "new"},
    "a format of two numbers": {"format": torch.ones(2)},
}


@pytest.mark.parametrize("what", NO_STATE)
def test_what_no_training_saves_is_passed_over(tmp_path: Path, what: str) -> None:
    for step, changes in ((1, {}), (2, NO_STATE[what])):
        made = {"format": 1, **state(step), "optimizer": adam(), **changes}
        torch.save(made, tmp_path / f"step-{step:08}.pt")
    lines: list[str] = []

    assert checkpoint.find(tmp_path, "auto", lines.append, applied) == 1
    assert len(lines) == 1
    assert "step-00000002.pt is corrupt" in lines[0]
    assert names(tmp_path) == ["step-00000001.pt", "step-00000002.pt.corrupt"]


@pytest.mark.parametrize("weights", [{1: torch.ones(3)}, {"model": {"w": 3}}, [torch.ones(3)]])
def test_weights_of_no_form(tmp_path: Path, weights: Any) -> None:
    torch.save(weights, tmp_path / "theirs.pt")

    with pytest.raises(UserError, match="no weights found"):
        checkpoint.decode_weights(tmp_path / "theirs.pt")


def test_what_was_checked_is_what_is_taken(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def take(path: Path, state: State, file: IO[bytes]) -> list[int]:
        path.unlink()
        path.write_bytes(b"another")
        return [state["step"], load(file)["step"]]

    assert checkpoint.find(tmp_path, "auto", lambda _line: None, take) == [1, 1]


def test_only_if_an_older_one_fits_the_model_the_others_are_wrong(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    lines: list[str] = []

    def fitting(*steps: int) -> checkpoint.Use:
        def take(_path: Path, state: State, _file: IO[bytes]) -> int:
            if state["step"] not in steps:
                raise checkpoint.MisfitError(f"step {state['step']} does not fit")
            return int(state["step"])

        return take

    with pytest.raises(UserError, match="step 3 does not fit"):
        checkpoint.find(tmp_path, "auto", lines.append, fitting())
    assert not lines
    assert checkpoint.find(tmp_path, "auto", lines.append, fitting(1)) == 1
    assert names(tmp_path) == ["step-00000001.pt", "step-00000002.pt.corrupt", "step-00000003.pt.corrupt"]


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


NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes. Error code 12"


@pytest.mark.parametrize(
    ("error", "renamed"),
    [
        (RuntimeError(NO_MEMORY.format(1000)), False),
        (RuntimeError(NO_MEMORY.format(10**15)), True),
        (MemoryError(), False),
    ],
)
def test_a_machine_without_memory_says_nothing_of_what_is_in_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, *, renamed: bool
) -> None:
    """A file that asks for more bytes than it holds is damaged."""
    save(tmp_path, 1)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(UserError if renamed else type(error)):
        checkpoint.find(tmp_path, "auto", lambda _line: None)
    assert names(tmp_path) == [f"step-00000001.pt{'.corrupt' * renamed}"]


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
        with pytest.raises(CorruptError):
            load(buffer)
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

    checkpoint.set_aside_after(folder, 1, lines.append)
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
