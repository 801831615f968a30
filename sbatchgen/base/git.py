"""What git says of a folder. Nothing else starts git, and git starts nothing that a repository names.

The configuration of a repository names programs: a monitor of its files, hooks, filters of contents, and
transports that fetch what is missing (git-config(1), gitattributes(5)). It comes with a copied folder. So git
gets a repository of ours, in a temporary folder: with the commits, the index and the branches of the user's,
but with a configuration of ours. git reads no other configuration.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import Problem
from sbatchgen.base.machine import child
from sbatchgen.base.machine.ignored import leave_out, refused
from sbatchgen.base.machine.temporary import temporary_folder

TIMEOUT_S = 20.0
_LONGEST = 1 << 16  # bytes of HEAD, of a .git that is a file, and of commondir: one line each
_HEAD = re.compile(r"ref: refs/[^\s\0]+|[0-9a-f]{40}|[0-9a-f]{64}")
# How files are compared with a commit, and how commits are named: a value that names no file.
_FORMAT = re.compile(
    r"core\.(?:filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|trustctime|checkstat)"
    r"|extensions\.objectformat"
)
_VALUE = re.compile(r"[A-Za-z0-9]{1,16}")
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch what it lacks, by ssh or any program
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}


def git(folder: Path, *arguments: str, bare: bool = False) -> str | None:
    """Return what git prints of the repository that a folder is in, without the last line break.

    None if it fails, or if others can write the folder of the repository or its .git: that is reported like
    other files that are left out. With `bare` the folder is a repository itself, without a working tree.
    """
    root = folder.resolve() if bare else _root(folder)
    place = root if bare or root is None else root / ".git"
    held = _held(place) if place else None
    if root is None or place is None or held is None:
        return None
    if reason := refused(place, root, _parts(root, place, held), os.environ, here=root):
        leave_out(*reason)
        return None
    with temporary_folder("sbatchgen-git-") as ours:
        environment = _environment(ours, *held)
        try:
            _make(ours, *held, environment, bare=bare)
        except OSError:
            return None
        tree = [] if bare else [f"--work-tree={root}"]
        return _printed("-C", str(folder), f"--git-dir={ours}", *tree, *arguments, to=environment)


def refusal(folder: Path) -> Problem | None:
    """Return why the repository of a folder is left out: others can write it; None if that is not so."""
    root = _root(folder)
    if root is None or (held := _held(place := root / ".git")) is None:
        return None
    reason = refused(place, root, _parts(root, place, held), os.environ, here=root)
    return reason[1] if reason else None


def _root(folder: Path) -> Path | None:
    """Return the nearest folder above with a .git.

    git itself would also take a folder that only looks like a repository: a clone may hold such a folder.
    """
    place = folder.resolve()
    above = (each for each in (place, *place.parents) if os.path.lexists(each / ".git"))
    return next(above, None)


def _held(place: Path) -> tuple[Path, Path] | None:
    """Return where a repository has its index, and where its commits and branches are; None if it has none.

    They are elsewhere for a submodule and for a second working tree: gitrepository-layout(5).
    """
    try:
        own = place if place.is_dir() else place.parent / _line(place).removeprefix("gitdir: ")
        common = own / _line(own / "commondir") if os.path.lexists(own / "commondir") else own
    except OSError:
        return None
    return own, common


def _line(path: Path, form: re.Pattern[str] | None = None) -> str:
    """Return the line that a file holds; raises OSError if it can't be read, or has not this form."""
    line = os.fsdecode(files.read_file(path, _LONGEST)).rstrip("\n")
    if "\0" in line or (form and not form.fullmatch(line)):
        raise OSError(f"not a file of git: {path}")
    return line


def _parts(root: Path, place: Path, held: tuple[Path, Path]) -> list[tuple[str, Path]]:
    """Return what must be the user's own, with what to call each."""
    elsewhere = {str(part): part for part in held if part != place}
    return [("its folder", root), ("it", place), *elsewhere.items()]


def _environment(ours: Path, own: Path, common: Path) -> dict[str, str]:
    """Return the environment in which git reads our repository, and the commits and index of the user."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        **_ENVIRONMENT,
        "HOME": str(ours),  # where git looks for a configuration
        "XDG_CONFIG_HOME": str(ours),
        "GIT_OBJECT_DIRECTORY": str(common / "objects"),
        "GIT_INDEX_FILE": str(own / "index"),
    }


def _make(ours: Path, own: Path, common: Path, environment: dict[str, str], *, bare: bool) -> None:
    """Make our repository in an empty folder; raises OSError if the user's can't be read."""
    for part in (own / "index", common / "config", common / "packed-refs"):
        if part.exists() and not part.is_file():
            raise OSError(f"git would wait for a writer: {part}")
    (ours / "HEAD").write_text(_line(own / "HEAD", _HEAD))
    (ours / "config").write_text("".join(_configuration(common / "config", environment, bare=bare)))
    shared = own.glob("sharedindex.*")  # the rest of an index that is split
    for part in (common / "refs", common / "packed-refs", *shared):
        (ours / part.name).symlink_to(part)


def _configuration(file: Path, environment: dict[str, str], *, bare: bool) -> Iterator[str]:
    """Yield the lines of our configuration: of the user's what only describes files and names of commits."""
    listed = _printed("config", "--file", str(file), "--no-includes", "--list", "-z", to=environment) or ""
    known = dict(entry.partition("\n")[::2] for entry in listed.split("\0"))
    used = {
        name: value for name, value in known.items() if _FORMAT.fullmatch(name) and _VALUE.fullmatch(value)
    }
    version = 1 if "extensions.objectformat" in used else 0
    yield f"[core]\nrepositoryformatversion = {version}\nbare = {str(bare).lower()}\n"
    for name, value in used.items():
        section, _, key = name.partition(".")
        yield f"[{section}]\n{key} = {value}\n"


def _printed(*arguments: str, to: dict[str, str]) -> str | None:
    try:
        done = child.run(["git", "--no-pager", *arguments], to, timeout=TIMEOUT_S)
    except (OSError, child.LateError):
        return None
    return None if done.returncode else os.fsdecode(done.stdout).removesuffix("\n")
