"""Downloads or draws the files of MNIST, before a job holds GPUs."""

import hashlib
import http.client
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError
from sbatchgen.lab.prepare import digits

# Public copies of http://yann.lecun.com/exdb/mnist, and the MD5 of each file, as torchvision lists them.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
TIMEOUT_S = 30  # seconds to wait for an answer of a mirror
MAX_BYTES = 64 << 20  # bytes of a file; the largest file has far fewer


def draw_mnist(folder: Path, drawing: Mapping[str, int]) -> str:
    """Draw digits into the four files of MNIST; return a line for the user about these files.

    `drawing` may have the numbers of `train` and `test` images, and the `seed`. Raises DocumentError if the
    files can't be written.
    """
    try:
        return digits.write(folder, **{"train": 6000, "test": 1000, "seed": 0, **drawing})
    except OSError as error:
        what = f"no digits were written to {folder}: {error.strerror or error}"
        raise DocumentError.of(what, fix="name another folder: --to") from error


def download_mnist(folder: Path, *, note: Callable[[str], None]) -> None:
    """Download the files of MNIST that `folder` lacks; call `note` with a line about each file.

    A file gets its name only after its MD5 checksum was compared.

    Raises:
        OSError: The folder can't be made, or a file can't be written.
        DocumentError: No mirror has the right file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, md5 in FILES.items():
        path = folder / name
        if path.is_file() and _md5(files.read_file(path, MAX_BYTES)) == md5:
            note(f"{path}: already there")
            continue
        data = _fetch(name, md5)
        files.put(path, data)
        note(f"{path}: {len(data)} bytes")


def _fetch(name: str, md5: str) -> bytes:
    """Return a file from the first mirror that has it; raise DocumentError if no mirror has it."""
    failures = []
    for mirror in MIRRORS:
        try:
            with urllib.request.urlopen(f"{mirror}/{name}", timeout=TIMEOUT_S) as answer:  # noqa: S310
                data: bytes = answer.read(MAX_BYTES)
                missing = getattr(answer, "length", 0)  # read() with a limit does not report an early end
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{mirror}: {error or type(error).__name__}")
            continue
        if _md5(data) == md5:
            return data
        why = f"ended early, {missing} bytes missing" if missing else "has the wrong MD5 checksum"
        failures.append(f"{mirror}: {name} {why}")
    fix = "copy the files there by hand, or use --synthetic"
    raise DocumentError.of(f"can't download {name}: {'; '.join(failures)}", fix=fix)


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
