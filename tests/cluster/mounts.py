"""Mounts, as shell lines for the setup of a host, that change what its processes see of the file system."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path


def bind(source: Path, target: Path) -> str:
    """The line that shows a file or folder at the place of another."""
    return shlex.join(["mount", "--bind", str(source), str(target)])


def move_into(root: Path, *, keep: Iterable[Path], stage: Path) -> list[str]:
    """Lines that put another system's programs before this one's, for all that runs after them.

    Everything is at its own path: what only this system has is there too, with the other's libc, and runs with it,
    since a later libc runs what was made for an earlier one. Neither system is changed.

    Args:
        root: The folder of the other system. Of Slurm's plugins only its own are seen.
        keep: Further paths that stay where they are.
        stage: An existing folder, in which the new root is made.
    """
    system, place = shlex.quote(str(root)), shlex.quote(str(stage))
    lines = [
        f"mount -t tmpfs -o mode=755 none {place}",
        f"cd {place}",
        "mkdir -m 755 dev etc mnt proc run sys usr var",
        "mkdir -m 1777 tmp",
        *(f"cp -P {system}/{name} ." for name in ("bin", "lib", "lib64", "sbin")),
        *(f"mount -t overlay -o ro,lowerdir={system}/{name}:/{name} none {name}" for name in ("etc", "usr")),
        f"for folder in {system}/usr/lib/*/slurm-wlm; do mount --bind $folder .${{folder#{system}}}; done",
        f"mount --bind {system}/var var",
        "mount -t proc none proc",
        "mount --rbind /dev dev",
        "mount --rbind /sys sys",
    ]
    for path in sorted(set(keep)):
        target = str(stage / path.relative_to("/"))
        how = "--bind" if stage.is_relative_to(path) else "--rbind"
        lines += [shlex.join(["mkdir", "-p", target]), shlex.join(["mount", how, str(path), target])]
    return [*lines, "pivot_root . mnt", "umount -l /mnt"]


def cover(folder: Path, *, keep: Iterable[Path], mode: str, stage: Path) -> list[str]:
    """Lines that show a folder as an empty one in which only some paths remain, each where it was.

    Args:
        keep: What remains; anything outside the folder is ignored.
        mode: Octal permissions of the empty folder.
        stage: An existing folder, within what is kept or elsewhere, in which the new sight is prepared.
    """
    lines = [f"mount -t tmpfs -o mode={mode} none {shlex.quote(str(stage))}"]
    for path in sorted(path for path in keep if path.is_relative_to(folder)):
        place = stage / path.relative_to(folder)
        create = ["mkdir", "-p", str(place)] if path.is_dir() else ["install", "-D", "/dev/null", str(place)]
        lines += [shlex.join(create), shlex.join(["mount", "--rbind", str(path), str(place)])]
    return [*lines, shlex.join(["mount", "--move", str(stage), str(folder)])]


def reveal(paths: Iterable[Path], *, stage: Path) -> list[str]:
    """Lines that let every user reach some paths, even below a folder that only root may enter (/root, say).

    The folders in the way are covered with empty ones; nothing changes outside the host. Files inside the
    paths keep their own permissions. The stage (see `cover`) is to be within one of the paths, open to all.
    """
    ways: dict[Path, set[Path]] = defaultdict(set)
    closed: set[Path] = set()
    for path in {path.resolve() for path in paths}:
        for folder in reversed(path.parents):
            if not _open(folder):
                ways[folder].add(path)
                break
        if path.is_dir() and not _open(path):
            closed.add(path)
    lines = []
    for folder, keep in ways.items():
        lines += cover(folder, keep=keep, mode="755", stage=stage)
    for folder in sorted(closed):
        lines += cover(folder, keep=folder.iterdir(), mode="755", stage=stage)
    return lines


def _open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o001)
