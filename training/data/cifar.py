"""CIFAR-10's files, of its binary or its Python version; without NumPy, and no code in a pickle is run.

Source: https://www.cs.toronto.edu/~kriz/cifar.html (section "Dataset layout").

Shape suffixes: N images, C channels, H height, W width.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from training.errors import UserError, one_line

PARTS = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
SHAPE_CHW = (3, 32, 32)
VALUES = 3 * 32 * 32
CLASSES = 10
# raised for a file that cannot be read, or a pickle of something else
WRONG = (OSError, EOFError, pickle.UnpicklingError, ValueError, TypeError, AttributeError, LookupError)


def read_cifar10(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One part of CIFAR-10: images (N, 3, 32, 32) uint8 and labels (N,) int64, on the CPU.

    Args:
        folder: Has the files of either version, or their folder as it is unpacked.
        part: train or test.

    Raises:
        UserError: If a file is missing or wrong.
    """
    read = [_read(_find(folder, name)) for name in PARTS[part]]
    images_NCHW = torch.cat([images for images, _ in read]).view(-1, *SHAPE_CHW)
    return images_NCHW, torch.cat([labels for _, labels in read]).long()


def _find(folder: Path, name: str) -> Path:
    places = [folder / BINARY / f"{name}.bin", folder / f"{name}.bin", folder / PYTHON / name, folder / name]
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        fix = f"unpack cifar-10-binary.tar.gz in {folder}"
        raise UserError(f"{name} of CIFAR-10 was not found", at=str(folder), fix=fix)
    return path


def _read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 3072) and labels (N,), both uint8."""
    try:
        data = path.read_bytes()
        if path.suffix == ".bin":
            return _from_binary(data)
        return _from_python(data)
    except WRONG as error:
        what = f"not a file of CIFAR-10 ({one_line(error)[:200]})"
        raise UserError(what, at=str(path), fix="unpack its archive again") from error


def _from_binary(data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    if not data or len(data) % (1 + VALUES):
        raise ValueError(f"{len(data)} bytes are not a whole number of images")
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, 1 + VALUES)
    images, labels = rows[:, 1:], rows[:, 0]
    if int(labels.max()) >= CLASSES:
        raise ValueError(f"a label is {int(labels.max())}")
    return images, labels


def _from_python(data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    value = _Plain(io.BytesIO(data), encoding="bytes").load()
    pixels, labels = value[b"data"].values, [int(label) for label in value[b"labels"]]
    if not labels:
        raise ValueError("no labels in it")
    if len(pixels) != len(labels) * VALUES or not 0 <= min(labels) <= max(labels) < CLASSES:
        raise ValueError(f"{len(pixels)} values and {len(labels)} labels")
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(-1, VALUES)
    return images, torch.tensor(labels, dtype=torch.uint8)


class _StandIn:
    """Takes the place of a NumPy array, of which it has the bytes, or of a data type."""

    values = b""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and isinstance(state[-1], bytes):
            self.values = state[-1]


class _Plain(pickle.Unpickler):
    """Reads only the objects that these files have."""

    names = {  # noqa: RUF012 - constant
        ("numpy.core.multiarray", "_reconstruct"): _StandIn,
        ("numpy", "ndarray"): _StandIn,
        ("numpy", "dtype"): _StandIn,
    }

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name in the pickle; raises pickle.UnpicklingError for any other name."""
        if (module, name) not in self.names:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self.names[module, name]
