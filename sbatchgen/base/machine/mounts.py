"""The mounts of this machine: the mounts below a folder, and where a folder is in its file system.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """A line of mountinfo."""

    number: int  # the id of the mount
    parent: int  # the number of the mount below
    device: str  # the device of the file system
    root: str  # the folder of the file system that the mount shows
    place: str  # the mount point


def mounts() -> tuple[Mount, ...]:
    """Return all mounts that this process sees."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    rows = [line.split(" ", 5)[:5] for line in text.split("\n") if line]
    return tuple(
        Mount(int(number), int(parent), device, _without_escapes(root), _without_escapes(place))
        for number, parent, device, root, place in rows
    )


def _without_escapes(text: str) -> str:
    """Return a path of mountinfo without its octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def below(descriptor: int, known: tuple[Mount, ...]) -> list[str]:
    """Return the mount points below an open folder, on the folder's own mount; `known`: all mounts."""
    own_number, path = _mount_of(descriptor), _path_of(descriptor).rstrip("/")
    children = [mount.place for mount in known if mount.parent == own_number]
    return sorted({place for place in children if place.startswith(f"{path}/")})


def within(outer: int, inner: int, known: tuple[Mount, ...]) -> str | None:
    """Return the path of the open folder `inner` relative to `outer`, in their file system; None if outside.

    Both folders are given by their descriptors.
    """
    outer_device, outer_path = _device_and_path(outer, known)
    inner_device, inner_path = _device_and_path(inner, known)
    prefix = outer_path.rstrip("/")
    if not outer_device or outer_device != inner_device or not f"{inner_path}/".startswith(f"{prefix}/"):
        return None
    return inner_path[len(prefix) :].lstrip("/")


def above(path: str) -> Iterator[str]:
    """Yield an absolute path, and each folder above it except /."""
    while path.strip("/"):
        yield path
        path = path.rpartition("/")[0]


def _device_and_path(descriptor: int, known: tuple[Mount, ...]) -> tuple[str, str]:
    """Return the device of an open folder, and its path in that file system; "" for an unknown mount."""
    own_number, path = _mount_of(descriptor), _path_of(descriptor)
    for mount in known:
        if mount.number == own_number:
            return mount.device, os.path.normpath(f"{mount.root}/{path[len(mount.place.rstrip('/')) :]}")
    return "", ""


def _mount_of(descriptor: int) -> int:
    """Return the number of the mount that holds an open folder."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def _path_of(descriptor: int) -> str:
    """Return the path of an open folder."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())
