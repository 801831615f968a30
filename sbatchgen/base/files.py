"""Safe reading and writing, also in folders that others can write and on full disks.

A file of ours is replaced, never changed: a new one is written beside it, flushed to the disk, and renamed.
So the file is always whole. The new one's name can't be guessed: no link can be planted there.
"""

import contextlib
import errno
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import BinaryIO

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.quoting import word

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK a FIFO waits for a writer
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PRIVATE = 0o600  # the mode of a file that may hold a secret
_LEFT = re.compile(r"\.sbatchgen-[0-9a-f]{16}")
_MOST_LINKS = 40  # as Linux follows: path_resolution(7)
_OLD_S, _MOST_ENTRIES = 24 * 3600, 10_000  # writing takes seconds; of a folder so many entries are looked at
_PAUSE_S = 0.005  # between two attempts to lock a file, at first


def user_id() -> int:
    """Return the id of the user; 0 in a browser, where all files belong to 0."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def user_folder(environment: Mapping[str, str], variable: str, default: str) -> str:
    """Return a folder of the XDG standard, in which a relative path does not count; "" without a home."""
    folder, home = environment.get(variable, ""), environment.get("HOME", "")
    return folder if folder.startswith("/") else f"{home}/{default}" if home.startswith("/") else ""


def read_file(path: Path, most: int) -> bytes:
    """Return what a regular file holds.

    Raises OSError: the path is a FIFO, a device or a folder; EFBIG: the file has more than `most` bytes.
    """
    with regular(path) as file:
        return _whole(file, path, most)


def read_start(path: Path, size: int) -> bytes:
    """Return the first `size` bytes of a regular file, and no more; raises OSError like `read_file`."""
    with regular(path) as file:
        return file.read(size)


def _whole(file: BinaryIO, path: Path, most: int) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:  # a part would pass for the whole
        size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"the file is larger than {size}", str(path))
    return data


def read_of_run(path: Path, size: int, *, from_end: bool = False) -> bytes:
    """Return the first or the last `size` bytes of a file in a run folder; a link is refused as well."""
    with regular(path, os.O_NOFOLLOW) as file:
        if from_end:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def read_own(path: Path, most: int) -> bytes:
    """Return what a file holds that only this user can write; raises OSError like `read_file`."""
    with regular(path, os.O_NOFOLLOW) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != user_id() or status.st_mode & OTHERS_WRITE:
            raise OSError(errno.EPERM, "another user can write it", str(path))
        return _whole(file, path, most)


@contextlib.contextmanager
def regular(path: Path, flags: int = 0, *, at: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file for reading, with these flags of os.open too; raises OSError like `read_file`.

    With `at`, the descriptor of a folder, the path is a name in it.
    """
    descriptor = os.open(path, _READ | flags, dir_fd=at)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_below(root: Path, name: PurePath) -> Iterator[int]:
    """Open a folder by its name in another; raises OSError where the name leads through a link.

    Yields:
        Its descriptor. Who exchanges a folder for a link meanwhile can't lead it elsewhere.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in name.parts:
            inner = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def put(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file of ours; raises OSError. A link of this name is replaced, not followed."""
    try:
        with _beside(path, data, mode) as new:
            new.replace(path)
    except OSError as error:  # of a full disk it names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def locked(path: Path, wait_s: float, waits: Callable[[], None] = lambda: None) -> Iterator[int | None]:
    """Hold a lock file, which is made; `waits` is called if another process holds it.

    Yields:
        Its descriptor: a program that inherits it holds the lock until it has ended, even if this process is
        killed. None on a file system without locks.

    Raises:
        OSError: The file can't be made, or another process holds the lock for longer (BlockingIOError).
    """
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    until, pause = time.monotonic() + wait_s, _PAUSE_S
    with os.fdopen(os.open(path, flags, PRIVATE), "rb") as file:
        held: int | None = file.fileno()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise BlockingIOError(error.errno, "another process holds the lock", str(path)) from error
                if pause == _PAUSE_S:
                    waits()
                time.sleep(pause)
                pause = min(2 * pause, 0.1)  # the file may be on a server that many ask
            except OSError:
                held = None
                break
        yield held


