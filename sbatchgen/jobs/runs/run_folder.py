"""Makes and checks run folders. Only their user may write there, because trainers trust the files in them.

training/files.py and a line of the job script check the same on the nodes.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sbatchgen.base.errors import DocumentError, Problem
from sbatchgen.base.files import OTHERS_WRITE, folder_below
from sbatchgen.base.machine.trust import user_name
from sbatchgen.base.quoting import word

LOCK_FILE = "submit.lock"  # a submission holds this lock from its check until its record is written
MAX_LOCK_WAIT_S = 180.0  # the other command's sbatch may try again for two minutes
FIX_OTHER_FOLDER = "name another folder: --run-dir"
FIX_WRITABLE_FOLDER = "name a folder that you can write into: --run-dir"


def why_not_trusted(run_dir: Path) -> Problem | None:
    """Return why a folder can't be trusted as a run folder; None if it can, or does not exist yet.

    No other user may be able to replace the folder, and its files must belong to this user or to root.
    """
    real_parent = Path(os.path.realpath(run_dir.parent))
    for folder in dict.fromkeys((*run_dir.absolute().parents, real_parent, *real_parent.parents)):
        with contextlib.suppress(OSError):
            mode = folder.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                what = f"everybody can replace the run folder {run_dir}: {folder} is writable by all"
                return Problem(what, fix=f"chmod o-w {word(str(folder))}; or {FIX_OTHER_FOLDER}")
    try:
        status = run_dir.lstat()
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        target = word(os.path.realpath(run_dir))
        return Problem(f"the run folder {run_dir} is a link", fix=f"name its target: --run-dir {target}")
    if not stat.S_ISDIR(status.st_mode):
        return Problem(f"the run folder {run_dir} is a file", fix=FIX_OTHER_FOLDER)
    for path, status in _paths_with_status(run_dir):
        if status.st_uid != os.geteuid() and (status.st_uid or path == run_dir):
            where = "the run folder" if path == run_dir else "a file in the run folder"
            fix = "" if path == run_dir else f"look at it, then remove it: rm -r {word(str(path))}; or "
            what = f"{where} belongs to another user ({user_name(status.st_uid)}): {path}"
            return Problem(what, fix=fix + FIX_OTHER_FOLDER)
    return _why_link_refused(run_dir / "checkpoints")


def _why_link_refused(checkpoints: Path) -> Problem | None:
    """Return why the folder of checkpoints can't be the link that it is; None if it can, or is not a link.

    A user may link the folder to a larger disk. Then the target must belong to this user, or only root may
    write into it.
    """
    with contextlib.suppress(OSError):  # it is not a link, or a broken link, which the trainer reports
        checkpoints.readlink()
        status, target = checkpoints.stat(), os.path.realpath(checkpoints)
        only_root_writes = status.st_uid == 0 and not status.st_mode & stat.S_IWOTH
        if status.st_uid != os.geteuid() and not only_root_writes:
            whose = f"a folder of another user ({user_name(status.st_uid)}): {target}"
            fix = f"remove the link, and the job makes a folder: rm {word(str(checkpoints))}"
            return Problem(f"{checkpoints} is a link to {whose}", fix=fix)
    return None


def why_not_makable(run_dir: Path) -> Problem | None:
    """Return why a run folder that does not exist yet can't be made by this user; None if it can."""
    if os.path.lexists(run_dir):
        return None
    parent = next(folder for folder in run_dir.absolute().parents if os.path.lexists(folder))
    if not parent.is_dir():
        return _problem_with_making(run_dir, f"{parent} is a file")
    if not os.access(parent, os.W_OK | os.X_OK):
        return _problem_with_making(run_dir, f"you can't write into {parent}")
    return None


def _problem_with_making(run_dir: Path, why: str) -> Problem:
    return Problem(f"can't make the run folder {run_dir}: {why}", fix=FIX_WRITABLE_FOLDER)


def make_run_folder(run_dir: Path) -> None:
    """Make a run folder that only this user can write; raise DocumentError if that fails."""
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            run_dir.mkdir(mode=0o755)
    except OSError as error:
        raise DocumentError([_problem_with_making(run_dir, error.strerror or str(error))]) from error
    if problem := why_not_trusted(run_dir):
        raise DocumentError([problem])
    parent, name = run_dir.parent, Path(run_dir.name)
    try:
        with folder_below(parent, name) as folder:
            _forbid_others_to_write(folder)
        # `folder_below` refuses a link, so a folder of checkpoints on a larger disk is not changed.
        with contextlib.suppress(OSError), folder_below(parent, name / "checkpoints") as folder:
            _forbid_others_to_write(folder)
    except OSError as error:
        raise DocumentError([_problem_with_making(run_dir, error.strerror or str(error))]) from error


def _forbid_others_to_write(folder: int) -> None:
    """Take from others the permission to write into an open folder, and to write the user's files in it.

    Another user may exchange a file meanwhile. So each file is opened without following links, and then
    checked and changed by its descriptor.
    """
    with contextlib.suppress(OSError):  # a default ACL would let others write new files in spite of the umask
        os.removexattr(folder, "system.posix_acl_default")
    for name in (".", *os.listdir(folder)):
        with contextlib.suppress(OSError):
            entry = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                status = os.fstat(entry)
                if status.st_uid == os.geteuid() and status.st_mode & OTHERS_WRITE:
                    os.fchmod(entry, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE)
            finally:
                os.close(entry)


def _paths_with_status(run_dir: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield a run folder, its files and its checkpoints, each with its status."""
    yield run_dir, run_dir.lstat()
    for folder in (run_dir, run_dir / "checkpoints"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


@contextlib.contextmanager
def only_owner_writes() -> Iterator[None]:
    """Let this process and the programs that it starts make files that only their owner can write."""
    old_mask = os.umask(0o077)
    os.umask(old_mask | OTHERS_WRITE)
    try:
        yield
    finally:
        os.umask(old_mask)
