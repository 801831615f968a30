"""CIFAR-10's files: its binary version is read here, its Python version by torchvision.

Source: https://www.cs.toronto.edu/~kriz/cifar.html (section "Dataset layout").

Shape suffixes: N images, C channels, H height, W width.
"""

from __future__ import annotations

from pathlib import Path

import torch

from training.data.images import import_torchvision
from training.errors import UserError, one_line

PARTS = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
VALUES = 3 * 32 * 32
CLASSES = 10


def read_cifar10(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One part (train or test) of CIFAR-10: images (N, 3, 32, 32) uint8 and labels (N,) int64, on the CPU.

    The folder has the files of either version, or their folder as it is unpacked. UserError if one is missing
    or wrong.
    """
    root = folder.parent if folder.name == PYTHON else folder
    if (root / PYTHON).is_dir():
        return _from_python(root, part)
    inside = folder / BINARY if (folder / BINARY).is_dir() else folder
    read = [_from_binary(inside / f"{name}.bin") for name in PARTS[part]]
    images_NCHW = torch.cat([images for images, _ in read]).view(-1, 3, 32, 32)
    return images_NCHW, torch.cat([labels for _, labels in read]).long()


def _from_binary(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 3072) and labels (N,), both uint8."""
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        fix = f"unpack cifar-10-binary.tar.gz in {path.parent}"
        raise UserError(f"cannot read CIFAR-10 ({one_line(error)})", at=str(path), fix=fix) from error
    whole = bool(data) and not len(data) % (1 + VALUES)
    rows = torch.frombuffer(data, dtype=torch.uint8).view(-1, 1 + VALUES) if whole else torch.empty(0, 1)
    if not whole or int(rows[:, 0].max()) >= CLASSES:
        what = f"not a file of CIFAR-10: {len(data)} bytes" + ", with other labels" * whole
        raise UserError(what, at=str(path), fix="unpack its archive again")
    return rows[:, 1:], rows[:, 0]


def _from_python(root: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of the Python version, which is of pickles: torchvision loads only those that it knows."""
    import_torchvision("CIFAR-10's Python version")
    from torchvision.datasets import CIFAR10  # type: ignore[import-not-found,import-untyped,unused-ignore]

    try:
        read = CIFAR10(str(root), train=part == "train")
    except (RuntimeError, OSError) as error:
        what, fix = f"not the files of CIFAR-10 ({one_line(error)[:200]})", "unpack their archive again"
        raise UserError(what, at=str(root / PYTHON), fix=fix) from error
    images_NHWC = torch.from_numpy(read.data)
    return images_NHWC.permute(0, 3, 1, 2).contiguous(), torch.tensor(read.targets)
