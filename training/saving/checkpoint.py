"""Checkpoint files, which are written as a whole or not at all, and checked before use. Only for rank 0."""

import contextlib
import errno
import functools
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import torch

with contextlib.suppress(ImportError):  # torch.save imports it late, when an image may be unmounted
    import torch.utils.serialization

from training import files
from training.errors import UserError
from training.files import BEST, EPOCH_NAME, checkpoint_name, checkpoint_step, list_checkpoints
from training.saving.reading import FORMAT, CorruptError, State, load

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # a full disk, a quota, and an error of NFS for both

_write = functools.partial(files.replace, durable=True)
Tell = Callable[[str], None]  # prints a line
Use = Callable[[Path, State, IO[bytes]], Any]  # uses a checkpoint: its path, its state and its open file


class MisfitError(UserError):
    """A checkpoint that is intact and has the same settings, but whose weights do not fit the model."""


def encode(state: State, file: IO[bytes]) -> None:
    """Write a checkpoint tensor by tensor, without a second copy in memory; raise the file's OSError."""
    _dump({"format": FORMAT, **state}, file)


def export(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write a file with only the weights; an older file stays unchanged if the write raises an OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, lambda file: _dump(weights, file))


def decode_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a file of this or another trainer, for --init-from.

    Raises UserError if the file has no weights.
    """
    fix = "a file of torch.save with a model_state_dict, state_dict or model in it, or .safetensors"
    try:
        with files.open_regular(path, follow=True) as file:
            state = load(file, checked=False, safetensors=path.suffix == ".safetensors")
    except (CorruptError, OSError) as error:
        raise UserError(f"cannot use these weights ({error})", at=str(path), fix=fix) from error
    for key in ("model", "model_state_dict", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            means = state.get("ema")  # running means of some weights, which this trainer evaluates
            state = state[key] | (means if isinstance(means, dict) else {})
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise UserError("no weights found", at=str(path), fix=fix)
    return state


def save(folder: Path, state: State | None, *, step: int, keep: int, best: bool, epoch: int = 0) -> int:
    """Write step-STEP.pt; return its size in bytes.

    With `best` the file is also best.pt, and with `epoch` it also has the name of the epoch. Without a state,
    the file exists already, and only gets the other names. Only the `keep` newest checkpoints, best.pt and
    checkpoints of epochs are kept. On a full disk, all old checkpoints but the newest are deleted before a
    second try. Raises OSError if the checkpoint can't be written. The newest old checkpoint and best.pt are
    then unchanged.
    """
    path = folder / checkpoint_name(step)
    if state:
        fill = functools.partial(encode, state)
        try:
            _write(path, fill)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _delete(list_checkpoints(folder)[1:])
            _write(path, fill)
    size = path.stat().st_size
    for other in [BEST] * best + [EPOCH_NAME.format(epoch)] * bool(epoch):
        _link(path, folder / other)
    _delete(list_checkpoints(folder)[keep:])
    return size


def check_room(folder: Path, size: int, *, keep: int, tell: Tell) -> None:
    """Raise UserError if the disk has no room for a checkpoint of `size` bytes.

    `tell` gets a warning if the disk has no room for `keep` + 2 checkpoints.
    """
    disk = shutil.disk_usage(folder)
    if not disk.total:
        return  # some network file systems do not report their size
    checkpoints = list_checkpoints(folder)
    statuses = {path: path.lstat() for path in (*checkpoints, folder / BEST) if os.path.lexists(path)}
    # All but the newest checkpoint can be deleted. That frees their bytes, unless best.pt is the same file.
    deletable = sum(statuses[path].st_size for path in checkpoints[1:] if statuses[path].st_nlink == 1)
    if disk.free + deletable < size:
        what = f"no room for a checkpoint: it needs {_megabytes(size)}, and {_megabytes(disk.free)} are free"
        raise UserError(what, at=str(folder), fix="make room, or another --run-dir")
    wanted = (keep + 2) * size
    sizes = {status.st_ino: status.st_size for status in statuses.values()}  # best.pt may be a second name
    room = disk.free + sum(sizes.values())
    if room < wanted:
        need = f"{keep} checkpoints, the best and one being written need {_megabytes(wanted)}"
        have = f"{folder} has room for {_megabytes(room)}"
        tell(f"Warning: {need}, and {have}: older ones will be deleted (--keep 1 needs less)")


def prepare(folder: Path, resume: str, tell: Tell) -> None:
    """Make the folder, and delete files of killed saves; with `resume` "off" rename an old folder first."""
    if resume == "off" and folder.is_dir() and any(folder.iterdir()):
        names = (folder.with_name(f"{folder.name}.old-{i}") for i in itertools.count(1))
        unused = next(path for path in names if not os.path.lexists(path))
        folder.rename(unused)
        tell(f"Starting from scratch: the earlier checkpoints are now in {unused}")
    folder.mkdir(parents=True, exist_ok=True)
    _delete(folder.glob("*.tmp-*"))


def find(folder: Path, resume: str, tell: Tell, use: Use = lambda path, state, _: (path, state)) -> Any:
    """Return the result of `use` for the checkpoint to resume from, or None to start from scratch.

    `resume` is "auto" (the newest good checkpoint), "off", a path, or a name in the folder. `tell` is called
    with a line for each corrupt file, which is renamed to *.corrupt. `use` raises MisfitError if the state
    does not fit the model. If the state of an older checkpoint fits, the file of the misfit is corrupt.
    Otherwise the model has changed, and the error is raised.

    Raises:
        UserError: The named file is missing or corrupt, or no checkpoint is intact and fits.
        OSError: A checkpoint cannot be read.
    """
    if resume == "off":
        return None
    if resume != "auto":
        return _use_named(folder, Path(resume), use)
    misfits: list[tuple[Path, MisfitError]] = []
    for path in list_checkpoints(folder):
        try:
            result = _open_and_use(path, use)
        except CorruptError as error:
            _set_aside(path, "corrupt", f"corrupt ({error})", tell)
        except MisfitError as error:
            misfits.append((path, error))
        else:
            for wrong, _ in misfits:
                _set_aside(wrong, "corrupt", "corrupt (it does not fit the model, an older one does)", tell)
            return result
    if misfits:
        raise misfits[0][1]
    if any(folder.glob("step-*.corrupt*")):
        rescue = f"--resume {BEST}, or " if (folder / BEST).is_file() else ""
        fix = f"{rescue}--resume off to start from scratch"
        raise UserError("all checkpoints are corrupt", at=str(folder), fix=fix)
    return None


def set_aside_after(folder: Path, step: int, tell: Tell) -> None:
    """Rename the checkpoints after `step`, from which the run resumes.

    Otherwise the next start with "auto" would take one of them.
    """
    for path in list_checkpoints(folder):
        if (checkpoint_step(path) or 0) > step:
            _set_aside(path, "abandoned", "newer than the one asked for", tell)


def _use_named(folder: Path, wanted: Path, use: Use) -> Any:
    """Return the result of `use` for the file that --resume names; raises UserError."""
    path = next((path for path in (folder / wanted, wanted) if path.is_file()), None)
    if path is None:
        fix = "--resume auto, or the path of a checkpoint"
        raise UserError(f"--resume {wanted} was not found", at=str(folder), fix=fix)
    try:
        return _open_and_use(path, use, follow=True)
    except CorruptError as error:
        fix = f"--resume auto; weights of another trainer: --init-from {path}"
        raise UserError(f"the checkpoint is corrupt ({error})", at=str(path), fix=fix) from error


def _open_and_use(path: Path, use: Use, *, follow: bool = False) -> Any:
    """Return the result of `use` for a checkpoint, which is opened once.

    With `follow` the path may be a link. Raises CorruptError.
    """
    if not (follow or stat.S_ISREG(path.lstat().st_mode)):
        raise CorruptError("it is not a regular file")
    with files.open_regular(path, follow=True) as file:
        state: State = load(file)
        if checkpoint_step(path) not in {None, state["step"]}:
            raise CorruptError(f"it is of step {state['step']}")
        return use(path, state, file)


def _set_aside(path: Path, ending: str, why: str, tell: Tell) -> None:
    """Rename a file to NAME.ENDING, also over an older file; if one of both is a folder, to NAME.ENDING-1."""
    names = (path.with_name(f"{path.name}.{ending}{f'-{i}' if i else ''}") for i in itertools.count())
    usable = next(name for name in names if not os.path.lexists(name) or not (name.is_dir() or path.is_dir()))
    path.replace(usable)
    tell(f"Checkpoint {path.name} is {why}: renamed to {usable.name}")


def _delete(paths: Iterable[Path]) -> None:
    """Delete files, except those that are gone or are folders."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            path.unlink()


def _link(path: Path, other: Path) -> None:
    """Give a file a second name in its folder; copy the file if the file system has no links."""
    temporary = files.temporary_name(other)
    try:
        temporary.hardlink_to(path)
    except OSError:
        with path.open("rb") as file:
            _write(other, lambda copy: shutil.copyfileobj(file, copy, 1 << 20))
        return
    temporary.replace(other)
    temporary.unlink(missing_ok=True)  # a rename between two names of one file does nothing
    files.sync_folder(other.parent)


def _dump(value: Any, file: IO[bytes]) -> None:
    """Call torch.save; raise the OSError of a failed write, because torch's own error has no errno."""
    errors: list[OSError] = []

    def write(data: Any) -> int:
        try:
            return file.write(data)
        except OSError as error:
            errors.append(error)
            raise

    try:
        torch.save(value, cast("IO[bytes]", SimpleNamespace(write=write, flush=file.flush)))
    except Exception as error:
        raise (errors[0] if errors else error) from error


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
