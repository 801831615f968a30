"""The snapshot: a copy of the code for a job, so that the job does not run what people edit while it waits.

The copy is in the run folder. It has the files that git knows, byte for byte as they are in the working tree,
and the files that --snapshot-file names.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError, Problem, SbatchgenError
from sbatchgen.base.finding import Finding
from sbatchgen.base.frozen import frozen
from sbatchgen.base.git import git, refusal
from sbatchgen.base.quoting import word
from sbatchgen.check.script.trainer_name import trainer_is_file
from sbatchgen.check.script.trainer_source import TrainerSource
from sbatchgen.jobs.resolved.resolved_job import SNAPSHOT_CODE, ResolvedJob
from sbatchgen.jobs.runs.folder_check import error
from sbatchgen.jobs.runs.record import Code, code_in

MAX_BYTES = 256 << 20  # bytes of all files of a snapshot
MAX_FILES = 50_000
MAX_SETTINGS = 1 << 16  # bytes of a settings file that are searched for paths
_SETTINGS_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_RELATIVE_PATH = re.compile(r"(?<![\w./-])\w[\w.-]*(?:/[\w.-]+)*/?")  # "data/train.csv"
# Folders that programs usually write, not read
_WRITTEN = ("runs", "logs", "wandb", "outputs", "checkpoints", "lightning_logs", "mlruns", "venv", "env")
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC  # only a new file


@frozen(kw_only=True)
class Snapshot:
    """A snapshot that is planned: the files to be copied, and the folder for the copies."""

    place: Path  # the folder of the copies
    root: Path  # the root of the repository
    inside: str  # the job's working folder in the root; "" for the root itself
    sources: Mapping[str, os.stat_result]  # the status of each file, by its name in the root
    package: Path | None  # the folder that holds the training package, if the package is also copied
    code: Code  # the commit, and the number and size of the files

    @property
    def folder(self) -> Path:
        """The job's working folder in the copy."""
        return self.place / self.inside

    def copy(self) -> None:
        """Copy all files; raise DocumentError, without a copy, if one can't be copied or was changed."""
        from sbatchgen.base.machine.temporary import temporary_folder  # a review needs no temporary folder

        try:
            with temporary_folder(".sbatchgen-snapshot-", within=self.place.parent) as made:
                copy = made / "code"
                copy.mkdir(mode=0o700)  # others may not be able to read the original folder
                for name, status in self.sources.items():
                    _copy(self.root, name, copy / name, status, self)
                (copy / self.inside).mkdir(parents=True, exist_ok=True)
                if self.package:
                    for name in _below(self.package / "training", self.package):
                        to = copy / self.inside / SNAPSHOT_CODE / name
                        _copy(self.package, name, to, (self.package / name).lstat(), self)
                copy.rename(self.place)
        except OSError as problem:
            what = f"can't copy the code to {self.place}: {problem.strerror}: {problem.filename or ''}"
            fix = "make room there, or another --run-dir"
            if isinstance(problem, FileNotFoundError):  # of the training package, or the folder of the copy
                fix = "submit again"
            raise DocumentError.of(what.removesuffix(": "), fix=fix) from problem


def find_code(folder: Path, place: Path, named: Sequence[str], package: Path | None) -> Snapshot:
    """Return the planned snapshot of the code in a folder, with the training `package`.

    The copies will be in `place`. The user has `named` further files, which git does not know. Raises
    DocumentError if git does not know the folder, or if the files are too many or too large.
    """
    top = git(folder, "rev-parse", "--show-toplevel")
    inside = git(folder, "rev-parse", "--show-prefix")
    names = _names_known_to_git(Path(top), set()) if top else None
    if not top or inside is None or names is None:
        if ignored := refusal(folder):
            what = f"--snapshot copies what git knows, and git is not asked: {ignored.what}"
            raise DocumentError.of(what, at=ignored.at, fix=ignored.fix)
        fix = f"see what git says: git -C {word(str(folder))} status; or submit without --snapshot"
        raise DocumentError.of(f"--snapshot copies what git knows, and git does not know {folder}", fix=fix)
    root, sources = Path(top), {}
    for name in [*names, *_named_files(root, named)]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # git still knows deleted files
            if _is_inside(root, name):
                sources[name] = _status(root / name)
    size = _checked_size(root, sources)
    added = ", ".join(named)
    code = replace(code_in(folder), snapshot=str(place), files=len(sources), size=size, added=added)
    return Snapshot(
        place=place, root=root, inside=inside.removesuffix("/"), sources=sources, package=package, code=code
    )


