"""Temporary folders: all are made here, and the leftovers of killed processes are removed here.

A folder has the mode 0700, and a file whose lock the process holds. A folder without a held lock is a
leftover of a killed process. The next process that makes a folder in the same place removes the leftover.
The name of a folder has the id of this boot of the machine, because another machine that shares the disk may
not see the lock. A leftover with another boot id must also be a week old, longer than any command runs.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError
from sbatchgen.base.machine.trust import other_writer

_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - only this user can enter a new folder there
_LOCK_NAME = ".sbatchgen-lock"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_MAX_TRIES = 100  # new folders that other processes may remove before their locks are held
_OTHER_BOOT_AGE_S = 7 * 24 * 3600  # the age of a leftover whose name has another boot id
# A folder's name, such as sbatchgen-git-1a2b3c4d-x7k2_p0q: its purpose, the boot id, and random characters.
_FOLDER_NAME = re.compile(r"\.?sbatchgen-(?:[\w-]+-)?([0-9a-f]{8}|0)-[a-z0-9_]{8}", re.ASCII)

_locks_by_folder: dict[Path, int] = {}


class _OpenFolder(NamedTuple):
    """A new temporary folder, which is open, with the descriptor of its held lock."""

    path: Path
    descriptor: int
    lock: int


@contextlib.contextmanager
def temporary_folder(prefix: str, *, within: Path | None = None, in_memory: bool = False) -> Iterator[Path]:
    """Make a temporary folder that no other user can enter, change or replace; remove it at the end.

    `prefix` is the start of the name, "sbatchgen-..." or ".sbatchgen-...". With `within` the folder is made
    in that folder: users who can write there can rename the new folder, but not enter it. The new folder
    holds the file of its lock.

    Raises:
        DocumentError: No place allows a folder.
        OSError: The folder can't be made in `within`.
    """
    new = _make(prefix, within) if within else _make_somewhere(prefix, in_memory=in_memory)
    _locks_by_folder[new.path] = new.lock
    try:
        yield new.path
    finally:
        del _locks_by_folder[new.path]
        _remove_and_close(new)


def usual_place() -> str:
    """Return the folder in which programs of this user make temporary files, by TMPDIR."""
    return tempfile.gettempdir()


def lock_of(folder: Path) -> int:
    """Return the descriptor of a folder's lock; a program that inherits the lock keeps the folder."""
    return _locks_by_folder[folder]


def _make_somewhere(prefix: str, *, in_memory: bool) -> _OpenFolder:
    """Make a folder in the first place that allows a private folder."""
    problems = []
    for place in (*[_MEMORY_FOLDER] * in_memory, None, "/tmp", "/var/tmp"):  # noqa: S108 - see _MEMORY_FOLDER
        try:
            parent = Path(place or tempfile.gettempdir())
            # Judged before a folder is made: if others renamed the new folder, it could not be removed.
            # In a place with the sticky bit, such as /tmp, others can't rename the folder.
            reason = other_writer(parent / prefix)
            if reason and not reason.place.lstat().st_mode & stat.S_ISVTX:
                problems.append(f"a folder in {parent} {reason.why}")
                continue
            new = _make(prefix, parent)
        except OSError as error:
            problems.append(str(error.strerror))
            continue
        if not (reason := other_writer(new.path)):
            return new
        problems.append(f"{new.path} {reason.why}")
        _remove_and_close(new)
    what = f"can't make a folder for temporary files: {problems[0]}"
    raise DocumentError.of(what, fix="set TMPDIR to a folder that only you can write into")


def _remove_and_close(new: _OpenFolder) -> None:
    """Remove a folder that `_make` made, and release its lock."""
    _remove(new.path, new.descriptor)
    os.close(new.descriptor)
    os.close(new.lock)


def _make(prefix: str, place: Path) -> _OpenFolder:
    """Make a folder, and remove leftovers of killed processes in the same place; raises OSError."""
    _remove_leftovers(place)
    for _ in range(_MAX_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{_boot_id()}-", dir=place))
        with (
            contextlib.ExitStack() as opened,
            contextlib.suppress(FileNotFoundError),
        ):  # another process removed the new folder as a leftover
            descriptor = os.open(folder, _FOLDER_FLAGS)
            opened.callback(os.close, descriptor)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            lock = os.open(_LOCK_NAME, flags, files.PRIVATE, dir_fd=descriptor)
            opened.callback(os.close, lock)
            if _try_lock(lock) is not False and os.fstat(lock).st_nlink:  # no process has removed the file
                opened.pop_all()
                return _OpenFolder(folder, descriptor, lock)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))


