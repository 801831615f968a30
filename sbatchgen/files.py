"""Safe reading and writing, also in folders that others can write and on full disks.

A file is replaced, never changed: a new one is written beside it, flushed to the disk, and renamed. So the
file is always whole. The new one's name can't be guessed, so nobody can plant a link there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sbatchgen.errors import DocumentError
from sbatchgen.quoting import word

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK a FIFO waits for a writer
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PRIVATE = 0o600  # the mode of a file that may hold a secret


def read(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file.

    Raises:
        OSError: It can't be read, or is a FIFO, a device or a folder.
    """
    with regular(path) as file:
        return file.read(most)


def read_of_run(path: Path, most: int, *, from_end: bool = False) -> bytes:
    """Return the first or the last `most` bytes of a file in a run folder; a link is refused as well."""
    with regular(path, os.O_NOFOLLOW) as file:
        if from_end:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_own(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a file that only this user can write; raises OSError for any other."""
    with regular(path, os.O_NOFOLLOW) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
            raise OSError(errno.EPERM, "another user can write it", str(path))
        return file.read(most)


@contextlib.contextmanager
def regular(path: Path, flags: int = 0) -> Iterator[BinaryIO]:
    """Open a regular file for reading, with these flags of os.open too; raises OSError like `read`."""
    descriptor = os.open(path, _READ | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def put(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file of ours. A link of this name is replaced, not followed.

    Raises:
        OSError: It can't be written.
    """
    try:
        with _beside(path, data, mode) as new:
            new.replace(path)
    except OSError as error:  # of a full disk it names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def lock(descriptor: int, wait_s: float, path: str = "") -> bool:
    """Lock an open file against other processes until it is closed; False on a file system without locks.

    Raises:
        BlockingIOError: Another process still holds the lock.
    """
    import fcntl

    until, pause = time.monotonic() + wait_s, 0.005
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise BlockingIOError(error.errno, "another process holds the lock", path) from error
            time.sleep(pause)
            pause = min(2 * pause, 0.1)  # the file may be on a server that many ask
        except OSError:
            return False
        else:
            return True


def write(path: Path, data: bytes, *, before: bytes | None = None) -> None:
    """Write a file of the user's; an old one keeps its mode, owner, group and extended attributes.

    Links are followed. A pipe or a device gets the data.

    Args:
        path: The file.
        data: Its new contents.
        before: What it held when it was read; if that has changed, nothing is written.

    Raises:
        DocumentError: It can't be written, has changed since it was read, is read-only or has hard links, or
            its owner or its attributes can't be kept.
    """
    with _as_document_error(path):
        try:
            status = path.stat()
        except FileNotFoundError:
            put(path.resolve(), data)
            return
        if not stat.S_ISREG(status.st_mode) and before is None:
            _write_through(path, data)
            return
        target = path.resolve()
        _refuse(path, target, status)
        with _beside(target, data, 0o600) as new:
            _keep_attributes(path, target, new, status)
            if not _is_unchanged(target, status, before):
                what = f"{path} has changed since it was read: nothing was written"
                raise DocumentError.of(what, fix="try again")
            new.replace(target)


@contextlib.contextmanager
def _as_document_error(path: Path) -> Iterator[None]:
    """Turn an OSError into an error that names the user's file."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        why = error.strerror if isinstance(error, OSError) else error
        number = error.errno if isinstance(error, OSError) else 0
        fix = "name another file, or give it and its folder the right to write"
        if number in _FULL:
            fix = "make room there"
        elif number == errno.ENOENT:
            fix = f"mkdir -p {word(str(path.parent))}"
        raise DocumentError.of(f"can't write {path}: {why}", fix=fix) from error


@contextlib.contextmanager
def _beside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A new file in the same folder, flushed to the disk; it is removed unless it is renamed."""
    new = path.with_name(f".sbatchgen-{os.urandom(8).hex()}")
    descriptor = os.open(new, _NEW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        yield new
    finally:
        new.unlink(missing_ok=True)


def _write_through(path: Path, data: bytes) -> None:
    # Without a reader, a FIFO is an error.
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _refuse(path: Path, target: Path, status: os.stat_result) -> None:
    """Refuse to replace a file that is read-only or has hard links."""
    name = word(str(path))
    if not status.st_mode & 0o222:
        raise DocumentError.of(f"{path} is read-only", fix=f"chmod u+w {name}")
    if not os.access(target, os.W_OK):
        raise DocumentError.of(f"you may not write {path}", fix=f"work on a copy: cp {name} NEW")
    if status.st_nlink > 1:
        what = f"{path} is one of {status.st_nlink} hard links to a file: a new file would separate them"
        raise DocumentError.of(what, fix=f"to separate them: cp -p {name} NEW && mv NEW {name}")


def _keep_attributes(path: Path, target: Path, new: Path, status: os.stat_result) -> None:
    """Copy owner, group, mode and attributes of the old file to the new one."""
    import shutil

    mine, fix = new.stat(), f"work on a copy: cp {word(str(path))} NEW"
    if (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.chown(new, status.st_uid, status.st_gid)
        except PermissionError as error:
            owner = f"user {status.st_uid} and group {status.st_gid}"
            what = f"{path} belongs to {owner}: you can't make them the owners of a new file"
            raise DocumentError.of(what, fix=fix) from error
    for name in _attributes(new).keys() - _attributes(target).keys():  # from a default ACL of the folder
        os.removexattr(new, name)
    shutil.copystat(target, new)
    os.utime(new)
    if lost := [name for name, value in _attributes(target).items() if _attributes(new).get(name) != value]:
        raise DocumentError.of(f"the attribute {lost[0]} of {path} can't be kept", fix=fix)


def _attributes(file: Path) -> dict[str, bytes]:
    """The extended attributes of users, and the access list."""
    try:
        names = os.listxattr(file)
    except OSError:  # a file system without
        return {}
    return {
        name: os.getxattr(file, name)
        for name in names
        if name.startswith("user.") or name == "system.posix_acl_access"
    }


def _is_unchanged(target: Path, status: os.stat_result, before: bytes | None) -> bool:
    """Whether a file is unchanged since it was looked at."""
    now = target.lstat()
    if any(
        getattr(now, name) != getattr(status, name) for name in ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    ):
        return False
    return before is None or read(target, len(before) + 1) == before
