"""Trust in files: a user who can write a file decides what runs as this user (like git's safe.directory)."""

import functools
import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.files import OTHERS_WRITE, user_id
from sbatchgen.base.quoting import word

_MAX_LINKS = 40  # links that Linux follows on the way to a file
# A function that returns who else can change or replace a part of a path; "" if no other user can. Such a
# function gets the part, its status, whether the part is the last, and the write bits of a sticky folder
# around it.
_Judge = Callable[..., str]


class OtherWriter(NamedTuple):
    """The fact that others can change or replace a file or folder."""

    place: Path  # the path that others can change: the file, a folder above the file, or a link's target
    why: str  # who can change the path, as the rest of a sentence about the file
    fix: str = ""  # the command that prevents such changes, or ""


def other_writer(path: Path, start: Path | None = None) -> OtherWriter | None:
    """Return who else can change or replace a file or folder; None if only the user and root can.

    Each part of the path is judged, from / or from below the folder `start`, and each link is followed.
    Replacing a file needs the right to write its folder. So the answer holds until the path is opened, and
    also for a file that does not exist yet.
    """
    return _other_writer(path, start, _judge_others)


def open_to_all(path: Path) -> OtherWriter | None:
    """Return how everybody can change or replace a program of PATH; None if not everybody can.

    Owners and groups are trusted, because the user or the site has named the folder, which may belong to the
    staff who install software. In a folder such as /tmp only programs of the user and of root are trusted,
    because everybody could have made the other programs.
    """
    return _other_writer(path, None, _judge_everybody)


def link_of_another(path: Path) -> Path | None:
    """Return the first link on a path that another user has made; None without such a link."""
    reason = _other_writer(path, None, _judge_link)
    return reason.place if reason and reason.place.is_symlink() else None


def _other_writer(path: Path, start: Path | None, judge: _Judge) -> OtherWriter | None:
    """Return the first part of a path for which `judge` has a reason; None without such a part."""
    absolute = path.absolute()
    remaining = [*reversed((absolute.relative_to(start) if start else absolute).parts)]
    part, links, is_link = Path(os.path.realpath(start or "/")), 0, False
    # The write bits of the folder that holds the next part, if that folder has the sticky bit; otherwise 0.
    sticky_write_bits = 0
    while remaining:
        name = remaining.pop()
        folder, part = part, part.parent if name == ".." else part / name
        try:
            status = part.lstat()
        except OSError:
            why = f"does not exist, and others can make it in {folder}"
            return OtherWriter(folder, why) if sticky_write_bits else None
        is_last = not remaining
        if why := judge(part, status, is_last=is_last, sticky_write_bits=sticky_write_bits):
            if is_link:
                why = f"is {'a link to' if is_last else 'a link into'} {part}, which {why}"
            elif not is_last:
                why = f"is below {part}, which {why}"
            whose = "go" if judge is _judge_others else "o"  # the classes of chmod
            return OtherWriter(part, why, _fix(part, status, is_last=is_last, whose=whose))
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return None  # no user can open the path
            is_link = is_link or is_last
            remaining += reversed(part.readlink().parts or (".",))
            part = folder
        else:
            sticky_write_bits = status.st_mode & OTHERS_WRITE if status.st_mode & stat.S_ISVTX else 0
    return None


def make_own(folder: Path) -> bool:
    """Make a private folder as the XDG standard asks; return whether only this user can change the folder."""
    try:
        missing = itertools.takewhile(lambda parent: not parent.exists(), (folder, *folder.parents))
        for parent in reversed([*missing]):
            parent.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return other_writer(folder) is None


def _judge_others(place: Path, status: os.stat_result, *, is_last: bool, sticky_write_bits: int) -> str:
    """Return who else can change or replace a path, as the rest of a sentence, or ""."""
    is_ours = status.st_uid in (0, user_id())
    # A container may have no number for root. Then folders of root belong to the owner of /, who is trusted
    # for the folders above the file.
    is_above = not (is_last or sticky_write_bits)
    if not is_ours and not (is_above and status.st_uid == Path("/").lstat().st_uid):
        return f"belongs to another user ({user_name(status.st_uid)})"
    # The mode of a link does not count. A sticky folder keeps others from replacing the user's files.
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not is_last):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    is_shared = status.st_mode & stat.S_IWGRP
    if is_shared and not is_private(status.st_gid):
        return f"can be written by the group {_group_name(status.st_gid)}"
    return "can be written by others in its access list (ACL)" if is_shared and _has_acl(place) else ""


def _judge_everybody(place: Path, status: os.stat_result, *, is_last: bool, sticky_write_bits: int) -> str:  # noqa: ARG001 - a _Judge
    """Return how everybody can change or replace a path, as the rest of a sentence, or ""."""
    if sticky_write_bits & stat.S_IWOTH and status.st_uid not in (0, user_id()):
        return f"belongs to another user ({user_name(status.st_uid)}), in a folder that everybody can write"
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not is_last):
        return ""
    return "can be written by everybody" if status.st_mode & stat.S_IWOTH else ""


def _judge_link(place: Path, status: os.stat_result, *, is_last: bool, sticky_write_bits: int) -> str:  # noqa: ARG001 - a _Judge
    """Return that a path is a link of another user, as the rest of a sentence, or ""."""
    is_theirs = stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, user_id())
    return "is a link that another user has made" if is_theirs else ""


def _fix(place: Path, status: os.stat_result, *, is_last: bool, whose: str) -> str:
    """Return the command that prevents others from writing; "" for shared folders such as /tmp."""
    if status.st_mode & stat.S_ISVTX or not status.st_mode & OTHERS_WRITE:
        return ""
    if status.st_uid == user_id():
        return f"chmod {whose}-w {word(str(place))}"
    return "" if is_last or status.st_uid else f"ask root for chmod +t {word(str(place))}"


@functools.cache
def is_private(group: int) -> bool:
    """Return whether the user or root is the only member of a group. Most systems have such user groups."""
    import grp
    import pwd

    try:
        about = grp.getgrgid(group)
        owner = pwd.getpwnam(about.gr_name)
    except KeyError:
        return False
    is_own_group = owner.pw_uid in (0, user_id()) and owner.pw_gid == group
    return is_own_group and set(about.gr_mem) <= {owner.pw_name}


def _has_acl(path: Path) -> bool:
    """Return whether a path has an access list (ACL), whose rights the group bits then limit."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):  # another system, or a file system without access lists
        return False


def user_name(number: int) -> str:
    """Return the name of a user, or "uid N" if the number has no name."""
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def _group_name(number: int) -> str:
    """Return the name of a group, or "gid N" if the number has no name."""
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return f"gid {number}"
