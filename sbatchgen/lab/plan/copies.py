"""Copies files for a sandbox that can't show them by a layer, or that can't change them in a layer.

A layer is a folder that overlayfs lays over another folder. It keeps the owner and the group of a changed
file, but a sandbox knows one user and one group, and a layer refuses all others. So a script in the sandbox
could not change, for example, files of a project's group. A copy belongs to the user, and can be changed. For
folders without a layer, this module reads the small files. Sources: user_namespaces(7); overlayfs.rst of the
kernel.
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


def files_to_copy(descriptor: int, *, is_chosen: bool) -> Literal["all", "some", "none"]:
    """Return which files of an open folder need a copy, because a layer can't change them.

    `is_chosen`: the user chose the folder, so the script may change it even if it belongs to another user.
    """
    status = os.stat(descriptor)
    if not is_chosen and status.st_uid != os.getuid():
        return "none"
    if not _has_known_owner(status):
        return "all"
    entries = _entries(descriptor)
    return "some" if any(not _has_known_owner(entry.status) for entry in entries) else "none"


def copy_folder(descriptor: int, target: str, *, only_unknown: bool) -> None:
    """Copy the folders and small files of an open folder into the folder `target`.

    With `only_unknown`, an entry is copied only if the sandbox does not know its owner or its group.
    """
    source = _path_for_walk(descriptor)
    made_folders = {""}  # the folders that exist in `target`, as paths below it
    for entry in _entries(descriptor):
        name, folder = entry.name, entry.folder
        with suppress(OSError):
            if only_unknown and _has_known_owner(entry.status):
                continue
            if not stat.S_ISDIR(entry.status.st_mode):
                _make_folders(source, folder, target, made_folders)
                _copy_file(name, entry.folder_descriptor, f"{target}{folder}/{name}")
            elif os.access(name, os.R_OK | os.X_OK, dir_fd=entry.folder_descriptor):
                _make_folders(source, f"{folder}/{name}", target, made_folders)


def _has_known_owner(status: os.stat_result) -> bool:
    """Return whether a sandbox knows the owner and the group of a file."""
    return (status.st_uid, status.st_gid) == (os.getuid(), os.getegid())


def _path_for_walk(descriptor: int) -> str:
    """Return a path of an open folder for os.fwalk.

    The path is a link in /proc, and os.fwalk follows a link only if "/." is at its end.
    """
    return f"/proc/self/fd/{descriptor}/."


class _Entry(NamedTuple):
    """A file, link or folder below an open folder."""

    folder: str  # the path of its folder below the open folder; "" for the open folder itself
    name: str
    status: os.stat_result
    folder_descriptor: int  # open until the entries of the next folder


def _entries(descriptor: int) -> Iterator[_Entry]:
    """Yield the entries below an open folder."""
    root, remaining = _path_for_walk(descriptor), _MAX_ENTRIES
    for folder, folder_names, file_names, folder_descriptor in os.fwalk(root):
        remaining -= len(folder_names) + len(file_names)
        if remaining < 0:
            break
        for name in (*folder_names, *file_names):
            with suppress(OSError):
                status = os.stat(name, dir_fd=folder_descriptor, follow_symlinks=False)
                yield _Entry(folder[len(root) :], name, status, folder_descriptor)


def _make_folders(source: str, path: str, target: str, made_folders: set[str]) -> None:
    """Make the folder `path`, and the folders above it, in the folder `target`, with their modes in `source`.

    `made_folders` has the paths of the folders that exist in `target`.
    """
    if path not in made_folders:
        made_folders.add(path)
        _make_folders(source, path.rpartition("/")[0], target, made_folders)
        os.mkdir(target + path, os.stat(source + path).st_mode & 0o777 | 0o700)


# By path: the content and the mode of a file; the target of a link; None for a folder.
Files = dict[str, tuple[bytes, int] | str | None]


class FolderContents(NamedTuple):
    """The contents of a folder, without the contents of its folders."""

    files: Files  # the folder itself, its links and its small files
    folder_names: list[str]  # the names of the folders in it
    large_count: int  # the number of files that are too large for a copy


def folder_contents(descriptor: int, path: str) -> FolderContents:
    """Return the contents of an open folder as files below `path`, without sockets, pipes and devices."""
    files: Files = {path: None}
    folder_names, large_count = [], 0
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        with os.scandir(readable) as entries:
            for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
                with suppress(OSError):
                    if entry.is_symlink():
                        files[f"{path}/{entry.name}"] = os.readlink(entry.name, dir_fd=readable)
                    elif entry.is_dir(follow_symlinks=False):
                        folder_names.append(entry.name)
                    elif (small_file := _small_file(entry.name, readable)) is not None:
                        files[f"{path}/{entry.name}"] = small_file
                    else:
                        large_count += entry.is_file(follow_symlinks=False)
    finally:
        os.close(readable)
    return FolderContents(files, sorted(folder_names), large_count)


def tree_contents(descriptor: int, path: str, excluded_paths: Container[str]) -> tuple[Files, int]:
    """Return the contents of an open folder and of all folders below it, and the number of omitted files.

    Folders with a path in `excluded_paths` are left out, and their files are not counted.
    """
    files: Files = {}
    omitted_count, remaining = 0, _MAX_ENTRIES
    open_folders = [(os.dup(descriptor), path)]
    while open_folders:
        folder, folder_path = open_folders.pop()
        try:
            if remaining <= 0:  # the tree is too large, so this folder counts as an omitted file
                omitted_count += 1
                continue
            contents = folder_contents(folder, folder_path)
            remaining -= len(contents.files) + len(contents.folder_names)
            files |= contents.files
            omitted_count += contents.large_count
            for name in contents.folder_names:
                with suppress(OSError):
                    if f"{folder_path}/{name}" not in excluded_paths:
                        open_folders.append((open_subfolder(folder, name), f"{folder_path}/{name}"))
        except OSError:
            omitted_count += 1
        finally:
            os.close(folder)
    return files, omitted_count


def open_subfolder(descriptor: int, name: str) -> int:
    """Return a descriptor of a folder in an open folder; raise OSError for a link or a file."""
    return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)


def why_unsafe(descriptor: int) -> str:
    """Return the reason why it is not safe to show an open folder without a layer; "" for a safe folder.

    Through a socket or a pipe, a script could reach programs outside the sandbox. Another user who can write
    the folder could make a socket or a pipe there at any time.
    """
    count, root = 0, _path_for_walk(descriptor)
    for path, folder_names, file_names, folder in os.fwalk(root):
        count += len(folder_names) + len(file_names)
        if count > _MAX_FILES:
            return "it has too many files"
        status = os.fstat(folder)
        if status.st_uid not in (0, os.getuid()) or status.st_mode & OTHERS_WRITE:
            real_path = Path(os.readlink(f"/proc/self/fd/{folder}"))
            if writer := other_writer(real_path, real_path.parent):
                return f"{path[len(root) + 1 :] or 'it'} {writer.why}"
        for name in file_names:
            with suppress(OSError):
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    return f"it has a socket, a pipe or a device: {name}"
    return ""


def _small_file(name: str, folder: int) -> tuple[bytes, int] | None:
    """Return the content and the mode of a small file in an open folder; None for anything else."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return None
        return file.read(_MAX_BYTES), status.st_mode & 0o777


def _copy_file(name: str, folder: int, target: str) -> None:
    """Copy a small file of an open folder to the path `target`, with its mode and times."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES:
            with open(target, "wb") as target_file:
                target_file.write(file.read(_MAX_BYTES))
            os.chmod(target, status.st_mode & 0o777)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
