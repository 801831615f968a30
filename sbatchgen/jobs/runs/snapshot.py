"""Plans and makes snapshots: copies of the code of jobs, for `submit --snapshot`.

A job that runs a snapshot is not changed by later edits of the code, which its user may make while the job
waits. The snapshot is in the run folder. It has the files that git knows, byte for byte as they are in the
working tree, and the files that --snapshot-file names.
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
from sbatchgen.jobs.runs.folder_check import error_at
from sbatchgen.jobs.runs.record import Code, code_in

MAX_BYTES = 256 << 20  # the largest size of a snapshot: the bytes of all its files together
MAX_FILES = 50_000  # the most files that a snapshot may have
MAX_SETTINGS_BYTES = 1 << 16  # bytes of a settings file that are searched for names of other files
_SETTINGS_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_RELATIVE_PATH = re.compile(r"(?<![\w./-])\w[\w.-]*(?:/[\w.-]+)*/?")  # "data/train.csv"
# Folders that programs usually write, not read. A snapshot needs no copy of them.
_OUTPUT_FOLDERS = (
    "runs",
    "logs",
    "wandb",
    "outputs",
    "checkpoints",
    "lightning_logs",
    "mlruns",
    "venv",
    "env",
)
# Flags of open(2) that make a new file, and fail if there is a file or a link with this name
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen(kw_only=True)
class Snapshot:
    """A planned snapshot: the files to copy, and the folder for the copies. `copy` makes it."""

    copy_folder: Path  # the folder that the copies get; it does not exist before `copy`
    root: Path  # the root of the repository
    work_dir: str  # the job's working folder, relative to the root; "" for the root itself
    # The files to copy by their paths relative to the root, with their status at the review
    sources: Mapping[str, os.stat_result]
    package: Path | None  # the folder that holds the training package; None if the package is not copied
    code: Code  # the commit, and the number and size of the files

    @property
    def copied_work_dir(self) -> Path:
        """The copy of the job's working folder, in which the job runs."""
        return self.copy_folder / self.work_dir

    def copy(self) -> None:
        """Make the snapshot.

        Raises DocumentError if a file can't be copied, or was changed since the review. Then there is no
        snapshot.
        """
        from sbatchgen.base.machine.temporary import temporary_folder  # a review needs no temporary folder

        try:
            with temporary_folder(".sbatchgen-snapshot-", within=self.copy_folder.parent) as temporary:
                unfinished = temporary / "code"
                unfinished.mkdir(mode=0o700)  # others may not be able to read the original folder
                for name, status in self.sources.items():
                    _copy(self.root, name, unfinished / name, status, self)
                (unfinished / self.work_dir).mkdir(parents=True, exist_ok=True)
                if self.package:
                    for name in _files_below(self.package / "training", self.package):
                        destination = unfinished / self.work_dir / SNAPSHOT_CODE / name
                        _copy(self.package, name, destination, (self.package / name).lstat(), self)
                unfinished.rename(self.copy_folder)
        except OSError as problem:
            what = f"can't copy the code to {self.copy_folder}: {problem.strerror}: {problem.filename or ''}"
            fix = "make room there, or another --run-dir"
            if isinstance(problem, FileNotFoundError):  # of the training package, or the folder of the copy
                fix = "submit again"
            raise DocumentError.of(what.removesuffix(": "), fix=fix) from problem


def plan_snapshot(
    work_dir: Path, copy_folder: Path, extra_files: Sequence[str], package: Path | None
) -> Snapshot:
    """Plan a snapshot of the repository that holds a job's working folder; nothing is copied yet.

    Raises DocumentError if git does not know the folder, or if the files are too many or too large.

    Args:
        work_dir: The job's working folder.
        copy_folder: The folder that the copies will get.
        extra_files: The values of --snapshot-file: files and folders to copy that git does not know.
        package: The folder that holds the training package; None if the package is not copied.
    """
    top = git(work_dir, "rev-parse", "--show-toplevel")
    work_dir_in_top = git(work_dir, "rev-parse", "--show-prefix")
    names = _names_known_to_git(Path(top), set()) if top else None
    if not top or work_dir_in_top is None or names is None:
        if ignored := refusal(work_dir):
            what = f"--snapshot copies what git knows, and git is not asked: {ignored.what}"
            raise DocumentError.of(what, at=ignored.at, fix=ignored.fix)
        fix = f"see what git says: git -C {word(str(work_dir))} status; or submit without --snapshot"
        raise DocumentError.of(f"--snapshot copies what git knows, and git does not know {work_dir}", fix=fix)
    root, sources = Path(top), {}
    for name in [*names, *_paths_of_extra_files(root, extra_files)]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # git still knows deleted files
            if _is_below_without_link(root, name):
                sources[name] = _checked_status(root / name)
    size = _checked_size(root, sources)
    added = ", ".join(extra_files)
    code = replace(code_in(work_dir), snapshot=str(copy_folder), files=len(sources), size=size, added=added)
    return Snapshot(
        copy_folder=copy_folder,
        root=root,
        work_dir=work_dir_in_top.removesuffix("/"),
        sources=sources,
        package=package,
        code=code,
    )


