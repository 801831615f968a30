"""Files in a folder that others may write: nothing waits on a FIFO or follows a link somebody planted."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

SMALL = 1 << 20  # bytes of a status, a lock or a stop file that are read at most


def read_small(path: Path, *, most: int = SMALL) -> bytes:
    """What is in a regular file, `most` bytes of it at most.

    Raises:
        OSError: If it is none (EINVAL), is a link (ELOOP), or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(most)


def opened(path: Path, flags: int) -> int:
    """A descriptor of a regular file, made with `flags` (of os.open) and never through a link.

    Raises:
        OSError: As os.open has it, or EINVAL where the file is not a regular one.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def create(path: Path) -> int:
    """A descriptor of a new file.

    Raises:
        FileExistsError: If there is one, or a link.
    """
    return opened(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def temporary(path: Path) -> Path:
    """A name beside a file that nobody can know before, for what is then renamed to it."""
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")


def replace(path: Path, data: bytes) -> None:
    """Replace a file as a whole: readers see the old one or the new one, never half of one.

    Raises:
        OSError: If it cannot be written; the old one is untouched then.
    """
    new = temporary(path)
    try:
        with os.fdopen(create(new), "wb") as file:
            file.write(data)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
