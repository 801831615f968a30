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

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError
from sbatchgen.base.machine.trust import other_writer

_MEMORY = "/dev/shm"  # noqa: S108 - only this user can enter a new folder there
_LOCK = ".sbatchgen-lock"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TRIES = 100
_OTHER_BOOT_AGE_S = 7 * 24 * 3600
_NAME = re.compile(r"\.?sbatchgen-(?:[\w-]+-)?([0-9a-f]{8}|0)-[a-z0-9_]{8}", re.ASCII)

_locks: dict[Path, int] = {}


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
    folder, number, lock = _make(prefix, within) if within else _make_somewhere(prefix, in_memory=in_memory)
    _locks[folder] = lock
    try:
        yield folder
    finally:
        del _locks[folder]
        _remove(folder, number)
        os.close(number)
        os.close(lock)


def lock_of(folder: Path) -> int:
    """Return the descriptor of a folder's lock; a program that inherits the lock keeps the folder."""
    return _locks[folder]


def _make_somewhere(prefix: str, *, in_memory: bool) -> tuple[Path, int, int]:
    """Make a folder in the first place that allows a private folder; returns like `_make`."""
    problems = []
    for place in (*[_MEMORY] * in_memory, None, "/tmp", "/var/tmp"):  # noqa: S108 - see _MEMORY
        try:
            at = Path(place or tempfile.gettempdir())
            # The place is judged first: if others rename even an empty folder, the folder stays.
            if (reason := other_writer(at / prefix)) and not reason.place.lstat().st_mode & stat.S_ISVTX:
                problems.append(f"a folder in {at} {reason.why}")
                continue
            folder, number, lock = _make(prefix, at)
        except OSError as error:
            problems.append(str(error.strerror))
            continue
        if not (reason := other_writer(folder)):
            return folder, number, lock
        problems.append(f"{folder} {reason.why}")
        _remove(folder, number)
        os.close(number)
        os.close(lock)
    what = f"can't make a folder for temporary files: {problems[0]}"
    raise DocumentError.of(what, fix="set TMPDIR to a folder that only you can write into")


def _make(prefix: str, place: Path) -> tuple[Path, int, int]:
    """Make a folder, and remove leftovers of killed processes in the same place; raises OSError.

    Returns the folder's path and descriptor, and the descriptor of its lock, which is held.
    """
    _remove_leftovers(place)
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{_boot()}-", dir=place))
        with (
            contextlib.ExitStack() as opened,
            contextlib.suppress(FileNotFoundError),
        ):  # another process removed the new folder as a leftover
            number = os.open(folder, _FOLDER_FLAGS)
            opened.callback(os.close, number)
            lock = os.open(
                _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, files.PRIVATE, dir_fd=number
            )
            opened.callback(os.close, lock)
            if _is_locked(lock) is not False and os.fstat(lock).st_nlink:
                opened.pop_all()
                return folder, number, lock
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))


def _is_locked(lock: int) -> bool | None:
    """Lock a file; return False if another process holds it, None on a file system without locks."""
    import fcntl  # late, because a browser lacks the module

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@functools.cache
def _boot() -> str:
    """Return the start of the id of this boot; "0" if it is not known."""
    try:
        return _BOOT.read_text(encoding="ascii")[:8]
    except (OSError, ValueError):
        return "0"


def _remove_leftovers(place: Path) -> None:
    """Remove the folders that killed processes left in a place."""
    with contextlib.suppress(OSError):
        for name in filter(None, map(_NAME.fullmatch, os.listdir(place))):  # noqa: PTH208 - names
            with contextlib.suppress(OSError):
                _remove_leftover(place / name[0], least_s=0 if name[1] == _boot() else _OTHER_BOOT_AGE_S)


def _remove_leftover(folder: Path, *, least_s: float) -> None:
    """Remove a folder if it is this user's, is older than `least_s`, and no process holds its lock.

    No other user can put the file of the lock into a folder with the mode 0700. So another folder of this
    user, renamed by a member of a group, is not mistaken for a leftover.
    """
    number = os.open(folder, _FOLDER_FLAGS)
    try:
        about = os.fstat(number)
        is_old = not least_s or time.time() - about.st_mtime > least_s
        if about.st_uid != files.user_id() or about.st_mode & 0o077 or not is_old:
            return
        try:
            lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=number)
        except FileNotFoundError:
            folder.rmdir()  # the process was killed before it made the lock; a folder with files stays
            return
        try:
            is_ours = stat.S_ISREG(os.fstat(lock).st_mode) and os.fstat(lock).st_uid == files.user_id()
            if is_ours and _is_locked(lock):
                _remove(folder, number)
        finally:
            os.close(lock)
    finally:
        os.close(number)


def _remove(folder: Path, number: int) -> None:
    """Remove a folder and its contents, the lock last; a file that can't be removed stays."""
    with contextlib.suppress(OSError):
        _empty(number)
        if os.listdir(number) == [_LOCK]:
            os.unlink(_LOCK, dir_fd=number)
            folder.rmdir()


def _empty(number: int) -> None:
    """Remove the contents of a folder without following links, even folders with the mode 000.

    The contents of an inner folder are moved up first, because a program may have nested many folders.
    """
    names = {*os.listdir(number)} - {_LOCK}
    while names:
        for name in names:
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.stat(name, dir_fd=number, follow_symlinks=False).st_mode):
                    _move_up(name, number)
                    os.rmdir(name, dir_fd=number)
                else:
                    os.unlink(name, dir_fd=number)
        names = {*os.listdir(number)} - {_LOCK} - names  # entries that can't be removed stay


def _move_up(name: str, number: int) -> None:
    """Remove the files of an inner folder, and move its folders into the open folder `number`."""
    inner = _open_folder(name, number)
    try:
        for entry in os.listdir(inner):  # noqa: PTH208 - Path takes no descriptor
            with contextlib.suppress(OSError):
                if not stat.S_ISDIR(os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode):
                    os.unlink(entry, dir_fd=inner)
                    continue
                os.close(_open_folder(entry, inner))  # makes a folder with the mode 000 movable
                os.rename(entry, f".{os.urandom(8).hex()}", src_dir_fd=inner, dst_dir_fd=number)
    finally:
        os.close(inner)


def _open_folder(name: str, number: int) -> int:
    """Open a folder in an open folder, with all permissions for the user; return its descriptor."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=number)
    try:
        Path(f"/proc/self/fd/{place}").chmod(stat.S_IRWXU)
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)