def _names_known_to_git(root: Path, read_roots: set[str]) -> list[str] | None:
    """Return the paths of the files that git knows in a repository and its submodules, relative to its root.

    Return None if git does not answer. `read_roots` has the roots of the repositories that were already read.
    `git ls-files --recurse-submodules` would read the configuration of each submodule without the checks of
    the function `git`. So this function asks git about each submodule.
    """
    read_roots.add(os.path.realpath(root))  # links may lead in a circle
    listed_files = git(root, "ls-files", "-z", "--stage")  # "100644 HASH 0\tNAME" for each file
    if listed_files is None:
        return None
    listed_submodules = (  # "submodule.NAME.path\nPATH" for each submodule
        git(root, "config", "--file", ".gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$") or ""
    )
    submodules = {entry.partition("\n")[2] for entry in listed_submodules.split("\0")}
    names = []
    for name in dict.fromkeys(entry.partition("\t")[2] for entry in listed_files.split("\0") if entry):
        path = root / name
        is_unread_repository = os.path.lexists(path / ".git") and os.path.realpath(path) not in read_roots
        names_in_submodule = None
        if name in submodules and is_unread_repository and _is_below_without_link(root, name):
            names_in_submodule = _names_known_to_git(path, read_roots)
        names += [name] if names_in_submodule is None else [f"{name}/{file}" for file in names_in_submodule]
    return names


def errors_about_trainer(resolved: ResolvedJob, snapshot: Snapshot) -> Iterator[Finding]:
    """Yield an error if the job would not run the snapshot's copy of its trainer.

    Either the snapshot lacks the trainer's file, or the job names the file by its absolute path in the
    repository. A trainer outside the repository is not an error.
    """
    if not resolved.trainer or not trainer_is_file(resolved.trainer):
        return
    work_dir = snapshot.root / snapshot.work_dir
    path = work_dir / resolved.trainer
    names = {os.path.relpath(file, snapshot.root) for file in (path, os.path.realpath(path))}
    if resolved.trainer.startswith("/") and not any(name.startswith("../") for name in names):
        fix = f"--trainer {word(os.path.relpath(path, work_dir))}"
        yield error_at(resolved, "trainer", f"the job would run {path}, not its copy in the snapshot", fix)
    elif not resolved.trainer.startswith("/") and path.exists() and not names & snapshot.sources.keys():
        name = word(resolved.trainer)
        fix = f"git add {name}; or --snapshot-file {name}"
        yield error_at(resolved, "trainer", f"git does not know {path}: it is not in the snapshot", fix)


def warnings_about_inputs(
    resolved: ResolvedJob, snapshot: Snapshot, source: TrainerSource | None
) -> Iterator[Finding]:
    """Yield a warning for each existing file or folder that the trainer may read and that the snapshot lacks.

    The names of these files are in the trainer's arguments, in settings files that the arguments name, and in
    the trainer's source. Files that the trainer saves are excluded.
    """
    work_dir = snapshot.root / snapshot.work_dir
    saved_names = {file.name for file in source.saved_files} if source else set[str]()
    missing: dict[str, str] = {}  # paths that the snapshot lacks, each with the place that names it
    for where, name in _possible_inputs(resolved, work_dir, source):
        path = Path(os.path.normpath(work_dir / name))
        in_root = os.path.relpath(path, snapshot.root)
        copied = snapshot.sources
        is_copied = in_root in copied or any(file.startswith(f"{in_root}/") for file in copied)
        if not is_copied and not in_root.startswith("..") and name not in saved_names and _has_content(path):
            missing.setdefault(os.path.relpath(path, work_dir), where)
    for name, where in missing.items():  # a missing folder stands for the files in it
        if not any(f"{name}/".startswith(f"{other}/") for other in missing if other != name):
            what = f"{where} names {name}, which git does not know: it is not in the snapshot"
            fix = f"--snapshot-file {word(name)}; or give the trainer its whole path, as for large data"
            problem = Problem(what, str(resolved.origin("trainer")), fix)
            yield Finding("warning", problem)


