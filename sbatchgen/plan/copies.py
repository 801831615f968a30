"""The user's own copies of what can't be changed in a sandbox: files of a project's group.

A layer takes what is changed with its owner and group, and refuses those that the sandbox does not know.
Sources: user_namespaces(7): one user and one group are known in it; the kernel's overlayfs.rst.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_MOST, _LARGEST = 2000, 64 << 10  # entries of a folder, and bytes of a file


def needs_copy(number: int, *, chosen: bool) -> bool:
    """Whether the user can change a folder, and a layer over it can't."""
    about = os.stat(number)
    is_known = (about.st_uid, about.st_gid) == (os.getuid(), os.getegid())
    return not is_known and (chosen or about.st_uid == os.getuid())


def copy(number: int, to: str) -> None:
    """Copy the folders and small files in a folder."""
    root, left = f"/proc/self/fd/{number}/.", _MOST  # of a link alone nothing is walked
    for folder, folders, names, at in os.fwalk(root):
        left -= len(folders) + len(names)
        if left < 0:
            break
        place = to + folder[len(root) :]
        for name in folders:
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and os.access(name, os.R_OK | os.X_OK, dir_fd=at):
                os.mkdir(os.path.join(place, name), mode & 0o777 | 0o700)
        for name in names:
            with suppress(OSError):
                _copy_file(name, at, os.path.join(place, name))


def _copy_file(name: str, at: int, to: str) -> None:
    number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    with os.fdopen(number, "rb") as file:
        about = os.fstat(number)
        if stat.S_ISREG(about.st_mode) and about.st_size <= _LARGEST:
            with open(to, "wb") as target:
                target.write(file.read(_LARGEST))
            os.chmod(to, about.st_mode & 0o777)
            os.utime(to, ns=(about.st_atime_ns, about.st_mtime_ns))
