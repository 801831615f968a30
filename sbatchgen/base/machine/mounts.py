"""The mounts of this machine: what lies below a folder, and under which names a folder is seen.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """A mount."""

    number: int
    parent: int  # the number of the mount that it lies on
    device: str  # of its file system
    root: str  # the folder of the file system that it shows
    place: str  # where


def mounts() -> tuple[Mount, ...]:
    """Return all mounts that this process sees."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    rows = [line.split(" ", 5)[:5] for line in text.split("\n") if line]
    return tuple(
        Mount(int(number), int(parent), device, _plain(root), _plain(place))
        for number, parent, device, root, place in rows
    )


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def below(number: int, known: tuple[Mount, ...]) -> list[str]:
    """Return where mounts lie on the mount of an open folder, below the folder."""
    mine, path = _mount_of(number), _path_of(number).rstrip("/")
    return sorted({each.place for each in known if each.parent == mine and each.place.startswith(f"{path}/")})


def within(outer: int, inner: int, known: tuple[Mount, ...]) -> str | None:
    """Return the path of an open folder in another one, whatever their names; None if it is outside."""
    (device, path), (other, place) = (_in_file_system(number, known) for number in (outer, inner))
    if device != other or not device or not f"{place}/".startswith(f"{path.rstrip('/')}/"):
        return None
    return place[len(path.rstrip("/")) :].lstrip("/")


def above(path: str) -> Iterator[str]:
    """Yield a path, and each folder above it."""
    while path.strip("/"):
        yield path
        path = path.rpartition("/")[0]


def _in_file_system(number: int, known: tuple[Mount, ...]) -> tuple[str, str]:
    """Return the device of an open folder and its path there; "" where no mount is known."""
    mine, path = _mount_of(number), _path_of(number)
    for each in known:
        if each.number == mine:
            return each.device, os.path.normpath(f"{each.root}/{path[len(each.place.rstrip('/')) :]}")
    return "", ""


def _mount_of(number: int) -> int:
    """Return the number of the mount on which an open folder lies."""
    lines = Path(f"/proc/self/fdinfo/{number}").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def _path_of(number: int) -> str:
    return str(Path(f"/proc/self/fd/{number}").readlink())