def _possible_inputs(
    resolved: ResolvedJob, work_dir: Path, source: TrainerSource | None
) -> Iterator[tuple[str, str]]:
    """Yield words that may be the path of a file that the trainer reads.

    Before each word comes the place that names it: "an argument", a settings file or the trainer.
    """
    for arg in map(str, resolved.args):
        name = arg.partition("=")[2] if arg.startswith("-") else arg
        if _RELATIVE_PATH.fullmatch(name):
            yield "an argument", name
        if _RELATIVE_PATH.fullmatch(name) and name.endswith(_SETTINGS_SUFFIXES):
            with contextlib.suppress(OSError):
                text = files.read_file(work_dir / name, MAX_SETTINGS_BYTES).decode("utf-8", "replace")
                yield from ((name, path) for path in dict.fromkeys(_RELATIVE_PATH.findall(text)))
    for name in dict.fromkeys(source.words.split("\n") if source else ()):
        if _RELATIVE_PATH.fullmatch(name) and name not in _OUTPUT_FOLDERS:
            yield str(resolved.trainer), name


def _has_content(path: Path) -> bool:
    """Return whether a path is a file, or a folder with entries."""
    with contextlib.suppress(OSError):
        return path.is_file() or (path.is_dir() and any(path.iterdir()))
    return False


def _paths_of_extra_files(root: Path, extra_files: Sequence[str]) -> Iterator[str]:
    """Yield the files that --snapshot-file names, relative to the root; for a folder, all files below it.

    Raises DocumentError if a file is missing or outside the root.
    """
    for path in map(Path, extra_files):
        name = os.path.relpath(path.parent.resolve() / path.name, root)
        if PurePath(name).parts[:1] == ("..",) or not os.path.lexists(path):
            what = f"there is no {path}" if not os.path.lexists(path) else f"{path} is not in {root}"
            raise DocumentError.of(what, at="--snapshot-file", fix="name a file or folder of the repository")
        yield from _files_below(root / name, root) if path.is_dir() and not path.is_symlink() else [name]


def _files_below(folder: Path, root: Path) -> Iterator[str]:
    """Yield the files and links in a folder and below it, as paths relative to the root."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted({*folders} - {"__pycache__", ".git"})
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in sorted([*names, *links]):
            yield os.path.relpath(Path(parent) / name, root)


def _is_below_without_link(root: Path, name: str) -> bool:
    """Return whether no folder on the way from the root to a file is a link.

    git treats files below a link as deleted. Raises DocumentError for an absolute name and for a name with
    "..", because the copy would be outside the snapshot. The index of a repository from a stranger may have
    such names, and git prints them unchanged.
    """
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        what = f"git knows {name}, which is outside {root}"
        raise DocumentError.of(what, fix="don't use this repository: somebody has tampered with its index")
    return not any((root / folder).is_symlink() for folder in path.parents)


def _checked_status(path: Path) -> os.stat_result:
    """Return the status of a file or a link; raise DocumentError for a folder, a FIFO or a device."""
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


def _copy(root: Path, name: str, destination: Path, status: os.stat_result, snapshot: Snapshot) -> None:
    """Copy a file or a link below `root`.

    The copy gets the mode of the source, limited by the umask. `status` is the status of the source at
    the review. Folders are opened without following links, because somebody who can write a folder of the
    code could replace it with a link to files that only the user can read.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    source = root / name
    try:
        with files.folder_below(root, PurePath(name).parent) as folder:
            if stat.S_ISLNK(status.st_mode):
                target_text = os.readlink(source.name, dir_fd=folder)
                destination.symlink_to(_target_of_copied_link(source, target_text, snapshot))
            else:
                mode = stat.S_IRUSR | stat.S_IWUSR | stat.S_IMODE(status.st_mode) & 0o777
                with files.open_regular(Path(source.name), os.O_NOFOLLOW, at=folder) as old:
                    _refuse_changed(source, os.fstat(old.fileno()), status)
                    new_file = os.open(destination, _NEW_FILE_FLAGS, mode)
                    with open(new_file, "wb") as new:  # noqa: PTH123 - an open file with a mode
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


def _target_of_copied_link(link: Path, target_text: str, snapshot: Snapshot) -> str:
    """Return the target that the copy of a link gets, from the text in the original link.

    The copy leads to the copy of the original target if the snapshot has one; else to the target itself.
    """
    target = os.path.normpath(link.parent / target_text)
    name = os.path.relpath(target, snapshot.root)
    is_copied = name == "." or any(f"{source}/".startswith(f"{name}/") for source in snapshot.sources)
    return os.path.relpath(target, link.parent) if is_copied else target