def _names_known_to_git(root: Path, seen: set[str]) -> list[str] | None:
    """Return the names that git knows below a folder, also in its submodules; None if git does not answer.

    `seen` has the roots that were already read. `git ls-files --recurse-submodules` is not used because it
    reads the configuration of each submodule.
    """
    seen.add(os.path.realpath(root))  # links may lead in a circle
    listed = git(root, "ls-files", "-z", "--stage")
    if listed is None:
        return None
    listing = (
        git(root, "config", "--file", ".gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$") or ""
    )
    modules = {entry.partition("\n")[2] for entry in listing.split("\0")}
    names = []
    for name in dict.fromkeys(entry.partition("\t")[2] for entry in listed.split("\0") if entry):
        module = root / name
        is_new = os.path.lexists(module / ".git") and os.path.realpath(module) not in seen
        names_in_module = None
        if name in modules and is_new and _is_inside(root, name):
            names_in_module = _names_known_to_git(module, seen)
        names += [name] if names_in_module is None else [f"{name}/{inner}" for inner in names_in_module]
    return names


def missing_trainer(resolved: ResolvedJob, snapshot: Snapshot) -> Iterator[Finding]:
    """Yield an error if the trainer is a file of the repository that the job would not run from the snapshot.

    Either the snapshot lacks the file, or the job names it by its absolute path in the repository.
    """
    if not resolved.trainer or not trainer_is_file(resolved.trainer):
        return
    working = snapshot.root / snapshot.inside
    path = working / resolved.trainer
    names = {os.path.relpath(file, snapshot.root) for file in (path, os.path.realpath(path))}
    if resolved.trainer.startswith("/") and not any(name.startswith("../") for name in names):
        fix = f"--trainer {word(os.path.relpath(path, working))}"
        yield error(resolved, "trainer", f"the job would run {path} as it is then, not the snapshot's", fix)
    elif not resolved.trainer.startswith("/") and path.exists() and not names & snapshot.sources.keys():
        name = word(resolved.trainer)
        fix = f"git add {name}; or --snapshot-file {name}"
        yield error(resolved, "trainer", f"git does not know {path}: it is not in the snapshot", fix)


def missing_inputs(
    resolved: ResolvedJob, snapshot: Snapshot, source: TrainerSource | None
) -> Iterator[Finding]:
    """Yield a warning for each existing file or folder that the trainer names and that the snapshot lacks.

    The names are in its arguments, in settings files that the arguments name, and in its source. Files that
    the trainer saves are excluded.
    """
    working = snapshot.root / snapshot.inside
    saved = {file.name for file in source.saved} if source else set[str]()
    lacking: dict[str, str] = {}  # paths that the snapshot lacks, each with the place that names it
    for where, name in _names(resolved, working, source):
        path = Path(os.path.normpath(working / name))
        in_root = os.path.relpath(path, snapshot.root)
        copied = snapshot.sources
        is_copied = in_root in copied or any(file.startswith(f"{in_root}/") for file in copied)
        if not is_copied and not in_root.startswith("..") and name not in saved and _has_content(path):
            lacking.setdefault(os.path.relpath(path, working), where)
    for name, where in lacking.items():  # a folder stands for the files in it
        if not any(f"{name}/".startswith(f"{other}/") for other in lacking if other != name):
            what = f"{where} names {name}, which git does not know: it is not in the snapshot"
            fix = f"--snapshot-file {word(name)}; or give the trainer its whole path, as for large data"
            problem = Problem(what, str(resolved.origin("trainer")), fix)
            yield Finding("warning", problem)


def _names(resolved: ResolvedJob, working: Path, source: TrainerSource | None) -> Iterator[tuple[str, str]]:
    """Yield the words that may be paths of files that the trainer reads, each after the place of the word."""
    for arg in map(str, resolved.args):
        name = arg.partition("=")[2] if arg.startswith("-") else arg
        if _RELATIVE_PATH.fullmatch(name):
            yield "an argument", name
        if _RELATIVE_PATH.fullmatch(name) and name.endswith(_SETTINGS_SUFFIXES):
            with contextlib.suppress(OSError):
                text = files.read_file(working / name, MAX_SETTINGS).decode("utf-8", "replace")
                yield from ((name, path) for path in dict.fromkeys(_RELATIVE_PATH.findall(text)))
    for name in dict.fromkeys(source.words.split("\n") if source else ()):
        if _RELATIVE_PATH.fullmatch(name) and name not in _WRITTEN:
            yield str(resolved.trainer), name


def _has_content(path: Path) -> bool:
    """Return whether a path is a file, or a folder with entries."""
    with contextlib.suppress(OSError):
        return path.is_file() or (path.is_dir() and any(path.iterdir()))
    return False


def _named_files(root: Path, named: Sequence[str]) -> Iterator[str]:
    """Yield the files that the user named, and those in the named folders, as names in the root."""
    for path in map(Path, named):
        name = os.path.relpath(path.parent.resolve() / path.name, root)
        if PurePath(name).parts[:1] == ("..",) or not os.path.lexists(path):
            what = f"there is no {path}" if not os.path.lexists(path) else f"{path} is not in {root}"
            raise DocumentError.of(what, at="--snapshot-file", fix="name a file or folder of the repository")
        yield from _below(root / name, root) if path.is_dir() and not path.is_symlink() else [name]


