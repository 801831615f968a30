"""The list of folders that the user trusts although others can write them, in a file of the user's settings.

Many people work in a project folder that their group can write. The members of the group can put files there
that become part of the scripts that the user runs. `sbatchgen trust FOLDER` allows that for a folder.
"""

import contextlib
import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import CommandLineError, DocumentError
from sbatchgen.base.machine.trust import is_private, link_of_another, make_own, other_writer, user_name
from sbatchgen.base.quoting import word

FILE_NAME = "trusted.json"
MAX_BYTES = 1 << 20  # of the list


def list_file(environment: Mapping[str, str]) -> Path | None:
    """Return the file with the list, in XDG_CONFIG_HOME; None without a home folder."""
    root = files.user_folder(environment, "XDG_CONFIG_HOME", ".config")
    return Path(root, "sbatchgen", FILE_NAME) if root else None


def trusted_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that the user trusts; no folder if another user could have written the list."""
    file = list_file(environment)
    if file is None or not os.path.lexists(file) or other_writer(file):
        return ()
    with contextlib.suppress(OSError, ValueError, RecursionError):
        names = json.loads(files.read_own(file, MAX_BYTES))
        if isinstance(names, list):
            return tuple(Path(name) for name in names if isinstance(name, str) and name.startswith("/"))
    return ()


def covers(folders: tuple[Path, ...], part: Path) -> bool:
    """Return whether `part` is a trusted folder, or is inside a trusted folder.

    The answer is False if everybody can write `part`, or a folder between `part` and the trusted folder.
    """
    real = Path(os.path.realpath(part))
    return any(real.is_relative_to(folder) and _is_closed(folder, real) for folder in folders)


def _is_closed(folder: Path, part: Path) -> bool:
    """Return False if everybody can write `part`, the trusted folder, or a folder between these two."""
    try:
        between = itertools.takewhile(lambda path: path != folder.parent, (part, *part.parents))
        return not any(path.lstat().st_mode & stat.S_IWOTH for path in between)
    except OSError:
        return False


def folder_to_trust(folder: Path) -> Path:
    """Return the path of a folder without links, for the list.

    Raises CommandLineError if the folder does not exist, if another user's link leads there, or if everybody
    can write or replace the folder.
    """
    real = Path(os.path.realpath(folder))
    if link := link_of_another(folder):
        what = f"{link} is a link that another user has made, to {link.readlink()}"
        raise CommandLineError.of(what, fix=f"if you mean that folder: sbatchgen trust {word(str(real))}")
    if not real.is_dir():
        raise CommandLineError.of(f"there is no folder {folder}", fix="name a folder that exists")
    for path in (real, *real.parents):
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and (path == real or not mode & stat.S_ISVTX):
            what = f"everybody can write {path}" + (f", and so replace {real}" if path != real else "")
            raise CommandLineError.of(what, fix=f"its owner can mend that: chmod o-w {word(str(path))}")
    return real


def add(folder: Path, environment: Mapping[str, str]) -> None:
    """Add a folder from `folder_to_trust` to the list; raise DocumentError if the list can't be written."""
    _write_list(sorted({*trusted_folders(environment), folder}), environment)


def remove(folder: Path, environment: Mapping[str, str]) -> Path:
    """Remove a folder from the list, and return its path; raise CommandLineError if it is not in the list.

    The folder need not exist. The list may also have the path as it is written, because others may have put a
    link in the place of the folder.
    """
    listed = trusted_folders(environment)
    absolute = Path(os.path.normpath(folder.absolute()))
    real = absolute if absolute in listed else Path(os.path.realpath(folder))
    if real not in listed:
        fix = f"trusted are: {', '.join(map(str, listed))}" if listed else "no folder is trusted"
        raise CommandLineError.of(f"{real} is not trusted", fix=fix)
    _write_list([path for path in listed if path != real], environment)
    return real


def _write_list(folders: list[Path], environment: Mapping[str, str]) -> None:
    """Write the list of trusted folders; raise DocumentError if that fails, or others can write the list."""
    file = list_file(environment)
    if file is None:
        what = "there is no home folder for the list of trusted folders"
        raise DocumentError.of(what, fix="set HOME to your home folder")
    try:
        make_own(file.parent)
        if reason := other_writer(file.parent):
            what = f"the list would not count: {file.parent} {reason.why}"
            raise DocumentError.of(what, fix=reason.fix or "set XDG_CONFIG_HOME to a folder of your own")
        text = json.dumps([str(path) for path in folders], indent=1)
        files.put(file, text.encode() + b"\n", mode=files.PRIVATE)
    except OSError as error:
        raise DocumentError.of(f"can't write {file}: {error.strerror}", fix="is the disk full?") from error


def writers(folder: Path) -> str:
    """Return a text on who else can write or replace a folder, such as "anna and the group vision"."""
    parents = (parent for parent in folder.parents if not parent.stat().st_mode & stat.S_ISVTX)
    return " and ".join(dict.fromkeys(who for path in (folder, *parents) for who in _writers(path)))


def _writers(folder: Path) -> Iterator[str]:
    """Yield the owner and the group of a folder, if they are others who can write the folder."""
    import grp

    status = folder.stat()
    if status.st_uid not in (0, files.user_id(), Path("/").stat().st_uid):  # as in `_judge_others` of trust
        yield user_name(status.st_uid)
    if status.st_mode & stat.S_IWGRP and not is_private(status.st_gid):
        try:
            entry = grp.getgrgid(status.st_gid)
            members = f" ({', '.join(entry.gr_mem[:5])})" if 0 < len(entry.gr_mem) <= 5 else ""
            yield f"the group {entry.gr_name}{members}"
        except KeyError:
            yield f"the group {status.st_gid}"
