"""What is shown in place of files that a sandbox may not change, or that no user can copy into a layer.

Sources: user_namespaces(7): one user and one group are known in a sandbox; the kernel's overlayfs.rst.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import ExitStack, suppress

_MOST, _LARGEST = 2000, 64 << 10  # entries of a folder, and bytes of a file


def folder_for(opened: ExitStack) -> str:
    """Return a folder that is there as long as `opened` is."""
    return opened.enter_context(tempfile.TemporaryDirectory(prefix="sbatchgen-"))


def device(path: str, opened: ExitStack) -> str:
    """Return another file of a device: root's programs own those of /dev, and could close them to all."""
    twin = os.path.join(folder_for(opened), "device")
    try:
        about = os.stat(path)
        os.mknod(twin, about.st_mode, about.st_rdev)
        os.chmod(twin, about.st_mode & 0o777)
        os.close(os.open(twin, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:  # as in containers, and on file systems without devices
        return path
    return twin


def of_group(number: int, opened: ExitStack) -> str:
    """Return the user's own copy of the folders and small files in a folder; "" if its group is the user's.

    A layer takes what is changed with its owner and group, and refuses those that the sandbox does not know:
    in a project's folder that is all there is.
    """
    about = os.stat(number)
    if os.getuid() == 0 or (about.st_uid, about.st_gid) == (os.getuid(), os.getegid()):
        return ""
    twin, left = folder_for(opened), _MOST
    root = f"/proc/self/fd/{number}/."  # of a link alone nothing is walked
    for folder, folders, names, at in os.fwalk(root):
        left -= len(folders) + len(names)
        if left < 0:
            break
        place = twin + folder[len(root) :]
        for name in folders:
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and os.access(name, os.R_OK | os.X_OK, dir_fd=at):
                os.mkdir(os.path.join(place, name), mode & 0o777 | 0o700)
        for name in names:
            with suppress(OSError):
                _copy(name, at, os.path.join(place, name))
    return twin


def _copy(name: str, at: int, twin: str) -> None:
    """Copy a small file."""
    number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    with os.fdopen(number, "rb") as file:
        about = os.fstat(number)
        if stat.S_ISREG(about.st_mode) and about.st_size <= _LARGEST:
            with open(twin, "wb") as copy:
                copy.write(file.read(_LARGEST))
            os.chmod(twin, about.st_mode & 0o777)
            os.utime(twin, ns=(about.st_atime_ns, about.st_mtime_ns))
