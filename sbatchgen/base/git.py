"""The answers of git about a folder. Only this module starts git.

The configuration of a repository names programs that git would start: a monitor of files, hooks, filters of
contents, and transports that fetch missing objects (git-config(1), gitattributes(5)). The configuration
arrives with a copied folder, so it can't be trusted. Therefore git gets a temporary repository with the
commits, the index and the branches of the user's repository, but with a configuration of sbatchgen. git reads
no other configuration.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import Problem
from sbatchgen.base.machine import child
from sbatchgen.base.machine.ignored import note_ignored, why_ignored
from sbatchgen.base.machine.temporary import temporary_folder

TIMEOUT_S = 20.0
_MAX_BYTES = 1 << 16  # bytes of HEAD, commondir, and a .git that is a file: each has one line
_HEAD = re.compile(r"ref: refs/[^\s\0]+|[0-9a-f]{40}|[0-9a-f]{64}")  # the line of HEAD: a branch, or a commit
# The settings that the temporary repository inherits: the comparison of files with a commit, and the names of
# commits. Their values name no file.
_INHERITED_SETTING = re.compile(
    r"core\.(?:filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|trustctime|checkstat)"
    r"|extensions\.objectformat"
)
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9]{1,16}")  # the value of an inherited setting, such as true or sha256
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch missing objects by ssh or any program
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}


class _Storage(NamedTuple):
    """The folders of a repository's data. Both are its .git, unless it has several working trees."""

    own: Path  # the folder of the index and of HEAD
    common: Path  # the folder of the commits and the branches


def git(folder: Path, *arguments: str, bare: bool = False) -> str | None:
    """Return git's output about the repository that holds a folder, without the last line break.

    The result is None if git fails, or if others can write the folder of the repository or its .git. Such a
    repository is reported like other ignored files. With `bare` the folder itself is a repository, without a
    working tree.
    """
    root = folder.resolve() if bare else _repository_root(folder)
    git_folder = root if bare or root is None else root / ".git"
    storage = _storage(git_folder) if git_folder else None
    if root is None or git_folder is None or storage is None:
        return None
    private_parts = _private_parts(root, git_folder, storage)
    if reason := why_ignored(git_folder, root, private_parts, os.environ, current_folder=root):
        note_ignored(*reason)
        return None
    with temporary_folder("sbatchgen-git-") as temporary_repository:
        environment = _environment(temporary_repository, storage)
        try:
            _make_repository(temporary_repository, storage, environment, bare=bare)
        except OSError:
            return None
        places = [f"--git-dir={temporary_repository}", *([] if bare else [f"--work-tree={root}"])]
        return _run_git("-C", str(folder), *places, *arguments, environment=environment)


def refusal(folder: Path) -> Problem | None:
    """Return why a folder's repository is ignored, because others can write it; None if it is used."""
    root = _repository_root(folder)
    if root is None or (storage := _storage(git_folder := root / ".git")) is None:
        return None
    private_parts = _private_parts(root, git_folder, storage)
    reason = why_ignored(git_folder, root, private_parts, os.environ, current_folder=root)
    return reason[1] if reason else None


