"""Copies files that a sandbox can't show below a layer, or can't change there, into files of the user.

A layer keeps the owner and the group of a changed file. A sandbox knows one user and one group, and a layer
refuses all others. So a script in the sandbox could not change, for example, files of a project's group.
Sources: user_namespaces(7); overlayfs.rst of the kernel.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from sbatchgen.base.files import OTHERS_WRITE
from sbatchgen.base.machine.trust import other_writer

_MAX_ENTRIES = 2000  # entries of a folder that are copied
_MAX_BYTES = 64 << 10  # bytes of a file that is copied
_MAX_FILES = 500_000  # files of a folder that is shown without a layer


def part_to_copy(descriptor: int, *, is_chosen: bool) -> Literal["all", "some", "none"]:
    """Return which files of an open folder need a copy, because a layer can't change them.

    `is_chosen`: the user chose the folder, which may then belong to another user of the same group.
    """
    status = os.stat(descriptor)
    if not is_chosen and status.st_uid != os.getuid():
        return "none"
    if not _has_known_owner(status):
        return "all"
    entries = _entries(descriptor)
    return "some" if any(not _has_known_owner(entry.status) for entry in entries) else "none"


def copy(descriptor: int, to: str, *, only_unknown: bool) -> None:
    """Copy the folders and small files of an open folder into `to`.

    With `only_unknown`, only entries are copied whose owner or group the sandbox does not know.
    """
    root, made = _root(descriptor), {""}  # `made`: the folders that exist in `to`
    for entry in _entries(descriptor):
        name, folder = entry.name, entry.folder
        with suppress(OSError):
            if only_unknown and _has_known_owner(entry.status):
                continue
            if not stat.S_ISDIR(entry.status.st_mode):
                _make_folders(root, folder, to, made)
                _copy_file(name, entry.folder_descriptor, f"{to}{folder}/{name}")
            elif os.access(name, os.R_OK | os.X_OK, dir_fd=entry.folder_descriptor):
                _make_folders(root, f"{folder}/{name}", to, made)


def _has_known_owner(status: os.stat_result) -> bool:
    """Return whether a sandbox knows the owner and the group of a file."""
    return (status.st_uid, status.st_gid) == (os.getuid(), os.getegid())


def _root(descriptor: int) -> str:
    """Return a path of an open folder for os.fwalk, which follows a link only if "/." is at its end."""
    return f"/proc/self/fd/{descriptor}/."


class _Entry(NamedTuple):
    """An entry below an open folder."""

    folder: str  # the path of its folder below the open folder; "" for the open folder itself
    name: str
    status: os.stat_result
    folder_descriptor: int  # open until the entries of the next folder


def _entries(descriptor: int) -> Iterator[_Entry]:
    """Yield the entries below an open folder."""
    root, remaining = _root(descriptor), _MAX_ENTRIES
    for folder, folders, names, at in os.fwalk(root):
        remaining -= len(folders) + len(names)
        if remaining < 0:
            break
        for name in (*folders, *names):
            with suppress(OSError):
                status = os.stat(name, dir_fd=at, follow_symlinks=False)
                yield _Entry(folder[len(root) :], name, status, at)


def _make_folders(root: str, path: str, to: str, made: set[str]) -> None:
    """Make the folder `path` of `root`, and the folders above it, in `to`, with the modes from `root`.

    `made` has the paths of the folders that exist in `to`.
    """
    if path not in made:
        made.add(path)
        _make_folders(root, path.rpartition("/")[0], to, made)
        os.mkdir(to + path, os.stat(root + path).st_mode & 0o777 | 0o700)


# By path: the content and the mode of a file; the target of a link; None for a folder.
Files = dict[str, tuple[bytes, int] | str | None]


class CopiedPart(NamedTuple):
    """The contents of a folder, without the contents of its folders."""

    files: Files  # the folder, its links and its small files
    folders: list[str]  # the names of the folders in it
    large: int  # the number of files that are too large for a copy


def copied_part(descriptor: int, path: str) -> CopiedPart:
    """Return the contents of an open folder as files below `path`, without sockets, pipes and devices."""
    files: Files = {path: None}
    folders, large = [], 0
    at = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        with os.scandir(at) as entries:
            for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
                with suppress(OSError):
                    if entry.is_symlink():
                        files[f"{path}/{entry.name}"] = os.readlink(entry.name, dir_fd=at)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif (small := _small_file(entry.name, at)) is not None:
                        files[f"{path}/{entry.name}"] = small
                    else:
                        large += entry.is_file(follow_symlinks=False)
    finally:
        os.close(at)
    return CopiedPart(files, sorted(folders), large)


def copied_tree(descriptor: int, path: str, without: Container[str]) -> tuple[Files, int]:
    """Return the contents of an open folder and of the folders below it, and the number of files not copied.

    Folders with a path in `without` are not copied, and not counted.
    """
    files: Files = {}
    large, todo, remaining = 0, [(os.dup(descriptor), path)], _MAX_ENTRIES
    while todo:
        at, place = todo.pop()
        try:
            part = copied_part(at, place) if remaining > 0 else CopiedPart({}, [], large=1)
            remaining -= len(part.files) + len(part.folders)
            files |= part.files
            large += part.large
            for name in part.folders:
                with suppress(OSError):
                    if f"{place}/{name}" not in without:
                        todo.append((folder_in(at, name), f"{place}/{name}"))
        except OSError:
            large += 1
        finally:
            os.close(at)
    return files, large


def folder_in(descriptor: int, name: str) -> int:
    """Return a descriptor of a folder in an open folder; raise OSError for a link or a file."""
    return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)


def why_unsafe(descriptor: int) -> str:
    """Return why it is not safe to show an open folder without a layer; "" for a safe folder.

    Through a socket or a pipe, a script could reach programs outside the sandbox. Another user who can write
    the folder could make a socket or a pipe there at any time.
    """
    count, root = 0, _root(descriptor)
    for folder, folders, names, at in os.fwalk(root):
        count += len(folders) + len(names)
        if count > _MAX_FILES:
            return "it has too many files"
        status = os.fstat(at)
        if status.st_uid not in (0, os.getuid()) or status.st_mode & OTHERS_WRITE:
            real = Path(os.readlink(f"/proc/self/fd/{at}"))
            if reason := other_writer(real, real.parent):
                return f"{folder[len(root) + 1 :] or 'it'} {reason.why}"
        for name in names:
            with suppress(OSError):
                mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    return f"it has a socket, a pipe or a device: {name}"
    return ""


def _small_file(name: str, at: int) -> tuple[bytes, int] | None:
    """Return the content and the mode of a small file in the open folder `at`; None for anything else."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return None
        return file.read(_MAX_BYTES), status.st_mode & 0o777


def _copy_file(name: str, at: int, to: str) -> None:
    """Copy a small file of the open folder `at` to the path `to`, with its mode and times."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES:
            with open(to, "wb") as target:
                target.write(file.read(_MAX_BYTES))
            os.chmod(to, status.st_mode & 0o777)
            os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns))
