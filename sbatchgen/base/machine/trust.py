"""Who can write a file, and so decide what runs as this user (like git's safe.directory)."""

import functools
import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.files import OTHERS_WRITE, user_id
from sbatchgen.base.quoting import word

_MOST_LINKS = 40  # that Linux follows on the way to a file
_Judge = Callable[..., str]  # of what is at a place, says who else decides about it


class Doubt(NamedTuple):
    """Who else can change a file or folder."""

    place: Path  # what they can change: the thing itself, a folder above it, or what a link leads to
    why: str  # who can, as the rest of a sentence about the thing
    fix: str = ""  # what keeps them out, or ""


def doubt(path: Path, start: Path | None = None) -> Doubt | None:
    """Say who else can change a thing, or put another in its place; None if only the user and root can.

    Each part of the path is judged, from / or below the folder `start`, and each link is followed. Only who
    can write a folder can replace what is in it, so the answer holds until the path is opened, and for what
    does not exist yet.
    """
    return _doubt(path, start, _others)


def open_to_all(path: Path) -> Doubt | None:
    """Say how everybody can change a program of PATH, or put another in its place; None if they can't.

    Owners and groups are believed: a user or their site has named the folder, which may be that of the staff
    who install software. In a folder like /tmp only what is the user's or root's is believed, because
    everybody could have made the rest.
    """
    return _doubt(path, None, _everybody)


def link_of_another(path: Path) -> Path | None:
    """Return the first link on the way to a thing that another user has made; None without any."""
    reason = _doubt(path, None, _link_of_another)
    return reason.place if reason and reason.place.is_symlink() else None


def _doubt(path: Path, start: Path | None, why_not: _Judge) -> Doubt | None:
    whole = path.absolute()
    todo = [*reversed((whole.relative_to(start) if start else whole).parts)]
    here, links, is_link = Path(os.path.realpath(start or "/")), 0, False
    in_sticky = 0  # who can write the folder that holds the next part, if it has the sticky bit
    while todo:
        name = todo.pop()
        folder, here = here, here.parent if name == ".." else here / name
        try:
            status = here.lstat()
        except OSError:
            return Doubt(folder, f"does not exist, and others can make it in {folder}") if in_sticky else None
        is_last = not todo
        if why := why_not(here, status, is_last=is_last, in_sticky=in_sticky):
            if is_link or not is_last:
                way = "below" if not is_link else "a link to" if is_last else "a link into"
                why = f"is {way} {here}, which {why}"
            whose = "go" if why_not is _others else "o"
            return Doubt(here, why, _fix(here, status, is_last=is_last, whose=whose))
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return None  # no one can open it
            is_link = is_link or is_last
            todo += reversed(here.readlink().parts or (".",))
            here = folder
        else:
            in_sticky = status.st_mode & OTHERS_WRITE if status.st_mode & stat.S_ISVTX else 0
    return None


def make_own(folder: Path) -> bool:
    """Make a folder for caches, as the XDG standard has it; return whether only this user can change it."""
    try:
        missing = itertools.takewhile(lambda each: not each.exists(), (folder, *folder.parents))
        for each in reversed([*missing]):
            each.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return doubt(folder) is None


def _others(place: Path, status: os.stat_result, *, is_last: bool, in_sticky: int) -> str:
    """Say who else decides what is at a place, as the rest of a sentence: in a sticky folder, its owner."""
    mine = status.st_uid in (0, user_id())
    # A container may have no number for root: then what is above has the owner of /.
    is_above = not (is_last or in_sticky)
    if not mine and not (is_above and status.st_uid == Path("/").lstat().st_uid):
        return f"belongs to another user ({user_name(status.st_uid)})"
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not is_last):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    is_shared = status.st_mode & stat.S_IWGRP
    if is_shared and not is_private(status.st_gid):
        return f"can be written by the group {_group(status.st_gid)}"
    return "can be written by others in its access list (ACL)" if is_shared and _has_acl(place) else ""


def _everybody(place: Path, status: os.stat_result, *, is_last: bool, in_sticky: int) -> str:  # noqa: ARG001 - as above
    """Say how everybody decides what is at a place, as the rest of a sentence."""
    if in_sticky & stat.S_IWOTH and status.st_uid not in (0, user_id()):
        return f"belongs to another user ({user_name(status.st_uid)}), in a folder that everybody can write"
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not is_last):
        return ""
    return "can be written by everybody" if status.st_mode & stat.S_IWOTH else ""


def _link_of_another(place: Path, status: os.stat_result, *, is_last: bool, in_sticky: int) -> str:  # noqa: ARG001 - as above
    """Say whether a place is a link of another user, as the rest of a sentence."""
    is_theirs = stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, user_id())
    return "is a link that another user has made" if is_theirs else ""


def _fix(place: Path, status: os.stat_result, *, is_last: bool, whose: str) -> str:
    """Return what keeps others out, unless it has another owner, or is for all, like /tmp."""
    if status.st_mode & stat.S_ISVTX or not status.st_mode & OTHERS_WRITE:
        return ""
    if status.st_uid == user_id():
        return f"chmod {whose}-w {word(str(place))}"
    return "" if is_last or status.st_uid else f"ask root for chmod +t {word(str(place))}"


@functools.cache
def is_private(group: int) -> bool:
    """Return whether a group has one member, the user or root, as most systems make one for each user."""
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
    """Return whether there is an access list; the group's bits are then the most that it may allow."""
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