def has_changes(root: Path, compared: set[str] | None = None) -> bool:
    """Return whether files that git knows differ from the commit, in a working tree or its submodules.

    `compared` are the working trees that were compared before. git reads a file only if its size or its time
    has changed. Filters are turned off, so a file of git-lfs that git reads differs.
    """
    compared = set() if compared is None else compared
    compared.add(os.path.realpath(root))  # links may lead in a circle
    listed = (git(root, "ls-files", "-z", "--stage") or "").split("\0")
    # The mode 160000 marks a submodule.
    submodules = [root / line.partition("\t")[2] for line in listed if line.startswith("160000 ")]
    status = git(root, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    not_compared = (
        submodule
        for submodule in submodules
        if os.path.lexists(submodule / ".git") and os.path.realpath(submodule) not in compared
    )
    return status != "" or any(has_changes(submodule, compared) for submodule in not_compared)


def _repository_root(folder: Path) -> Path | None:
    """Return the nearest folder with a .git, from a folder upwards; None without one.

    git itself would also accept a folder that only looks like a repository. A clone may hold such a folder.
    """
    resolved = folder.resolve()
    roots = (parent for parent in (resolved, *resolved.parents) if os.path.lexists(parent / ".git"))
    return next(roots, None)


def _storage(git_folder: Path) -> _Storage | None:
    """Return the storage of a repository; None if it can't be read.

    The storage is outside .git for a submodule and for a second working tree: gitrepository-layout(5).
    """
    try:
        is_folder = git_folder.is_dir()
        own = git_folder if is_folder else git_folder.parent / _read_line(git_folder).removeprefix("gitdir: ")
        common = own / _read_line(own / "commondir") if os.path.lexists(own / "commondir") else own
    except OSError:
        return None
    return _Storage(own, common)


def _read_line(path: Path, form: re.Pattern[str] | None = None) -> str:
    """Return the line in a file; raises OSError if it can't be read, or does not match `form`."""
    line = os.fsdecode(files.read_file(path, _MAX_BYTES)).rstrip("\n")
    if "\0" in line or (form and not form.fullmatch(line)):
        raise OSError(f"not a file of git: {path}")
    return line


def _private_parts(root: Path, git_folder: Path, storage: _Storage) -> list[tuple[str, Path]]:
    """Return the parts of a repository that only the user may write, each with its name in messages."""
    elsewhere = {str(part): part for part in storage if part != git_folder}
    return [("its folder", root), ("it", git_folder), *elsewhere.items()]


def _environment(temporary_repository: Path, storage: _Storage) -> dict[str, str]:
    """Return git's environment: the temporary repository with the user's commits and the user's index."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        **_ENVIRONMENT,
        "HOME": str(temporary_repository),  # git looks for a configuration here
        "XDG_CONFIG_HOME": str(temporary_repository),
        "GIT_OBJECT_DIRECTORY": str(storage.common / "objects"),
        "GIT_INDEX_FILE": str(storage.own / "index"),
    }


def _make_repository(
    temporary_repository: Path, storage: _Storage, environment: dict[str, str], *, bare: bool
) -> None:
    """Fill the temporary repository, an empty folder; raises OSError if the user's can't be read."""
    own, common = storage
    for part in (own / "index", common / "config", common / "packed-refs"):
        if part.exists() and not part.is_file():
            raise OSError(f"git would wait for a writer: {part}")
    (temporary_repository / "HEAD").write_text(_read_line(own / "HEAD", _HEAD))
    configuration = _configuration(common / "config", environment, bare=bare)
    (temporary_repository / "config").write_text("".join(configuration))
    shared = own.glob("sharedindex.*")  # the rest of an index that is split
    for part in (common / "refs", common / "packed-refs", *shared):
        (temporary_repository / part.name).symlink_to(part)


def _configuration(file: Path, environment: dict[str, str], *, bare: bool) -> Iterator[str]:
    """Yield the lines of the configuration, with the user's settings that match _INHERITED_SETTING."""
    words = ("config", "--file", str(file), "--no-includes", "--list", "-z")
    listed = _run_git(*words, environment=environment) or ""
    settings = dict(entry.partition("\n")[::2] for entry in listed.split("\0"))
    inherited = {
        name: value
        for name, value in settings.items()
        if _INHERITED_SETTING.fullmatch(name) and _PLAIN_VALUE.fullmatch(value)
    }
    version = 1 if "extensions.objectformat" in inherited else 0
    yield f"[core]\nrepositoryformatversion = {version}\nbare = {str(bare).lower()}\n"
    for name, value in inherited.items():
        section, _, key = name.partition(".")
        yield f"[{section}]\n{key} = {value}\n"


def _run_git(*arguments: str, environment: dict[str, str]) -> str | None:
    """Return the output of git without its last line break; None if git fails."""
    try:
        done = child.run(["git", "--no-pager", *arguments], environment, timeout=TIMEOUT_S)
    except (OSError, child.LateError):
        return None
    return None if done.returncode else os.fsdecode(done.stdout).removesuffix("\n")
