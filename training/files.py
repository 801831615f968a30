"""Files in folders where others may write: never follows a link, never waits on a FIFO."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO

SMALL = 1 << 20  # bytes that are read at most of a status, lock or stop file


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file, opened with `flags` of os.open.

    Raises:
        OSError: EINVAL if the file is not a regular one, ELOOP if it is a link; else as os.open raises it.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def read_small(path: Path, *, most: int = SMALL) -> bytes:
    """The first `most` bytes of a regular file; raises OSError as `open_regular` does."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def create(path: Path) -> int:
    """A descriptor of a new file; raises FileExistsError if there is a file or a link."""
    return open_regular(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def temporary_name(path: Path) -> Path:
    """A name beside a file that nobody can guess, to be renamed to it."""
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")


def replace(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Replace a file as a whole: readers see the old one or the new one, which `fill` writes.

    Raises:
        OSError: If it cannot be written; the old one is unchanged then, as after any error of `fill`.
    """
    new = temporary_name(path)
    try:
        with os.fdopen(create(new), "wb") as file:
            fill(file)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
