"""Checkpoints: whole or absent on disk, checked before use, and never the reason for a silent fresh start.

A checkpoint is one file of torch.save with a dictionary of tensors and plain values, so that
weights_only=True reads it: format, model, optimizer, scaler, ema, step, epoch, consumed, best, sums, config,
epochs, world. It knows nothing of ranks: any number of processes goes on from it. Rank 0 alone calls what is
here.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch

from training import files
from training.errors import UserError, one_line
from training.saving.names import BEST, EPOCH_NAME, STEP_NAME, list_checkpoints

FORMAT = 1
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # what a full disk, a quota and an NFS server say
SAID_OF_BROKEN = {
    errno.EINVAL,
    None,
}  # by a seek to where a broken archive points, which is no fault of the disk
COPY_BYTES = 1 << 20

State = dict[str, Any]
Tell = Callable[[str], None]


class CorruptError(Exception):
    """The bytes are not a checkpoint, or not the ones that were written."""


def encode(state: State, file: IO[bytes]) -> None:
    """Write the contents of a checkpoint, tensor by tensor: there is no second copy of them in memory.

    Raises:
        OSError: As the file raised it. torch.save makes a RuntimeError of it that has no number.
    """
    _dump({"format": FORMAT, **state}, file)


def export(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Replace a file by one with the weights alone: `model.load_state_dict(torch.load(PATH))` takes it.

    Raises:
        OSError: If it cannot be written; an older one is untouched then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, lambda file: _dump(weights, file))


def decode(source: Path | IO[bytes]) -> State:
    """What `encode` was given, tensors on the CPU.

    torch.load alone does not notice a flipped byte; the checksums of the zip archive do.

    Raises:
        CorruptError: If a checksum is wrong, or something but tensors and plain values is inside.
        UserError: If a later version of this package wrote it.
        OSError: If it cannot be read.
    """
    state = _loaded(source)
    if not isinstance(state, dict) or not {"format", "model", "optimizer", "step"} <= state.keys():
        raise CorruptError("it holds no training state")
    if state["format"] != FORMAT:
        raise UserError(
            f"the checkpoint has format {state['format']}, this package knows {FORMAT}", fix="a newer package"
        )
    return state


def decode_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights in a file of ours or another trainer's, for --init-from.

    Raises:
        UserError: If there are none.
    """
    fix = "a file of torch.save with a model_state_dict, state_dict or model in it"
    try:
        state = _loaded(path, checked=False)
    except (CorruptError, OSError) as error:
        raise UserError(f"cannot use these weights ({error})", at=str(path), fix=fix) from error
    for key in ("model", "model_state_dict", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key] | (state.get("ema") or {})  # of ours, the weights that were evaluated
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UserError("no weights found", at=str(path), fix=fix)
    return state


def save(folder: Path, state: State, *, step: int, keep: int, best: bool, epoch: int = 0) -> tuple[str, int]:
    """Write step-STEP.pt, also as best.pt if it is the best, and under the name of its epoch if given.

    All but the `keep` newest are dropped; best.pt and those with the name of an epoch stay.

    Where there is no room, all but the newest older one make way for it.

    Returns:
        Its name, and its size in bytes.

    Raises:
        OSError: If it could not be written; the newest older one, and the best, are untouched then.
    """
    path = folder / f"step-{step:08}.pt"
    try:
        size = _write(path, lambda file: encode(state, file))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _drop(folder, keep=1)
        size = _write(path, lambda file: encode(state, file))
    for other in [BEST] * best + [EPOCH_NAME.format(epoch)] * bool(epoch):
        _also(path, folder / other)
    _drop(folder, keep)
    return path.name, size


def check_room(folder: Path, size: int, *, keep: int, tell: Tell) -> None:
    """See that checkpoints of about `size` bytes will fit, before hours are spent on what cannot be saved.

    A quota cannot be seen in this way: the file system tells what is free, not what this user may have.

    Args:
        folder: The run's checkpoints.
        size: Bytes of one.
        keep: How many are kept, besides the best; another is there while it is written.
        tell: Called with a line where not all of them fit.

    Raises:
        UserError: If not even one does.
    """
    disk = shutil.disk_usage(folder)
    if not disk.total:
        return  # what some network file systems say where they do not know
    known = list_checkpoints(folder)
    held = {path: path.stat() for path in (*known, folder / BEST) if path.exists()}
    # all but the newest make way for a new one, which gives room unless the best is the same file
    make_way = sum(held[path].st_size for path in known[1:] if held[path].st_nlink == 1)
    if disk.free + make_way < size:
        raise UserError(
            f"no room for a checkpoint: it takes {_megabytes(size)}, and {_megabytes(disk.free)} are free",
            at=str(folder),
            fix="make room, or another --run-dir",
        )
    wanted = (keep + 2) * size
    room = disk.free + sum({found.st_ino: found.st_size for found in held.values()}.values())
    if room < wanted:
        tell(
            f"Warning: {keep} checkpoints, the best and one being written take {_megabytes(wanted)}, and "
            f"{folder} has {_megabytes(room)} for them: older ones will make way (--keep 1 takes less)"
        )


