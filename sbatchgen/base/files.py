"""Safe reading and writing, even on full disks and in folders that others can write.

A file of sbatchgen is replaced, never changed: a new file is written next to the old file, flushed to the
disk, and renamed. So the file is always whole. The new file's name can't be guessed, so no other user can
plant a link there.
"""

import contextlib
import errno
import functools
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import BinaryIO

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.quoting import word

# Flags of os.open. Without O_NONBLOCK, opening a FIFO waits for a writer.
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH  # the bits of a mode with which the group or everybody can write
PRIVATE = 0o600  # the mode of a file that may hold a secret
_LEFTOVER_NAME = re.compile(r"\.sbatchgen-[0-9a-f]{16}")  # a new file that was not renamed
_MAX_LINKS = 40  # Linux follows so many links: path_resolution(7)
_LEFTOVER_AGE_S = 24 * 3600  # a new file of this age is a leftover, because writing takes seconds
_MAX_ENTRIES = 10_000  # entries of a folder among which leftovers are searched
_PAUSE_S = 0.005  # the first pause between two attempts to lock a file


def user_id() -> int:
    """Return the id of the user; 0 in a browser, where all files belong to user 0."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def user_folder(environment: Mapping[str, str], variable: str, default: str) -> str:
    """Return a user's folder by the XDG standard: the value of `variable`, or else `default` below HOME.

    The standard ignores relative paths. The result is "" unless one of the two gives an absolute path.
    """
    folder, home = environment.get(variable, ""), environment.get("HOME", "")
    if folder.startswith("/"):
        return folder
    return f"{home}/{default}" if home.startswith("/") else ""


@functools.cache  # a server of accounts may give the answer
def account_home() -> str:
    """Return the home folder of the account, whatever HOME says; "" for an account without an entry."""
    import pwd  # a browser has none

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_dir
    return ""


def is_too_long(path: Path) -> bool:
    """Return whether no file can have this path, because the path or a name in it has too many characters."""
    try:
        path.lstat()
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False


def oldest_first(paths: Iterable[Path]) -> list[Path]:
    """Return files in the order of their changes; files that were removed meanwhile are left out."""
    by_time = []
    for path in paths:
        with contextlib.suppress(OSError):
            by_time.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(by_time)]


def owners(paths: Iterable[Path]) -> Iterator[int]:
    """Yield the user id of each file's owner; nothing for a file that was removed meanwhile."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            yield path.lstat().st_uid


def read_file(path: Path, most: int) -> bytes:
    """Return the contents of a regular file.

    Raises OSError if the path is a FIFO, a device or a folder. The error is EFBIG if the file has more than
    `most` bytes.
    """
    with open_regular(path) as file:
        return _read_limited(file, path, most)


def read_start(path: Path, size: int) -> bytes:
    """Return at most the first `size` bytes of a regular file; raises OSError like `read_file`."""
    with open_regular(path) as file:
        return file.read(size)


def _read_limited(file: BinaryIO, path: Path, most: int) -> bytes:
    """Return the contents of an open file; raises OSError with EFBIG if it has more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) > most:  # a truncated file would be mistaken for the whole file
        size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"the file is larger than {size}", str(path))
    return data


def read_run_file(path: Path, size: int, *, from_end: bool = False) -> bytes:
    """Return the first or last `size` bytes of a file in a run folder; raises OSError, also for a link."""
    with open_regular(path, os.O_NOFOLLOW) as file:
        if from_end:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def read_own(path: Path, most: int) -> bytes:
    """Return the contents of the user's file; raises OSError like `read_file`, or if others can write it."""
    with open_regular(path, os.O_NOFOLLOW) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != user_id() or status.st_mode & OTHERS_WRITE:
            raise OSError(errno.EPERM, "another user can write it", str(path))
        return _read_limited(file, path, most)


