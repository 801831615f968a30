"""The files of MNIST and CIFAR-10, which are read into memory.

MNIST's files have the IDX format: a magic number, the sizes as big-endian 32-bit numbers, then uint8 values
(http://yann.lecun.com/exdb/mnist/, section "file formats"). This module reads CIFAR-10's binary version, and
torchvision its Python version (https://www.cs.toronto.edu/~kriz/cifar.html, section "Dataset layout").
Shape suffixes: N images, C channels, H height, W width.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import torch

from training.data.images import import_torchvision
from training.errors import UserError, one_line

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CLASSES = 10  # of MNIST and of CIFAR-10
MNIST_FOLDERS = ("", "raw", "MNIST/raw")  # torchvision makes MNIST/raw
MAX_VALUES = 1 << 32  # the most values of a file, because a small .gz file could unpack to many more
# The files of CIFAR-10, and the folders that its two archives unpack to.
CIFAR_PARTS = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
CIFAR_VALUES = 3 * 32 * 32  # of one image; in the binary version its label precedes them


def read_mnist(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return MNIST's images (N, 1, H, W) uint8 and labels (N,) int64 of the part "train" or "test".

    Raises UserError if a file is missing or wrong.
    """
    images_path, labels_path = (_find(folder, name) for name in FILES[part])
    images_NHW, labels_N = read_idx(images_path, dimensions=3), read_idx(labels_path, dimensions=1)
    if len(images_NHW) != len(labels_N) or not len(labels_N):
        what = f"{len(images_NHW)} images but {len(labels_N)} labels"
        raise UserError(what, at=str(labels_path), fix=_fix(folder))
    if int(labels_N.max()) >= CLASSES:
        what = f"a label is {int(labels_N.max())}, and MNIST has {CLASSES} classes"
        raise UserError(what, at=str(labels_path), fix=_fix(folder))
    return images_NHW.unsqueeze(1), labels_N.long()


def read_idx(path: Path, *, dimensions: int) -> torch.Tensor:
    """Return the uint8 array in an IDX file; raises UserError for an unreadable file or another format."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read_array(cast("IO[bytes]", file), dimensions)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        what = str(error) if isinstance(error, ValueError) else f"cannot read it ({error})"
        raise UserError(what, at=str(path), fix=_fix(path.parent)) from error


def _read_array(file: IO[bytes], dimensions: int) -> torch.Tensor:
    """Return the array, and read only as much as the header says.

    Raises ValueError if the format or the size is wrong.
    """
    header = file.read(4 + 4 * dimensions)
    if header[:4] != bytes((0, 0, 8, dimensions)) or len(header) < 4 + 4 * dimensions:
        raise ValueError(f"not an IDX file of {dimensions} dimensions")
    sizes = struct.unpack(f">{dimensions}I", header[4:])
    values = math.prod(sizes)
    if values > MAX_VALUES:
        raise ValueError(f"its header says {values} values, more than {MAX_VALUES}")
    data = bytearray(file.read(values + 1))
    if len(data) != values:
        held = f"more than {values}" if len(data) > values else len(data)
        raise ValueError(f"holds {held} values where its header says {values}")
    if not values:
        return torch.empty(sizes, dtype=torch.uint8)
    return torch.frombuffer(data, dtype=torch.uint8).view(sizes)


def _find(folder: Path, name: str) -> Path:
    """Return the path of a file of MNIST, which may be compressed; raises UserError without the file."""
    paths = (folder / inside / file for inside in MNIST_FOLDERS for file in (name, f"{name}.gz"))
    if path := next(filter(Path.is_file, paths), None):
        return path
    raise UserError(f"{name} was not found", at=str(folder), fix=_fix(folder))


def _fix(folder: Path) -> str:
    """Return the fix for missing or wrong files of MNIST."""
    return f"sbatchgen data mnist --to {folder} (downloads it; with --synthetic it is made here)"


def read_cifar10(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return CIFAR-10's images (N, 3, 32, 32) uint8 and labels (N,) int64 of the part "train" or "test".

    `folder` holds the files, or the folder that their archive unpacks to. Raises UserError if a file is
    missing or wrong.
    """
    root = folder.parent if folder.name == PYTHON else folder
    if (root / PYTHON).is_dir():
        return _from_python(root, part)
    inside = folder / BINARY if (folder / BINARY).is_dir() else folder
    files = [_from_binary(inside / f"{name}.bin") for name in CIFAR_PARTS[part]]
    images_NCHW = torch.cat([images for images, _ in files]).view(-1, 3, 32, 32)
    return images_NCHW, torch.cat([labels for _, labels in files]).long()


def _from_binary(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 3072) and labels (N,), both uint8; raises UserError if the file is wrong."""
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        fix = f"unpack cifar-10-binary.tar.gz in {path.parent}"
        raise UserError(f"cannot read CIFAR-10 ({one_line(error)})", at=str(path), fix=fix) from error
    row = 1 + CIFAR_VALUES
    has_whole_rows = bool(data) and not len(data) % row
    rows = torch.frombuffer(data, dtype=torch.uint8).view(-1, row) if has_whole_rows else torch.empty(0, 1)
    if not has_whole_rows or int(rows[:, 0].max()) >= CLASSES:
        what = f"not a file of CIFAR-10: {len(data)} bytes" + ", with other labels" * has_whole_rows
        raise UserError(what, at=str(path), fix="unpack its archive again")
    return rows[:, 1:], rows[:, 0]


def _from_python(root: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of CIFAR-10's Python version, whose files are pickles.

    torchvision compares their checksums before it loads them.
    """
    datasets = import_torchvision("CIFAR-10's Python version").datasets
    try:
        data = datasets.CIFAR10(str(root), train=part == "train")
    except (RuntimeError, OSError) as error:
        what, fix = f"not the files of CIFAR-10 ({one_line(error)[:200]})", "unpack their archive again"
        raise UserError(what, at=str(root / PYTHON), fix=fix) from error
    images_NHWC = torch.from_numpy(data.data)
    return images_NHWC.permute(0, 3, 1, 2).contiguous(), torch.tensor(data.targets)
