"""What git says of a folder. Nothing else starts git, and git starts nothing that a repository names.

The configuration of a repository names programs: a monitor of its files, hooks, filters of contents, and
transports that fetch what is missing (git-config(1), gitattributes(5)). It comes with a copied folder, and
whoever can write it could run commands as this user.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from sbatchgen.errors import Problem
from sbatchgen.inputs.search import Places
from sbatchgen.machine import child

TIMEOUT_S = 20.0
_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "safe.bareRepository=explicit")
_LIST = ("config", "--list", "--show-origin", "-z")  # an origin, and a name and a value with \n between
_WITHOUT_FILTER = ("clean=", "smudge=", "process=", "required=false")
_INCLUDE = re.compile(r"include(?:if\..*)?\.path", re.DOTALL)
_OF_GIT = "%("  # %(prefix), where git is installed
_FILTER = re.compile(r"filter\.(.+)\.[^.]+", re.DOTALL)
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch what it lacks, by ssh or any program
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}


def git(folder: Path, *arguments: str, bare: bool = False) -> str | None:
    """Return what git prints, without the last line break.

    None if it fails, or if others can write the folder of the repository, its .git or its configuration: that
    is reported like other files that are left out. The folder is in a working tree; with `bare` it is a
    repository itself.
    """
    root = folder.resolve() if bare else _root(folder)
    if root is None:
        return None
    place = root if bare else root / ".git"
    at = ["-C", str(folder), f"--git-dir={place}", *([] if bare else [f"--work-tree={root}"])]
    listed = _printed(*at, *_LIST)
    if listed is None:
        return None
    entries = _entries(listed)
    if any(_INCLUDE.fullmatch(name) and value.startswith(_OF_GIT) for _, name, value in entries):
        return None  # git alone knows the folder that this stands for
    filters = dict.fromkeys(match[1] for _, name, _ in entries if (match := _FILTER.fullmatch(name)))
    is_safe = Places(root, os.environ).is_safe(place, root, _parts(folder, root, place, entries))
    if any("=" in name for name in filters) or not is_safe:
        return None  # -c ends a name at its first "="
    settings = [f"filter.{name}.{setting}" for name in filters for setting in _WITHOUT_FILTER]
    return _printed(*at, *(word for setting in settings for word in ("-c", setting)), *arguments)


def refusal(folder: Path) -> Problem | None:
    """Return why the repository of a folder is left out: others can write it; None if that is not so."""
    root = _root(folder)
    if root is None:
        return None
    place = root / ".git"
    listed = _printed("-C", str(folder), f"--git-dir={place}", f"--work-tree={root}", *_LIST)
    parts = _parts(folder, root, place, _entries(listed or ""))
    return Places(root, os.environ).refusal(place, root, parts)


def _root(folder: Path) -> Path | None:
    """Return the nearest folder above with a .git.

    git itself would also take a folder that only looks like a repository: a clone may hold such a folder.
    """
    place = folder.resolve()
    above = (each for each in (place, *place.parents) if os.path.lexists(each / ".git"))
    return next(above, None)


def _entries(listed: str) -> list[tuple[str, str, str]]:
    """Return origin, name and value of each setting in what `_LIST` prints."""
    texts = listed.split("\0")
    pairs = zip(texts[::2], (each.partition("\n") for each in texts[1::2]), strict=False)
    return [(origin, name, value) for origin, (name, _, value) in pairs]


def _parts(
    folder: Path, root: Path, place: Path, entries: Iterable[tuple[str, str, str]]
) -> list[tuple[str, Path]]:
    """Return what must be the user's own, with what to call each: the files of the configuration too.

    So are those that it includes: git does not list one without a key, which may have keys a moment later,
    as a FIFO has. Of one that is not there, the folder is judged that would hold the file.
    """
    files: dict[str, Path] = {}
    for origin, name, value in entries:
        if origin.startswith("file:"):
            file = folder / origin.removeprefix("file:")
            files[str(file)] = file
            if _INCLUDE.fullmatch(name):
                included = file.parent / os.path.expanduser(value)  # noqa: PTH111 - of a user who is unknown
                while not os.path.lexists(included):
                    included = included.parent
                files[str(included)] = included
    held = (
        _printed("-C", str(folder), f"--git-dir={place}", "rev-parse", "--git-dir", "--git-common-dir") or ""
    )
    for own in (folder / line for line in held.splitlines()):  # those of a worktree are elsewhere
        parts = (own, own / "config", own / "config.worktree")
        files |= {str(part): part for part in parts if os.path.lexists(part)}
    return [("its folder", root), ("it", place), *files.items()]


def _printed(*arguments: str) -> str | None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    settings = (word for setting in _SETTINGS for word in ("-c", setting))
    words = ["git", "--no-pager", *settings, *arguments]
    try:
        done = child.run(words, environment | _ENVIRONMENT, timeout=TIMEOUT_S)
    except (OSError, child.LateError):
        return None
    return None if done.returncode else os.fsdecode(done.stdout).removesuffix("\n")
