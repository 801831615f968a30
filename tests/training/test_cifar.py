"""CIFAR-10: its two kinds of files, what is refused in them, and moving and mirroring on the device."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest
import torch

from training.data.arrays import BINARY, CIFAR_VALUES, PYTHON, read_cifar10
from training.data.splits import InMemory, Norm, hash_indices, shift_and_flip
from training.errors import UserError

from . import vision
from .states import everything
from .trainers import Here, status

vision.fit()
from torchvision.datasets import CIFAR10  # type: ignore[import-untyped,unused-ignore]  # noqa: E402 - after vision.fit

NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def write(folder: Path, *, images: int = 12) -> None:
    """All six files of the binary version."""
    place = folder / BINARY
    place.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    for name in NAMES:
        pixels = torch.randint(256, (images, CIFAR_VALUES), dtype=torch.uint8, generator=generator)
        rows = (bytes([i % 10, *row.tolist()]) for i, row in enumerate(pixels))
        (place / f"{name}.bin").write_bytes(b"".join(rows))


def write_pickles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the Python version, and torchvision knows them as it knows the real ones."""
    write(folder / "binary")
    place = folder / PYTHON
    place.mkdir()
    known = {}
    for name in NAMES:
        data = (folder / "binary" / BINARY / f"{name}.bin").read_bytes()
        rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, 1 + CIFAR_VALUES)
        pickled = pickle.dumps({"data": rows[:, 1:].numpy(), "labels": rows[:, 0].tolist()})
        (place / name).write_bytes(pickled)
        known[name] = hashlib.md5(pickled).hexdigest()  # noqa: S324 - torchvision's
    names = pickle.dumps({"label_names": [str(i) for i in range(10)]})
    (place / "batches.meta").write_bytes(names)
    meta = CIFAR10.meta | {"md5": hashlib.md5(names).hexdigest()}  # noqa: S324
    monkeypatch.setattr(CIFAR10, "train_list", [[name, known[name]] for name in NAMES[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [[name, known[name]] for name in NAMES[5:]])
    monkeypatch.setattr(CIFAR10, "meta", meta)


def test_both_versions_hold_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pickles(tmp_path, monkeypatch)
    first, other = (read_cifar10(folder, "train") for folder in (tmp_path / "binary", tmp_path))
    inside, _ = read_cifar10(tmp_path / PYTHON, "test")

    assert first[0].shape == (60, 3, 32, 32)
    assert first[0].dtype == torch.uint8
    assert first[1].tolist() == [i % 10 for i in range(12)] * 5
    assert torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])
    assert len(inside) == 12


def test_a_pickle_that_is_not_theirs_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pickles(tmp_path, monkeypatch)
    (tmp_path / PYTHON / "test_batch").write_bytes(b"cposix\nsystem\n(S'touch run'\ntR.")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match="not the files of CIFAR-10"):
        read_cifar10(tmp_path, "test")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"cannot read CIFAR-10 .*data_batch_3.bin; fix: unpack cifar-10-binary.tar.gz in"),
        (b"", "not a file of CIFAR-10: 0 bytes"),
        (bytes(CIFAR_VALUES), "3072 bytes"),
        (bytes([11]) + bytes(CIFAR_VALUES), "3073 bytes, with other labels"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, data: bytes | None, message: str) -> None:
    write(tmp_path)
    path = tmp_path / BINARY / "data_batch_3.bin"
    path.write_bytes(data) if data is not None else path.unlink()

    with pytest.raises(UserError, match=message):
        read_cifar10(tmp_path, "train")


def test_an_image_is_cut_from_itself_with_a_border() -> None:
    x_BCHW = torch.arange(1, 2 * 3 * 5 * 6 + 1).view(2, 3, 5, 6).repeat(50, 1, 1, 1)
    random_B = hash_indices(torch.arange(100), 7)
    got_BCHW = shift_and_flip(x_BCHW, random_B, 2)
    for x_CHW, number, got_CHW in zip(x_BCHW, random_B.tolist(), got_BCHW, strict=True):
        padded = torch.nn.functional.pad(x_CHW, (2, 2, 2, 2))
        row, column = number // 2 % 5, number // 10 % 5
        cut = padded[:, row : row + 5, column : column + 6]
        assert torch.equal(got_CHW, cut.flip(2) if number % 2 else cut)


def test_what_is_done_to_a_sample_depends_on_it_and_the_epoch_alone() -> None:
    images = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    split = InMemory(
        images_NCHW=images, labels_N=torch.arange(40), norm=Norm(std=(1 / 255,)), shift=2, seed=5
    )
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    whole = next(iter(split.batches([torch.arange(40)], epoch=3)))[0]
    parts = torch.cat([x for x, _ in split.batches(list(torch.split(order, 7)), epoch=3)])
    other = next(iter(split.batches([torch.arange(40)], epoch=4)))[0]

    assert torch.equal(parts, whole[order])
    assert (whole != other).flatten(1).any(dim=1).sum() > 30


def test_all_moves_are_equally_likely() -> None:
    numbers = hash_indices(torch.arange(81 * 2 * 500), 123)
    moves = torch.bincount(numbers % 2 + numbers // 2 % 9 * 2 + numbers // 18 % 9 * 18, minlength=162)

    assert int(numbers.min()) >= 0
    assert len(moves) == 162
    assert (moves - 500).abs().max() < 5 * 500**0.5
    assert not torch.equal(hash_indices(torch.arange(9), 1), hash_indices(torch.arange(9), 2))


@pytest.mark.proof
def test_a_run_on_it_resumes_exactly(here: Here, tmp_path: Path) -> None:
    write(tmp_path / "data")
    flags = (
        "--dataset",
        "cifar10",
        "--data-dir",
        str(tmp_path / "data"),
        "--batch-size",
        "16",
        "--epochs",
        "2",
    )
    whole = here(tmp_path / "whole", *flags, "--save-every", "1", "--keep", "9")
    half = str(tmp_path / "whole" / "checkpoints" / "step-00000006.pt")
    rest = here(tmp_path / "rest", *flags, "--resume", half)

    assert [whole.code, rest.code] == [0, 0], rest.err
    assert status(tmp_path / "rest")["step"] == 8
    first, other = everything(tmp_path / "whole")["model"], everything(tmp_path / "rest")["model"]
    assert all(torch.equal(first[name], other[name]) for name in first)
