"""The reading of checkpoints, which runs no code in them, and refuses changed files and wrong states."""

import errno
import os
import pickle
import re
import warnings
import zipfile
from typing import IO, Any

import torch

from training.errors import UserError, one_line

FORMAT = 1  # of checkpoints that this package writes
MAX_COUNT = 10**15  # of steps or samples, far above those of any training
SEEK_ERRORS = {errno.EINVAL, None}  # errno of an OSError after a seek to a wrong offset in a corrupt archive
DOS_FOLDER = 0x10  # the attribute in a zip archive by which torch takes a part for a folder
_ALLOCATION = re.compile(r"you tried to allocate ([0-9]+) bytes")  # torch's error without memory

State = dict[str, Any]


class CorruptError(Exception):
    """A file that is not a checkpoint, or was changed after it was written."""


def load(file: IO[bytes], *, checked: bool = True, safetensors: bool = False) -> Any:
    """Return the value that torch.save or safetensors wrote, on the CPU.

    With `checked` the checksums must be right, and the value must be a state that this package saves.

    Raises:
        CorruptError: The file is damaged, holds no state, or needs more than tensors and plain values.
        UserError: A later version of this package wrote the file, or the package safetensors is missing.
        OSError: The file cannot be read.
    """
    try:
        if safetensors:
            from safetensors.torch import load as load_tensors

            return load_tensors(file.read())
        if checked or zipfile.is_zipfile(file):
            _check_parts(file, sums=checked)
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that are refused
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        return _checked(loaded) if checked else loaded
    except (CorruptError, UserError):
        raise
    except ImportError as error:
        what = ".safetensors needs the package safetensors"
        raise UserError(what, fix="pip install safetensors") from error
    except pickle.UnpicklingError as error:
        # torch's own text advises to load the file with its code
        raise CorruptError("it has other values than tensors and plain ones, or is not a pickle") from error
    except Exception as error:  # a corrupt file raises errors of many types
        if isinstance(error, OSError) and error.errno not in SEEK_ERRORS:
            raise
        if _lacks_memory(error, file.seek(0, os.SEEK_END)):
            raise
        raise CorruptError(one_line(error)[:200]) from error


def _lacks_memory(error: Exception, size: int) -> bool:
    """Return whether the machine lacks the memory to read an intact file of `size` bytes.

    If torch asks for more bytes than the file holds, the file is damaged.
    """
    asked = _ALLOCATION.search(str(error))
    return isinstance(error, MemoryError) or (asked is not None and int(asked[1]) <= size)


def _check_parts(file: IO[bytes], *, sums: bool) -> None:
    """Raise CorruptError unless each part of an archive is uncompressed, and with `sums` has its checksum."""
    # torch checks no checksums. It copies nothing of a part that is marked as a folder, so the part's tensor
    # would hold the former contents of the memory.
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        for part in parts:
            if part.compress_size != part.file_size or part.external_attr & DOS_FOLDER:
                raise CorruptError(f"{part.filename} is not stored as torch.save does it")
        if sum(part.file_size for part in parts) > file.seek(0, os.SEEK_END):
            raise CorruptError("its parts overlap")
        if sums and (wrong := archive.testzip()):
            raise CorruptError(f"wrong checksum of {wrong}")


def _checked(state: Any) -> State:
    """Return the state; raise CorruptError, or any other error, if no training saves its numbers.

    Weights and the optimizer's state are checked later, when they are loaded.
    """
    if not isinstance(state, dict) or not {"format", "model", "optimizer", "step"} <= state.keys():
        raise CorruptError("it holds no training state")
    if state["format"] > FORMAT:
        what = f"the checkpoint has format {state['format']}, this package reads {FORMAT}"
        raise UserError(what, fix="a newer package")
    counts = [state[name] for name in ("format", "step", "epoch", "consumed", "epochs", "world")]
    settings = [value for value in state["config"].values() if not isinstance(value, str)]
    numbers = [*settings, *(state.get("scaler") or {}).values(), state["best"], *state["sums"]]
    if not (
        all(type(count) is int and 0 <= count < MAX_COUNT for count in counts)
        and all(isinstance(number, (int, float)) and abs(number) < 1e300 for number in numbers)
        and len(state["sums"]) == 3
        and state["epoch"] <= state["epochs"]
        and state["consumed"] <= state["config"]["train_samples"]
    ):
        raise CorruptError("it has numbers that no training saves")
    return state
