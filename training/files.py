"""The run folder, which is its user's alone, and its files: follows no link, waits on no FIFO. No torch."""

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

SMALL = 1 << 20  # bytes that are read at most of a status, lock or stop file
OTHER = "another --run-dir"
CHECKPOINTS = "checkpoints"  # the folder in the run folder
LOCK = "lock.json"  # touched all the time, also while the training stands still
BEST, EPOCH_NAME = "best.pt", "checkpoint_epoch_{}.pt"
STEP_NAME = re.compile(r"step-([0-9]{8,15})\.pt")
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_folder(path: Path, *inside: str, make: bool = True) -> None:
    """Make the run folder (or only check it), for its user alone; FolderError if others could write there."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - follows no link
    real = Path(os.path.realpath(absolute.parent))
    for above in {*absolute.parents, real, *real.parents}:
        with contextlib.suppress(OSError):  # it is missing
            if above.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                raise FolderError("everybody can replace the run folder", at=str(above), fix=OTHER)
    if absolute.is_symlink():
        raise FolderError("the run folder is a link", at=str(path), fix=f"--run-dir {os.path.realpath(path)}")
    if make:
        path.mkdir(parents=True, exist_ok=True)
    for folder in (path, *(Path(os.path.realpath(path / name)) for name in inside)):
        with contextlib.suppress(FileNotFoundError):
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                _own_opened(opened, folder, change=make)
            finally:
                os.close(opened)


def _own_opened(folder: int, path: Path, *, change: bool) -> None:
    """Check an open folder and its files; the folder's name may be another one's a moment later."""
    if change:
        with contextlib.suppress(OSError, AttributeError):  # not on Linux; it would overrule the umask
            os.removexattr(folder, "system.posix_acl_default")
    _own(folder, ".", at=path, change=change)
    for name in os.listdir(folder):
        _own(folder, name, 0, at=path / name, change=change)


def _own(folder: int, name: str, *others: int, at: Path, change: bool) -> None:
    """Check that a file or folder belongs to us or these users, and let only its owner write it."""
    with contextlib.suppress(FileNotFoundError):  # of a job that runs there
        status, me = os.stat(name, dir_fd=folder, follow_symlinks=False), os.geteuid()
        if status.st_uid not in {me, *others}:
            what = f"the run folder, or what is in it, belongs to another user ({status.st_uid})"
            raise FolderError(what, at=str(at), fix=OTHER)
        is_file = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if change and status.st_uid == me and status.st_mode & OTHERS_WRITE and is_file:
            _close_to_others(folder, name)


def _close_to_others(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):  # not to be opened, or exchanged meanwhile
        entry = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
        try:
            status = os.fstat(entry)
            if status.st_uid == os.geteuid():
                os.fchmod(entry, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE)
        finally:
            os.close(entry)


def open_regular(path: Path, mode: str = "rb", *, follow: bool = False) -> IO[bytes]:
    """Open a regular file, for "ab" without a buffer; OSError for others, and links without `follow`."""
    how = os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    buffering = 0 if mode == "ab" else -1
    file = open(path, mode, buffering, opener=lambda name, flags: os.open(name, flags | how, 0o644))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return cast("IO[bytes]", file)


def read_small(path: Path, *, size: int = SMALL) -> bytes:
    """Return the first `size` bytes of a regular file; raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read(size)


def parse(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a text; empty if there is no object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def temporary_name(path: Path) -> Path:
    """Return an unguessable name beside a file, to be renamed to it."""
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")


def replace(path: Path, fill: Callable[[IO[bytes]], object], *, durable: bool = False) -> None:
    """Replace a file as a whole by what `fill` writes; after any error of that the old one is unchanged."""
    new = temporary_name(path)
    try:
        with new.open("xb") as file:
            fill(file)
            if durable:  # also after a crash: the bytes are on disk before the file gets its name
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
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def name_of(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step:08}.pt"


def step_of(path: Path) -> int | None:
    """Return the step in the name of a checkpoint; None if it has another name."""
    match = STEP_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints by step, newest first. No other record says which there are."""
    paths = [path for path in folder.iterdir() if step_of(path) is not None] if folder.is_dir() else []
    return sorted(paths, key=lambda path: step_of(path) or 0, reverse=True)


@dataclass
class _Held:
    """A folder that was opened while its path led to it."""

    path: Path
    opened: int
    is_own: bool = False  # the process's own folder


_held: list[_Held] = []


def hold(run_dir: Path) -> None:
    """Keep the run folder open, whose path may end before the run: then `enter` it, and go `near` its files.

    In a container, a path leads nowhere once the image's file system has ended, if the image, too, has the
    first folder of the path, as it has /home and /tmp. A path from the process's own folder asks no image.
    """
    _held.append(_Held(run_dir, os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))


def enter() -> None:
    """Make a run folder that is held this process's own: what ends the run may end the image, too."""
    for held in _held:
        os.fchdir(held.opened)
        held.is_own = True


def let_go() -> None:
    """Close a run folder that is held: nothing more is written there."""
    while _held:
        os.close(_held.pop().opened)


def near(path: Path) -> Path:
    """Return the path of the run folder, or of a file in it, as it can be reached now."""
    return next((path.relative_to(held.path) for held in _held if held.is_own), path)