def _try_lock(lock: int) -> bool | None:
    """Lock a file; return False if another process holds the lock, None on a file system without locks."""
    import fcntl  # late, because a browser lacks the module

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@functools.cache
def _boot_id() -> str:
    """Return the start of the id of this boot; "0" if it is not known."""
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii")[:8]
    except (OSError, ValueError):
        return "0"


def _remove_leftovers(place: Path) -> None:
    """Remove the folders that killed processes left in a place."""
    with contextlib.suppress(OSError):
        for match in filter(None, map(_FOLDER_NAME.fullmatch, os.listdir(place))):  # noqa: PTH208 - names
            with contextlib.suppress(OSError):
                min_age_s = 0 if match[1] == _boot_id() else _OTHER_BOOT_AGE_S
                _remove_leftover(place / match[0], min_age_s=min_age_s)


def _remove_leftover(folder: Path, *, min_age_s: float) -> None:
    """Remove a folder if it is this user's, is older than `min_age_s`, and no process holds its lock.

    No other user can put the file of the lock into a folder with the mode 0700. So another folder of this
    user, renamed by a member of a group, is not mistaken for a leftover.
    """
    descriptor = os.open(folder, _FOLDER_FLAGS)
    try:
        status = os.fstat(descriptor)
        is_old = not min_age_s or time.time() - status.st_mtime > min_age_s
        if status.st_uid != files.user_id() or status.st_mode & 0o077 or not is_old:
            return
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(_LOCK_NAME, flags, dir_fd=descriptor)
        except FileNotFoundError:
            folder.rmdir()  # without a lock file, its process was killed early; a folder with files stays
            return
        try:
            is_ours = stat.S_ISREG(os.fstat(lock).st_mode) and os.fstat(lock).st_uid == files.user_id()
            if is_ours and _try_lock(lock):
                _remove(folder, descriptor)
        finally:
            os.close(lock)
    finally:
        os.close(descriptor)


def _remove(folder: Path, descriptor: int) -> None:
    """Remove a folder and its contents, the lock last; a file that can't be removed stays."""
    with contextlib.suppress(OSError):
        _empty(descriptor)
        if os.listdir(descriptor) == [_LOCK_NAME]:
            os.unlink(_LOCK_NAME, dir_fd=descriptor)
            folder.rmdir()


def _empty(descriptor: int) -> None:
    """Remove the contents of a folder without following links, even folders with the mode 000.

    The contents of an inner folder are moved up first, because a program may have nested many folders.
    """
    names = {*os.listdir(descriptor)} - {_LOCK_NAME}
    while names:
        for name in names:
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    _move_up(name, descriptor)
                    os.rmdir(name, dir_fd=descriptor)
                else:
                    os.unlink(name, dir_fd=descriptor)
        names = {*os.listdir(descriptor)} - {_LOCK_NAME} - names  # entries that can't be removed stay


def _move_up(name: str, descriptor: int) -> None:
    """Remove the files of an inner folder, and move its folders into the open folder `descriptor`."""
    inner = _open_folder(name, descriptor)
    try:
        for entry in os.listdir(inner):  # noqa: PTH208 - Path takes no descriptor
            with contextlib.suppress(OSError):
                if not stat.S_ISDIR(os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode):
                    os.unlink(entry, dir_fd=inner)
                    continue
                os.close(_open_folder(entry, inner))  # makes a folder with the mode 000 movable
                os.rename(entry, f".{os.urandom(8).hex()}", src_dir_fd=inner, dst_dir_fd=descriptor)
    finally:
        os.close(inner)


def _open_folder(name: str, descriptor: int) -> int:
    """Open a folder in an open folder, after giving the user all permissions; return the new descriptor."""
    path_only = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        Path(f"/proc/self/fd/{path_only}").chmod(stat.S_IRWXU)
        return os.open(f"/proc/self/fd/{path_only}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(path_only)
