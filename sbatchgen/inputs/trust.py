"""Who can write a file, and so decide what runs as this user (like git's safe.directory)."""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

from sbatchgen.files import user_id


def doubt(path: Path) -> str:
    """Say who else can write a file or folder; "" if only the user and root can, or if it does not exist."""
    try:
        status = path.lstat()
    except OSError:
        return ""
    if status.st_uid not in (0, user_id()):
        return f"belongs to another user ({user_name(status.st_uid)})"
    if stat.S_ISLNK(status.st_mode):
        target = Path(os.path.realpath(path))
        ways = (
            () if target.is_symlink() else (("into", target.parent), ("to", target))
        )  # else a circle of links
        doubts = ((f"is a link {how} {place}, which ", doubt(place)) for how, place in ways)
        return next((link + reason for link, reason in doubts if reason), "")
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    is_shared = status.st_mode & stat.S_IWGRP
    if is_shared and not _is_private(status.st_gid):
        return f"can be written by the group {_group(status.st_gid)}"
    return "can be written by others in its access list (ACL)" if is_shared and _has_acl(path) else ""


def chmod_helps(path: Path) -> bool:
    """Whether the user owns the path, and it is not a shared folder like /tmp."""
    status = path.lstat()
    sticky = status.st_mode & stat.S_ISVTX
    return status.st_uid == user_id() and not sticky and not path.is_symlink()


@functools.cache
def _is_private(group: int) -> bool:
    """Whether a group has one member, the user or root, as most systems make one for each user."""
    import grp
    import pwd

    try:
        about = grp.getgrgid(group)
        owner = pwd.getpwnam(about.gr_name)
    except KeyError:
        return False
    mine = owner.pw_uid in (0, user_id()) and owner.pw_gid == group
    return mine and set(about.gr_mem) <= {owner.pw_name}


def _has_acl(path: Path) -> bool:
    """Whether there is an access list; the group's bits are then the most that it may allow."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):  # not on Linux, or a file system without them
        return False


def user_name(number: int) -> str:
    """Return the name of a user, or the number where it has no name."""
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def _group(number: int) -> str:
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return f"gid {number}"