def _below(folder: Path, root: Path) -> Iterator[str]:
    """Yield the files in a folder and below it, as paths relative to the root."""
    for at, folders, names in os.walk(folder):
        folders[:] = sorted({*folders} - {"__pycache__", ".git"})
        links = [name for name in folders if (Path(at) / name).is_symlink()]
        for name in sorted([*names, *links]):
            yield os.path.relpath(Path(at) / name, root)


def _is_inside(root: Path, name: str) -> bool:
    """Return whether a name leads into the root without a link; git treats files below a link as deleted.

    Raises DocumentError for a name with ".." or an absolute one, because its copy would be outside the
    snapshot. The index of a copied repository may have such names, and git prints them as they are.
    """
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        what = f"git knows {name}, which is outside {root}"
        raise DocumentError.of(what, fix="don't use this repository: somebody has tampered with its index")
    return not any((root / folder).is_symlink() for folder in path.parents)


def _status(path: Path) -> os.stat_result:
    """Return the status of a file or a link; raise DocumentError for anything else."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        if stat.S_ISDIR(status.st_mode):
            what, fix = f"{path} is a repository of its own", f"--snapshot-file {word(str(path))}"
        else:
            what, fix = f"{path} is neither a file nor a link", "remove it"
        raise DocumentError.of(f"{what}, which the snapshot can't hold", fix=fix)
    return status


def _checked_size(root: Path, sources: Mapping[str, os.stat_result]) -> int:
    """Return the size of all files in bytes; raise DocumentError if they are too many or too large."""
    size = sum(status.st_size for status in sources.values())
    if size > MAX_BYTES or len(sources) > MAX_FILES:
        largest = sorted(sources, key=lambda name: -sources[name].st_size)[:3]
        names = ", ".join(f"{name} ({sources[name].st_size >> 20} MiB)" for name in largest)
        what = f"{len(sources)} files of {size >> 20} MiB are known to git in {root}, the largest: {names}"
        what += f"; a snapshot holds {MAX_FILES} files of {MAX_BYTES >> 20} MiB"
        raise DocumentError.of(what, fix="keep data out of git, or submit without --snapshot")
    return size


def _copy(root: Path, name: str, to: Path, status: os.stat_result, snapshot: Snapshot) -> None:
    """Copy a file or a link, with the mode of the source unless the umask forbids it.

    `status` is the status of the source at the review. Folders are opened without following links: somebody
    who can write a folder of the code could replace it with a link to files that only the user can read.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    source = root / name
    try:
        with files.folder_below(root, PurePath(name).parent) as folder:
            if stat.S_ISLNK(status.st_mode):
                to.symlink_to(_target(source, os.readlink(source.name, dir_fd=folder), snapshot))
            else:
                mode = stat.S_IRUSR | stat.S_IWUSR | stat.S_IMODE(status.st_mode) & 0o777
                with files.open_regular(Path(source.name), os.O_NOFOLLOW, at=folder) as old:
                    _refuse_changed(source, os.fstat(old.fileno()), status)
                    with open(os.open(to, _OPEN_NEW, mode), "wb") as new:  # noqa: PTH123 - with a mode
                        shutil.copyfileobj(old, new)
            _refuse_changed(source, os.stat(source.name, dir_fd=folder, follow_symlinks=False), status)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(source):
            raise _changed_meanwhile(source, "deleted") from error
        if error.errno in (errno.EACCES, errno.EPERM) and not os.access(source, os.R_OK):
            fix = "make the file readable, or submit without --snapshot"
            raise DocumentError.of(f"can't read {source}: {error.strerror}", fix=fix) from error
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise _changed_meanwhile(source) from error


def _refuse_changed(source: Path, now: os.stat_result, reviewed: os.stat_result) -> None:
    """Raise DocumentError if a file was changed or replaced since the review."""
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    if any(getattr(now, field) != getattr(reviewed, field) for field in fields):
        raise _changed_meanwhile(source)


def _changed_meanwhile(source: Path, how: str = "changed") -> SbatchgenError:
    """Return the error for a file that was changed or deleted after the review."""
    what = f"{source} was {how} after the review: nothing is submitted"
    return DocumentError.of(what, fix="submit again")


def _target(link: Path, text: str, snapshot: Snapshot) -> str:
    """Return where the copy of a link leads: to the copy of its target, or else to the target itself."""
    target = os.path.normpath(link.parent / text)
    name = os.path.relpath(target, snapshot.root)
    is_copied = name == "." or any(f"{source}/".startswith(f"{name}/") for source in snapshot.sources)
    return os.path.relpath(target, link.parent) if is_copied else target
