"""MNIST's files, in IDX format: a magic number, the sizes as big-endian 32-bit numbers, then uint8 values.

Source: http://yann.lecun.com/exdb/mnist/ (section "file formats").
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import torch

from training.errors import UserError

FOLDERS = ("", "raw", "MNIST/raw")  # MNIST/raw is torchvision's
PARTS = {"train": "train", "test": "t10k"}
CLASSES = 10
MOST = 1 << 32  # values in a file: a small .gz file may unpack to more


def read_mnist(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One part (train or test) of MNIST: images (N, 1, H, W) uint8 and labels (N,) int64, on the CPU.

    The files are in one of FOLDERS in the folder, plain or with .gz. UserError if one is missing or wrong.
    """
    images_path, labels_path = (
        _find(folder, f"{PARTS[part]}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")
    )
    images_NHW, labels_N = read_idx(images_path, dimensions=3), read_idx(labels_path, dimensions=1)
    if len(images_NHW) != len(labels_N) or not len(labels_N):
        what = f"{len(images_NHW)} images but {len(labels_N)} labels"
        raise UserError(what, at=str(labels_path), fix=_fix(folder))
    if int(labels_N.max()) >= CLASSES:
        what = f"a label is {int(labels_N.max())}, and MNIST has {CLASSES} classes"
        raise UserError(what, at=str(labels_path), fix=_fix(folder))
    return images_NHW.unsqueeze(1), labels_N.long()


def read_idx(path: Path, *, dimensions: int) -> torch.Tensor:
    """The uint8 array in an IDX file; raises UserError if it cannot be read or has another format."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read_array(cast("IO[bytes]", file), dimensions)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        what = str(error) if isinstance(error, ValueError) else f"cannot read it ({error})"
        raise UserError(what, at=str(path), fix=_fix(path.parent)) from error


def _read_array(file: IO[bytes], dimensions: int) -> torch.Tensor:
    """The array; reads no more than the header says. Raises ValueError if the format or size is wrong."""
    header = file.read(4 + 4 * dimensions)
    if header[:4] != bytes((0, 0, 8, dimensions)) or len(header) < 4 + 4 * dimensions:
        raise ValueError(f"not an IDX file of {dimensions} dimensions")
    sizes = struct.unpack(f">{dimensions}I", header[4:])
    values = math.prod(sizes)
    if values > MOST:
        raise ValueError(f"its header says {values} values, more than {MOST}")
    data = bytearray(file.read(values + 1))
    if len(data) != values:
        held = f"more than {values}" if len(data) > values else len(data)
        raise ValueError(f"holds {held} values where its header says {values}")
    if not values:
        return torch.empty(sizes, dtype=torch.uint8)
    return torch.frombuffer(data, dtype=torch.uint8).view(sizes)


def _find(folder: Path, name: str) -> Path:
    for place in FOLDERS:
        for path in (folder / place / name, folder / place / f"{name}.gz"):
            if path.is_file():
                return path
    raise UserError(f"{name} was not found", at=str(folder), fix=_fix(folder))


def _fix(folder: Path) -> str:
    return f"sbatchgen data mnist --to {folder} (downloads it; with --synthetic it is made here)"