@contextlib.contextmanager
def open_regular(path: Path, flags: int = 0, *, at: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file for reading, with additional flags of os.open; raises OSError for anything else.

    `at` is the descriptor of the folder to which a relative path refers.
    """
    descriptor = os.open(path, _READ_FLAGS | flags, dir_fd=at)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_below(root: Path, name: PurePath) -> Iterator[int]:
    """Open a folder by its name below `root`; raises OSError if the name leads through a link.

    Yields:
        The folder's descriptor. The descriptor stays valid if another user replaces a folder by a link.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in name.parts:
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def put(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file of sbatchgen; raises OSError. A link of this name is replaced, not followed."""
    try:
        with _new_file(path, data, mode) as new:
            new.replace(path)
    except OSError as error:  # the error of a full disk names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def locked(path: Path, wait_s: float, waits: Callable[[], None] = lambda: None) -> Iterator[int | None]:
    """Make a lock file and hold its lock; call `waits` once if another process holds the lock.

    Yields:
        The descriptor of the file, or None on a file system without locks. A program that inherits the
        descriptor holds the lock until the program ends, even if this process is killed.

    Raises:
        OSError: The file can't be made.
        BlockingIOError: Another process still holds the lock after `wait_s` seconds.
    """
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    deadline, pause = time.monotonic() + wait_s, _PAUSE_S
    with os.fdopen(os.open(path, flags, PRIVATE), "rb") as file:
        lock: int | None = file.fileno()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise BlockingIOError(error.errno, "another process holds the lock", str(path)) from error
                if pause == _PAUSE_S:
                    waits()
                time.sleep(pause)
                pause = min(2 * pause, 0.1)  # the file may be on a busy file server
            except OSError:
                lock = None
                break
        yield lock


def write(path: Path, data: bytes, *, before: bytes | None = None) -> None:
    """Write a file of the user. An existing file is written in place and keeps its mode, owner and links.

    Links that the user or root made are followed. A pipe or a device gets the data. `before` is the content
    that the caller has read: if the file has another content now, nothing is written.

    Raises DocumentError if the file can't be written, is read-only, or has changed since it was read.
    """
    try:
        target = _end_of_links(path)
        # From here on no link is followed, because another user may put a link there after the check.
        no_follow = 0 if _is_descriptor(target) else os.O_NOFOLLOW
        if not os.path.lexists(target):
            put(target, data)
        elif not stat.S_ISREG(mode := target.stat(follow_symlinks=not no_follow).st_mode):
            _write_through(target, data, no_follow)
        elif not mode & 0o222:  # root could write a read-only file
            raise DocumentError.of(f"{path} is read-only", fix=f"chmod u+w {word(str(path))}")
        else:
            _overwrite(target, data, before, no_follow, name=path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        why, number = (error.strerror, error.errno) if isinstance(error, OSError) else (error, 0)
        fix = "name another file, or give it and its folder the right to write"
        if number in (errno.ENOSPC, errno.EDQUOT):
            fix = "make room there"
        elif number == errno.ENOENT:
            fix = f"mkdir -p {word(str(path.parent))}"
        raise DocumentError.of(f"can't write {path}: {why}", fix=fix) from error


def _end_of_links(path: Path) -> Path:
    """Return the path at the end of a chain of links; raise DocumentError for a link of another user."""
    for _ in range(_MAX_LINKS):
        if not path.is_symlink() or _is_descriptor(path):
            return path
        owner, target = _read_link(path)
        if owner not in (0, user_id()):
            what = f"{path} is a link that another user has made, to {target}"
            raise DocumentError.of(what, fix="name another file")
        path = path.parent / target
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _read_link(path: Path) -> tuple[int, str]:
    """Return the owner and the target of the same link, even if another link takes its name meanwhile."""
    if not hasattr(os, "O_PATH"):  # macOS, and a browser
        return path.lstat().st_uid, str(path.readlink())
    link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.fstat(link).st_uid, os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _is_descriptor(path: Path) -> bool:
    """Return whether a name such as /dev/stdout stands for an open file of a process.

    Such a link leads to the file without a path. The name is enough evidence, because only root can replace
    a file in these folders.
    """
    is_of_process = path.parts[:2] == ("/", "proc") and ".." not in path.parts
    return is_of_process or path.parent in (Path("/dev"), Path("/dev/fd"))


def _overwrite(path: Path, data: bytes, before: bytes | None, no_follow: int, *, name: Path) -> None:
    """Replace the contents of a file; on a full disk the old contents stay.

    `no_follow` is os.O_NOFOLLOW or 0, and `name` the path that the user typed.
    """
    with os.fdopen(os.open(path, os.O_RDWR | no_follow | os.O_CLOEXEC), "r+b") as file:
        old = file.read()
        if before is not None and old != before:
            what = f"{name} has changed since it was read: nothing was written"
            raise DocumentError.of(what, fix="try again")
        try:
            # Reserve the room before anything is overwritten.
            os.posix_fallocate(file.fileno(), 0, max(1, len(data)))
        except OSError:
            file.truncate(len(old))
            raise
        file.seek(0)
        file.write(data)
        file.truncate()


@contextlib.contextmanager
def _new_file(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Make a file in the folder of `path`, flushed to the disk; remove the file unless it was renamed."""
    _remove_leftovers(path.parent)
    new = path.with_name(f".sbatchgen-{os.urandom(8).hex()}")
    descriptor = os.open(new, _NEW_FLAGS, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        yield new
    finally:
        new.unlink(missing_ok=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove new files that killed processes left in a folder, if they are this user's and a day old."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MAX_ENTRIES):
            if _LEFTOVER_NAME.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                is_old = time.time() - status.st_mtime > _LEFTOVER_AGE_S
                if is_old and stat.S_ISREG(status.st_mode) and status.st_uid == user_id():
                    os.unlink(entry.path)  # noqa: PTH108 - the path is a text


def _write_through(path: Path, data: bytes, no_follow: int) -> None:
    """Write data to a pipe or device; raises OSError for a pipe without a reader."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK | no_follow | os.O_CLOEXEC), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EAGAIN, "the file was replaced meanwhile", str(path))
        os.set_blocking(file.fileno(), True)
        file.write(data)
