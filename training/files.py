"""The run folder, which only its user can write, and its files. No link is followed, and no FIFO is awaited.

The module needs no torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from training.errors import FolderError

SMALL_BYTES = 1 << 20  # the most bytes that are read of a status, lock or stop file
OTHER_FOLDER = "another --run-dir"  # a fix in messages
CHECKPOINTS = "checkpoints"  # the name of the checkpoints' folder in the run folder
LOCK = "lock.json"  # a file that is updated all the time, even while the training makes no progress
BEST, EPOCH_NAME = "best.pt", "checkpoint_epoch_{}.pt"
STEP_NAME = re.compile(r"step-([0-9]{8,15})\.pt")  # such as step-00000120.pt
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH  # the rights of other users to write


def own_folder(path: Path, *inside: str, make: bool = True) -> None:
    """Make the run folder, or without `make` only check it; raise FolderError if other users can write it.

    `inside` names folders in the run folder that are also checked.
    """
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - follows no link
    real = Path(os.path.realpath(absolute.parent))
    for above in {*absolute.parents, real, *real.parents}:
        with contextlib.suppress(OSError):  # the folder is missing
            # Everybody can write a folder above, and rename the files of others: it lacks /tmp's sticky bit.
            if above.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                raise FolderError("everybody can replace the run folder", at=str(above), fix=OTHER_FOLDER)
    if absolute.is_symlink():
        raise FolderError("the run folder is a link", at=str(path), fix=f"--run-dir {os.path.realpath(path)}")
    if make:
        path.mkdir(parents=True, exist_ok=True)
    for folder in (path, *(Path(os.path.realpath(path / name)) for name in inside)):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                _check_folder(descriptor, folder, change=make)
            finally:
                os.close(descriptor)


def _check_folder(folder: int, path: Path, *, change: bool) -> None:
    """Check a folder and its files by its descriptor, because its path may meanwhile name another folder."""
    if change:
        # A default access list would overrule the umask. Only Linux has the function.
        with contextlib.suppress(OSError, AttributeError):
            os.removexattr(folder, "system.posix_acl_default")
    _check_owner(folder, ".", at=path, change=change)
    for name in os.listdir(folder):  # root (0) may own files in the folder, but not the folder
        _check_owner(folder, name, 0, at=path / name, change=change)


def _check_owner(folder: int, name: str, *other_owners: int, at: Path, change: bool) -> None:
    """Raise FolderError unless this user, or one of `other_owners`, owns a file.

    With `change`, take from other users the right to write this user's file.
    """
    with contextlib.suppress(FileNotFoundError):  # a running job removed the file
        status, me = os.stat(name, dir_fd=folder, follow_symlinks=False), os.geteuid()
        if status.st_uid not in {me, *other_owners}:
            what = f"the run folder, or what is in it, belongs to another user ({status.st_uid})"
            raise FolderError(what, at=str(at), fix=OTHER_FOLDER)
        is_file = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if change and status.st_uid == me and status.st_mode & OTHERS_WRITE and is_file:
            _close_to_others(folder, name)


def _close_to_others(folder: int, name: str) -> None:
    """Take from other users the right to write a file of this user."""
    with contextlib.suppress(OSError):  # the file can't be opened, or was replaced meanwhile
        entry = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
        try:
            status = os.fstat(entry)
            if status.st_uid == os.geteuid():
                os.fchmod(entry, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE)
        finally:
            os.close(entry)


def open_regular(path: Path, mode: str = "rb", *, follow: bool = False) -> IO[bytes]:
    """Open a regular file; raise OSError for another kind of file. Mode "ab" has no buffer.

    A link also raises OSError unless `follow` is set.
    """
    extra_flags = os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    buffering = 0 if mode == "ab" else -1
    file = open(path, mode, buffering, opener=lambda name, flags: os.open(name, flags | extra_flags, 0o644))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return cast("IO[bytes]", file)


def read_small(path: Path, *, size: int = SMALL_BYTES) -> bytes:
    """Return the first `size` bytes of a regular file; raises OSError like `open_regular`."""
    with open_regular(path) as file:
        return file.read(size)


def parse(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a text; an empty dictionary if the text is not an object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def temporary_name(path: Path) -> Path:
    """Return the path of a new file that will replace a file; other users can't guess its name."""
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")


def replace(path: Path, fill: Callable[[IO[bytes]], object], *, durable: bool = False) -> None:
    """Replace a file as a whole by a new file that `fill` writes; after an error the old file stays.

    A `durable` file is on the disk when this function returns, so it survives a crash.
    """
    new = temporary_name(path)
    try:
        with new.open("xb") as file:
            fill(file)
            if durable:  # the bytes are on the disk before the file gets its name
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step:08}.pt"


def checkpoint_step(path: Path) -> int | None:
    """Return the step in the name of a checkpoint; None for any other name."""
    match = STEP_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the files in a folder with names of checkpoints, the latest step first."""
    entries = folder.iterdir() if folder.is_dir() else ()
    paths = [path for path in entries if checkpoint_step(path) is not None]
    return sorted(paths, key=lambda path: checkpoint_step(path) or 0, reverse=True)


@dataclass
class _Held:
    """A run folder that is held open, because its path may stop working (see `hold_run_folder`)."""

    path: Path
    descriptor: int
    is_entered: bool = False  # whether it is the current folder of this process


_held: list[_Held] = []  # at most one folder


def hold_run_folder(run_dir: Path) -> None:
    """Keep the run folder open, because its path may stop working before the run ends.

    In a container, a path stops working when the image's file system ends, if the image has the first folder
    of the path, such as /home or /tmp. A path relative to the current folder needs no image. Therefore
    `enter_run_folder` changes to the held folder, and `reachable` then returns relative paths.
    """
    _held.append(_Held(run_dir, os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))


def enter_run_folder() -> None:
    """Change to the held run folder, because the event that ends the run may also end the image."""
    for held in _held:
        os.fchdir(held.descriptor)
        held.is_entered = True


def release_run_folder() -> None:
    """Close the held run folder, after the last write."""
    while _held:
        os.close(_held.pop().descriptor)


def reachable(path: Path) -> Path:
    """Return a path that works now for the run folder, or for a file in the run folder."""
    return next((path.relative_to(held.path) for held in _held if held.is_entered), path)
