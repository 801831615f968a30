"""CIFAR-10: its two kinds of files, what is refused in them, and moving and mirroring on the device."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from training.data.cifar import BINARY, PYTHON, VALUES, read_cifar10
from training.data.splits import InMemory, Norm, hash_indices, shift_and_flip
from training.errors import UserError

from .states import everything
from .trainers import Here, status

NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def text(value: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    return b"T" + struct.pack("<i", len(value)) + value


def pickled(pixels: bytes, labels: list[int]) -> bytes:
    """A file of the Python version, as NumPy and Python 2 wrote it."""
    kind = (
        b"cnumpy\ndtype\n("
        + text(b"u1")
        + b"K\0K\1tR(K\3"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0t" + text(b"b") + b"tR"
    shape = b"(M" + struct.pack("<H", len(labels)) + b"M" + struct.pack("<H", VALUES) + b"t"
    array = made + b"(K\1" + shape + kind + b"\x89" + text(pixels) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\2}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def write(folder: Path, *, binary: bool, images: int = 12) -> None:
    """All six files, the same in either version."""
    place = folder / (BINARY if binary else PYTHON)
    place.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    for name in NAMES:
        pixels = torch.randint(256, (images, VALUES), dtype=torch.uint8, generator=generator)
        rows = [bytes(row.tolist()) for row in pixels]
        labels = [i % 10 for i in range(images)]
        if binary:
            data = b"".join(bytes([label]) + row for label, row in zip(labels, rows, strict=True))
            (place / f"{name}.bin").write_bytes(data)
        else:
            (place / name).write_bytes(pickled(b"".join(rows), labels))


def test_both_versions_hold_the_same(tmp_path: Path) -> None:
    for binary in (True, False):
        write(tmp_path / str(binary), binary=binary)
    first, other = (read_cifar10(tmp_path / str(binary), "train") for binary in (True, False))
    inside, _ = read_cifar10(tmp_path / "False" / PYTHON, "test")

    assert first[0].shape == (60, 3, 32, 32)
    assert first[0].dtype == torch.uint8
    assert first[1].tolist() == [i % 10 for i in range(12)] * 5
    assert torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])
    assert len(inside) == 12


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "data_batch_3",
            None,
            r"data_batch_3 of CIFAR-10 was not found; .*; fix: unpack cifar-10-binary.tar.gz in",
        ),
        ("data_batch_3", b"", "not a file of CIFAR-10"),
        ("data_batch_3", b"cposix\nsystem\n(S'false'\ntR.", r"it asks for posix\.system"),
        ("data_batch_3", pickled(bytes(VALUES), [3, 4]), "3072 values and 2 labels"),
        ("data_batch_3", pickled(bytes(VALUES), [10]), "3072 values and 1 labels"),
        ("data_batch_3", b"K\1.", "not a file of CIFAR-10"),
        ("data_batch_3", b"}.", "not a file of CIFAR-10"),
        ("data_batch_3", pickled(bytes(VALUES), [1])[:-40], "not a file of CIFAR-10"),
        ("data_batch_3.bin", bytes(VALUES), "3072 bytes are not a whole number of images"),
        ("data_batch_3.bin", bytes([11]) + bytes(VALUES), "a label is 11"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    write(tmp_path, binary=False)
    path = tmp_path / PYTHON / name
    path.write_bytes(data) if data is not None else path.unlink()

    with pytest.raises(UserError, match=message):
        read_cifar10(tmp_path if path.suffix != ".bin" else tmp_path / PYTHON, "train")


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


def test_a_run_on_it_resumes_exactly(here: Here, tmp_path: Path) -> None:
    write(tmp_path / "data", binary=True)
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
