"""Who can write a file, and so decide what runs as this user (like git's safe.directory)."""

import contextlib
import functools
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sbatchgen.errors import DocumentError
from sbatchgen.files import OTHERS_WRITE, user_id
from sbatchgen.quoting import word

_MOST_LINKS = 40  # that Linux follows on the way to a file


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
    whole = path.absolute()
    todo = [*reversed((whole.relative_to(start) if start else whole).parts)]
    here, links, is_link, in_sticky = Path(os.path.realpath(start or "/")), 0, False, False
    while todo:
        name = todo.pop()
        folder, here = here, here.parent if name == ".." else here / name
        try:
            status = here.lstat()
        except OSError:
            return Doubt(folder, f"does not exist, and others can make it in {folder}") if in_sticky else None
        is_last = not todo
        if why := _others(here, status, is_last=is_last, in_sticky=in_sticky):
            if is_link or not is_last:
                way = "below" if not is_link else "a link to" if is_last else "a link into"
                why = f"is {way} {here}, which {why}"
            return Doubt(here, why, _fix(here, status, is_last=is_last))
        in_sticky = bool(status.st_mode & stat.S_ISVTX and status.st_mode & OTHERS_WRITE)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return None  # no one can open it
            is_link = is_link or is_last
            todo += reversed(here.readlink().parts or (".",))
            here = folder
    return None


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a temporary folder that no one else can enter, change or replace; it is removed at the end.

    Raises DocumentError: there is no place for one.
    """
    import shutil
    import tempfile

    problems = []
    for place in (None, "/tmp", "/var/tmp"):  # noqa: S108 - a new folder in them is this user's alone
        try:
            folder = tempfile.mkdtemp(prefix=prefix, dir=place)
        except OSError as error:
            problems.append(str(error.strerror))
            continue
        if not (reason := doubt(Path(folder))):
            break
        problems.append(f"{folder} {reason.why}")
        with contextlib.suppress(OSError):
            Path(folder).rmdir()  # another one may have its name by now: it is removed only if it is empty
    else:
        what = f"can't make a folder for temporary files: {problems[0]}"
        raise DocumentError.of(what, fix="export TMPDIR=FOLDER, one that only you can write into")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_own(folder: Path) -> bool:
    """Make a folder for caches, as the XDG standard has it; return whether only this user can change it."""
    try:
        missing = itertools.takewhile(lambda each: not each.exists(), (folder, *folder.parents))
        for each in reversed([*missing]):
            each.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return doubt(folder) is None


def _others(place: Path, status: os.stat_result, *, is_last: bool, in_sticky: bool) -> str:
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
    if is_shared and not _is_private(status.st_gid):
        return f"can be written by the group {_group(status.st_gid)}"
    return "can be written by others in its access list (ACL)" if is_shared and _has_acl(place) else ""


def _fix(place: Path, status: os.stat_result, *, is_last: bool) -> str:
    """Return what keeps others out, unless it has another owner, or is for all, like /tmp."""
    if status.st_mode & stat.S_ISVTX or not status.st_mode & OTHERS_WRITE:
        return ""
    if status.st_uid == user_id():
        return f"chmod go-w {word(str(place))}"
    return "" if is_last or status.st_uid else f"ask root for chmod +t {word(str(place))}"


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
