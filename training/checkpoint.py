"""Checkpoints: whole or absent on disk, checked before use, and never the reason for a silent fresh start.

A checkpoint is one file of torch.save with a dictionary of tensors and plain values, so that
weights_only=True reads it: format, model, optimizer, scaler, ema, step, epoch, consumed, best, sums, config,
epochs, world. It knows nothing of ranks: any number of processes goes on from it. Rank 0 alone calls what is
here.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .errors import UserError, one_line

FORMAT = 1
BEST = "best.pt"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # what a full disk, a quota and an NFS server say
STEP_NAME = re.compile(r"step-(\d{8,})\.pt")

State = dict[str, Any]
Tell = Callable[[str], None]


class CorruptError(Exception):
    """The bytes are not a checkpoint, or not the ones that were written."""


def encode(state: State) -> bytes:
    """The file's contents."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    return buffer.getvalue()


def decode(data: bytes) -> State:
    """What `encode` was given, tensors on the CPU.

    torch.load alone does not notice a flipped byte; the checksums of the zip archive do.

    Raises:
        CorruptError: If a checksum is wrong, or something but tensors and plain values is inside.
        UserError: If a later version of this package wrote it.
    """
    state = _loaded(data)
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
        state = _loaded(path.read_bytes(), checked=False)
    except (CorruptError, OSError) as error:
        raise UserError(f"cannot use these weights ({error})", at=str(path), fix=fix) from error
    for key in ("model", "model_state_dict", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key] | (state.get("ema") or {})  # of ours, the weights that were evaluated
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UserError("no weights found", at=str(path), fix=fix)
    return state


def save(folder: Path, data: bytes, *, step: int, keep: int, best: bool) -> str:
    """Write step-STEP.pt, also as best.pt if it is the best; drop all but the `keep` newest; give its name.

    Where there is no room, all but the newest older one make way for it.

    Raises:
        OSError: If it could not be written; the newest older one, and the best, are untouched then.
    """
    path = folder / f"step-{step:08}.pt"
    try:
        _write(path, data)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _drop(folder, keep=1)
        _write(path, data)
    if best:
        _also(path, folder / BEST, data)
    _drop(folder, keep)
    return path.name


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


def find(folder: Path, resume: str, tell: Tell) -> tuple[Path, bytes] | None:
    """The checkpoint to go on from, as its path and contents, or None for a fresh start.

    Args:
        folder: The run's checkpoints.
        resume: auto: the newest good one; off: none; else a path, or a name in the folder.
        tell: Called with a line for each file found corrupt; such files are renamed to *.corrupt.

    Raises:
        UserError: If there are checkpoints but none is good, or the file asked for is missing or corrupt.
    """
    if resume == "off":
        return None
    if resume != "auto":
        return _chosen(folder, Path(resume))
    for path in _steps(folder):
        try:
            data = path.read_bytes()
            decode(data)
        except CorruptError as error:
            path.replace(path.with_name(f"{path.name}.corrupt"))
            tell(f"Checkpoint {path.name} is corrupt ({error}): renamed to {path.name}.corrupt")
        else:
            return path, data
    if any(folder.glob("step-*.corrupt")):
        rescue = f"--resume {BEST}, or " if (folder / BEST).is_file() else ""
        raise UserError(
            "all checkpoints are corrupt", at=str(folder), fix=f"{rescue}--resume off to start afresh"
        )
    return None


def drop_after(folder: Path, step: int, tell: Tell) -> None:
    """Set later checkpoints aside when an earlier one was asked for: "auto" would go on from the latest."""
    for path in _steps(folder):
        if int(STEP_NAME.fullmatch(path.name)[1]) > step:  # type: ignore[index] # _steps matched it
            path.replace(path.with_name(f"{path.name}.abandoned"))
            tell(f"Checkpoint {path.name} is later than the one asked for: renamed to {path.name}.abandoned")


def _chosen(folder: Path, wanted: Path) -> tuple[Path, bytes]:
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
        data = path.read_bytes()
        decode(data)
    except CorruptError as error:
        raise UserError(f"the checkpoint is corrupt ({error})", at=str(path), fix="--resume auto") from error
    return path, data


def _steps(folder: Path) -> list[Path]:
    """The checkpoints by step, newest first. The folder itself is the only record of what is there."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := STEP_NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _drop(folder: Path, keep: int) -> None:
    for old in _steps(folder)[keep:]:
        old.unlink(missing_ok=True)


def _also(path: Path, other: Path, data: bytes) -> None:
    """Give a file a second name in its folder; where the file system has no links, write it twice."""
    temporary = _temporary(other)
    try:
        temporary.hardlink_to(path)
    except OSError:
        _write(other, data)
        return
    temporary.replace(other)
    _sync_folder(other.parent)


def _loaded(data: bytes, *, checked: bool = True) -> Any:
    try:
        damaged = zipfile.ZipFile(io.BytesIO(data)).testzip() if checked else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that are not torch's, and refused
            loaded = None if damaged else torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch advises to load it all the same: that would run its code
        raise CorruptError("something but tensors and plain values is inside, or it is no pickle") from error
    except Exception as error:  # torch.load raises many kinds for broken bytes
        raise CorruptError(one_line(error)[:200]) from error
    if damaged:
        raise CorruptError(f"wrong checksum of {damaged}")
    return loaded


def _write(path: Path, data: bytes) -> None:
    """Replace a file so that any crash leaves a whole one: its bytes reach the disk before its name does."""
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder last, as its files' contents already do."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