def prepare(folder: Path, resume: str, tell: Tell) -> None:
    """Make the folder and clear away what a killed save left; with resume "off", set checkpoints aside."""
    if resume == "off" and folder.is_dir() and any(folder.iterdir()):
        aside = next(
            path
            for i in range(1, 1 << 20)
            if not (path := folder.with_name(f"{folder.name}.old-{i}")).exists()
        )
        folder.rename(aside)
        tell(f"Starting afresh: the checkpoints of the earlier run are now in {aside}")
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob("*.tmp-*"):
        leftover.unlink(missing_ok=True)


def find(folder: Path, resume: str, tell: Tell) -> tuple[Path, State] | None:
    """The checkpoint to go on from, as its path and what is in it, or None for a fresh start.

    Args:
        folder: The run's checkpoints.
        resume: auto: the newest good one; off: none; else a path, or a name in the folder.
        tell: Called with a line for each file found corrupt; such files are renamed to *.corrupt.

    Raises:
        UserError: If there are checkpoints but none is good, or the file asked for is missing or corrupt.
        OSError: If one cannot be read, which says nothing of what is in it.
    """
    if resume == "off":
        return None
    if resume != "auto":
        return _chosen(folder, Path(resume))
    for path in list_checkpoints(folder):
        try:
            state = decode(path)
        except CorruptError as error:
            path.replace(path.with_name(f"{path.name}.corrupt"))
            tell(f"Checkpoint {path.name} is corrupt ({error}): renamed to {path.name}.corrupt")
        else:
            return path, state
    if any(folder.glob("step-*.corrupt")):
        rescue = f"--resume {BEST}, or " if (folder / BEST).is_file() else ""
        raise UserError(
            "all checkpoints are corrupt", at=str(folder), fix=f"{rescue}--resume off to start afresh"
        )
    return None


def drop_after(folder: Path, step: int, tell: Tell) -> None:
    """Set later checkpoints aside when an earlier one was asked for: "auto" would go on from the latest."""
    for path in list_checkpoints(folder):
        if int(STEP_NAME.fullmatch(path.name)[1]) > step:  # type: ignore[index] # `steps` matched it
            path.replace(path.with_name(f"{path.name}.abandoned"))
            tell(f"Checkpoint {path.name} is later than the one asked for: renamed to {path.name}.abandoned")


def _chosen(folder: Path, wanted: Path) -> tuple[Path, State]:
    inside = (
        [folder / wanted] if wanted.name == str(wanted) else []
    )  # a bare name is looked for in the run first
    path = next((path for path in (*inside, wanted) if path.is_file()), None)
    if path is None:
        raise UserError(
            f"--resume {wanted} is not there",
            at=str(folder),
            fix="--resume auto, or the path of a checkpoint",
        )
    try:
        return path, decode(path)
    except CorruptError as error:
        fix = f"--resume auto; weights of another trainer: --init-from {path}"
        raise UserError(f"the checkpoint is corrupt ({error})", at=str(path), fix=fix) from error


def _drop(folder: Path, keep: int) -> None:
    for old in list_checkpoints(folder)[keep:]:
        old.unlink(missing_ok=True)


def _also(path: Path, other: Path) -> None:
    """Give a file a second name in its folder; where the file system has no links, copy it."""
    temporary = files.temporary(other)
    try:
        temporary.hardlink_to(path)
    except OSError:
        with path.open("rb") as file:
            _write(other, lambda copy: shutil.copyfileobj(file, copy, COPY_BYTES))
        return
    temporary.replace(other)
    _sync_folder(other.parent)


def _loaded(source: Path | IO[bytes], *, checked: bool = True) -> Any:
    try:
        damaged = _damaged(source) if checked else None
        if not isinstance(source, Path):
            source.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that are not torch's, and refused
            loaded = None if damaged else torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch advises to load it all the same: that would run its code
        raise CorruptError("something but tensors and plain values is inside, or it is no pickle") from error
    except Exception as error:  # torch.load raises many kinds for broken bytes
        if isinstance(error, OSError) and error.errno not in SAID_OF_BROKEN:
            raise
        raise CorruptError(one_line(error)[:200]) from error
    if damaged:
        raise CorruptError(f"wrong checksum of {damaged}")
    return loaded


def _damaged(source: Path | IO[bytes]) -> str | None:
    """The first part of the archive whose checksum is wrong."""
    with zipfile.ZipFile(source) as archive:
        return archive.testzip()


def _write(path: Path, fill: Callable[[IO[bytes]], None]) -> int:
    """Replace a file so that any crash leaves a whole one: its bytes reach the disk before its name does.

    Args:
        path: The file.
        fill: Writes the contents.

    Returns:
        How many bytes.
    """
    temporary = files.temporary(path)
    try:
        with os.fdopen(files.create(temporary), "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return size


def _dump(value: Any, file: IO[bytes]) -> None:
    watched = _Watched(file)
    try:
        torch.save(value, cast("IO[bytes]", watched))  # it needs no more of one
    except Exception as error:
        raise watched.error or error from error


@dataclass
class _Watched:
    """A file for torch.save that remembers why a write failed."""

    file: IO[bytes]
    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Not yet: `_write` does it."""


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder last, as its files' contents already do."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