def write(path: Path, data: bytes, *, before: bytes | None = None) -> None:
    """Write a file of the user's. An old one is written in place: its mode, owner and links stay.

    A link of the user's or root's is followed, and a pipe or a device gets the data. If a file does not hold
    any more what it held `before`, when it was read, nothing is written.

    Raises DocumentError if it can't be written, is read-only, or has changed since it was read.
    """
    try:
        last = _last(path)
        # From here on no link is followed: another user may put one there after the check.
        follow = 0 if _is_descriptor(last) else os.O_NOFOLLOW
        if not os.path.lexists(last):
            put(last, data)
        elif not stat.S_ISREG(mode := last.stat(follow_symlinks=not follow).st_mode):
            _write_through(last, data, follow)
        elif not mode & 0o222:  # root could write it all the same
            raise DocumentError.of(f"{path} is read-only", fix=f"chmod u+w {word(str(path))}")
        else:
            _overwrite(last, data, before, follow, name=path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        why, number = (error.strerror, error.errno) if isinstance(error, OSError) else (error, 0)
        fix = "name another file, or give it and its folder the right to write"
        if number in (errno.ENOSPC, errno.EDQUOT):
            fix = "make room there"
        elif number == errno.ENOENT:
            fix = f"mkdir -p {word(str(path.parent))}"
        raise DocumentError.of(f"can't write {path}: {why}", fix=fix) from error


def _last(path: Path) -> Path:
    """Return where the links lead that a name stands for; raise DocumentError for a link of another user."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink() or _is_descriptor(path):
            return path
        owner, target = _link(path)
        if owner not in (0, user_id()):
            what = f"{path} is a link that another user has made, to {target}"
            raise DocumentError.of(what, fix="name another file")
        path = path.parent / target
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _link(path: Path) -> tuple[int, str]:
    """Return the owner and the target of one link, also if another takes its name meanwhile."""
    if not hasattr(os, "O_PATH"):  # macOS, and a browser
        return path.lstat().st_uid, str(path.readlink())
    link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.fstat(link).st_uid, os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _is_descriptor(path: Path) -> bool:
    """Return whether a name is an open file of a process, as /dev/stdout.

    Its link leads there without a path.

    The name alone says so: in these folders root alone can exchange a file.
    """
    is_of_process = path.parts[:2] == ("/", "proc") and ".." not in path.parts
    return is_of_process or path.parent in (Path("/dev"), Path("/dev/fd"))


def _overwrite(path: Path, data: bytes, before: bytes | None, follow: int, *, name: Path) -> None:
    """Replace what a file holds; on a full disk it keeps what it has."""
    with os.fdopen(os.open(path, os.O_RDWR | follow | os.O_CLOEXEC), "r+b") as file:
        old = file.read()
        if before is not None and old != before:
            what = f"{name} has changed since it was read: nothing was written"
            raise DocumentError.of(what, fix="try again")
        try:
            os.posix_fallocate(file.fileno(), 0, max(1, len(data)))
        except OSError:
            file.truncate(len(old))
            raise
        file.seek(0)
        file.write(data)
        file.truncate()


@contextlib.contextmanager
def _beside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Make a file in the same folder, flushed to the disk; it is removed unless it is renamed."""
    _remove_leftovers(path.parent)
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


def _remove_leftovers(folder: Path) -> None:
    """Remove the new files that killed processes have left in a folder: files of this user, and a day old."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MOST_ENTRIES):
            if _LEFT.fullmatch(entry.name):
                about = entry.stat(follow_symlinks=False)
                is_old = time.time() - about.st_mtime > _OLD_S
                if is_old and stat.S_ISREG(about.st_mode) and about.st_uid == user_id():
                    os.unlink(entry.path)  # noqa: PTH108 - its path is a text


def _write_through(path: Path, data: bytes, follow: int) -> None:
    # Without a reader, a FIFO is an error.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK | follow | os.O_CLOEXEC), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EAGAIN, "it was replaced meanwhile", str(path))
        os.set_blocking(file.fileno(), True)
        file.write(data)
