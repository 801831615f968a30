"""Makes and checks run folders: only their user may write there, because trainers trust the files.

training/files.py and a line of the job script check the same.
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

LOCK = "submit.lock"  # the lock that is held from the check of a submission until its record is written
LOCK_S = 180.0  # seconds to wait for the lock: the other sbatch may itself try again for two minutes
NAME_ANOTHER = "name another folder: --run-dir"  # a fix
NAME_WRITABLE = "name a folder that you can write into: --run-dir"  # a fix


def refusal(run_dir: Path) -> Problem | None:
    """Return why a folder can't be trusted as a run folder; None if it can, or does not exist yet.

    No other user may be able to replace the folder, and its files must belong to this user or to root.
    """
    real = Path(os.path.realpath(run_dir.parent))
    for folder in dict.fromkeys((*run_dir.absolute().parents, real, *real.parents)):
        with contextlib.suppress(OSError):
            mode = folder.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                what = f"everybody can replace the run folder {run_dir}: {folder} is writable by all"
                return Problem(what, fix=f"chmod o-w {word(str(folder))}; or {NAME_ANOTHER}")
    try:
        status = run_dir.lstat()
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        target = word(os.path.realpath(run_dir))
        return Problem(f"the run folder {run_dir} is a link", fix=f"name its target: --run-dir {target}")
    if not stat.S_ISDIR(status.st_mode):
        return Problem(f"the run folder {run_dir} is a file", fix=NAME_ANOTHER)
    for path, status in _entries(run_dir):
        if status.st_uid != os.geteuid() and (status.st_uid or path == run_dir):
            where = "the run folder" if path == run_dir else "a file in the run folder"
            fix = "" if path == run_dir else f"look at it, then remove it: rm -r {word(str(path))}; or "
            what = f"{where} belongs to another user ({user_name(status.st_uid)}): {path}"
            return Problem(what, fix=fix + NAME_ANOTHER)
    return _refused_link(run_dir / "checkpoints")


def _refused_link(checkpoints: Path) -> Problem | None:
    """Return why a link, often to a larger disk, can't be the folder of checkpoints; None if it can."""
    with contextlib.suppress(OSError):  # no link, or a broken one, which the trainer reports
        checkpoints.readlink()
        status, target = checkpoints.stat(), os.path.realpath(checkpoints)
        only_root_writes = status.st_uid == 0 and not status.st_mode & stat.S_IWOTH
        if status.st_uid != os.geteuid() and not only_root_writes:
            whose = f"a folder of another user ({user_name(status.st_uid)}): {target}"
            fix = f"remove the link, and the job makes a folder: rm {word(str(checkpoints))}"
            return Problem(f"{checkpoints} is a link to {whose}", fix=fix)
    return None


def unmakable(run_dir: Path) -> Problem | None:
    """Return why a run folder that does not exist yet can't be made by this user; None if it can."""
    if os.path.lexists(run_dir):
        return None
    above = next(folder for folder in run_dir.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        return _not_made(run_dir, f"{above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        return _not_made(run_dir, f"you can't write into {above}")
    return None


def _not_made(run_dir: Path, why: str) -> Problem:
    return Problem(f"can't make the run folder {run_dir}: {why}", fix=NAME_WRITABLE)


def make(run_dir: Path) -> None:
    """Make a run folder that only this user can write; raise DocumentError if that fails."""
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            run_dir.mkdir(mode=0o755)
    except OSError as error:
        raise DocumentError([_not_made(run_dir, error.strerror or str(error))]) from error
    if problem := refusal(run_dir):
        raise DocumentError([problem])
    parent, name = run_dir.parent, Path(run_dir.name)
    try:
        with folder_below(parent, name) as folder:
            _close_to_others(folder)
        # folder_below refuses a link: a folder on a larger disk stays as the user has made it.
        with contextlib.suppress(OSError), folder_below(parent, name / "checkpoints") as folder:
            _close_to_others(folder)
    except OSError as error:
        raise DocumentError([_not_made(run_dir, error.strerror or str(error))]) from error


def _close_to_others(folder: int) -> None:
    """Remove others' permission to write an open folder, and the user's own files in it.

    Another user may exchange a file meanwhile. So each file is opened without following links; then it is
    checked and changed by its descriptor.
    """
    with contextlib.suppress(OSError):  # a default ACL would override the umask
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


def _entries(run_dir: Path) -> Iterator[tuple[Path, os.stat_result]]:
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
    old = os.umask(0o077)
    os.umask(old | OTHERS_WRITE)
    try:
        yield
    finally:
        os.umask(old)
