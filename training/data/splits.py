"""Splits: the training or validation samples of a data set, made into batches by index lists.

All random numbers depend only on the seed, the epoch and the sample. Shape suffixes: N samples of the split,
B samples of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import atexit
import itertools
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from training.data.order import derive_seed
from training.errors import UserError, one_line
from training.processes.stop import end_with_parent, ignore_signals

Batch = tuple[torch.Tensor, torch.Tensor]  # images and labels, or targets

PREFETCHED = 4  # batches that each loader process prefetches, in shared memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """The mean and the standard deviation of each channel, for values in 0..1."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def on(self, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function that normalises uint8 images to float32 on the device.

        The function returns images of another type unchanged.
        """
        mean_C11, std_C11 = torch.tensor((self.mean, self.std), device=device).view(2, -1, 1, 1)

        def normalise(x_BCHW: torch.Tensor) -> torch.Tensor:
            if x_BCHW.dtype != torch.uint8:
                return x_BCHW
            return x_BCHW.float().div_(255).sub_(mean_C11).div_(std_C11)

        return normalise


class InMemory:
    """A split in the device's memory: images (uint8, or float32 for the model), and labels or targets."""

    def __init__(
        self, images_NCHW: torch.Tensor, labels_N: torch.Tensor, norm: Norm, shift: int = 0, seed: int = 0
    ) -> None:
        self.images_NCHW, self.labels_N = images_NCHW, labels_N
        self.samples, self.index_device = len(labels_N), labels_N.device
        self._normalise, self._seed = norm.on(labels_N.device), seed
        self._shift = shift  # pixels by which images are shifted at most, and flipped; 0 disables both

    def batches(self, index_lists: Sequence[torch.Tensor], *, epoch: int) -> Iterator[Batch]:
        """Yield x_BCHW (float32) and y_B (int64) for each index list."""
        key = derive_seed("shift", self._seed, epoch)
        for index_B in index_lists:
            x_BCHW = self.images_NCHW.index_select(0, index_B)
            if self._shift:
                x_BCHW = shift_and_flip(x_BCHW, hash_indices(index_B, key), self._shift)
            yield self._normalise(x_BCHW), self.labels_N.index_select(0, index_B)


def hash_indices(index_B: torch.Tensor, key: int) -> torch.Tensor:
    """Return a pseudo-random number 0..2^31-1 (int64) for each index, the same on every device."""
    hash_B = (index_B * 0x9E3779B1 + key) & 0xFFFFFFFF  # products of 32 bits stay below 2^63
    for right, factor in ((16, 0x45D9F3B), (15, 0x2C1B3C6D), (16, 1)):
        hash_B = ((hash_B ^ (hash_B >> right)) * factor) & 0xFFFFFFFF
    return hash_B >> 1


def shift_and_flip(x_BCHW: torch.Tensor, random_B: torch.Tensor, shift: int) -> torch.Tensor:
    """Return images shifted by up to `shift` pixels, with black edges; half of the images are mirrored.

    `random_B` has a random number for each image, which decides about its shift and its mirroring.
    """
    batch, channels, height, width = x_BCHW.shape
    shifts = 2 * shift + 1  # possible shifts in each direction
    padded_BCHW = torch.nn.functional.pad(x_BCHW, (shift, shift, shift, shift))
    along_H, along_W = (torch.arange(size, device=x_BCHW.device) for size in (height, width))
    mirrored_B1 = (random_B % 2 == 1).unsqueeze(1)
    inside_BW = torch.where(mirrored_B1, width - 1 - along_W, along_W)
    row_BH = (random_B // 2 % shifts).unsqueeze(1) + along_H
    column_BW = (random_B // (2 * shifts) % shifts).unsqueeze(1) + inside_BW
    image_B111 = torch.arange(batch, device=x_BCHW.device).view(-1, 1, 1, 1)
    channel_C11 = torch.arange(channels, device=x_BCHW.device).view(-1, 1, 1)
    return padded_BCHW[image_B111, channel_C11, row_BH[:, None, :, None], column_BW[:, None, None, :]]


class FromLoaders:
    """A split that `workers` loader processes read from a map-style data set; with 0 this process reads.

    The loader processes live until the end of the run.
    """

    def __init__(self, keyed: Keyed, *, norm: Norm, device: torch.device, workers: int) -> None:
        self.samples = len(keyed)
        self.index_device = torch.device("cpu")
        self.started = not workers  # whether no loader process has to be forked later
        self._normalise, self._device = norm.on(device), device
        self._lists: list[list[int]] = []
        self._loader: DataLoader[Any] = DataLoader(
            keyed,
            batch_sampler=self._lists,
            collate_fn=_collate,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            worker_init_fn=_start_worker,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCHED if workers else None,
            multiprocessing_context="fork" if workers else None,  # data sets need not be picklable
        )
        atexit.register(_end_processes, weakref.ref(self._loader))

    def batches(self, index_lists: Sequence[torch.Tensor], *, epoch: int) -> Iterator[Batch]:
        """Yield x_BCHW (float32) and y_B (int64) for each index list, on the device.

        Both tensors are empty for an empty list.
        """
        # The keys of Keyed hold the epoch, because only indices reach loader processes that run already.
        key_of_index_0 = epoch * self.samples
        self._lists[:] = [(index_B + key_of_index_0).tolist() for index_B in index_lists if len(index_B)]
        for x_BCHW, y_B in move_to_device(self._read(index_lists), self._device):
            yield self._normalise(x_BCHW), y_B

    def _read(self, index_lists: Sequence[torch.Tensor]) -> Iterator[Batch]:
        """Yield the batches of `_lists` from the loader, and an empty batch for each empty list."""
        loaded = iter(self._loader)
        self.started = True
        for index_B in index_lists:
            batch = next(loaded) if len(index_B) else (torch.empty(0), torch.empty(0, dtype=torch.int64))
            if isinstance(batch, UserError):
                raise batch  # a sample cannot be read
            yield batch[0], batch[1]


def _end_processes(loader: weakref.ref[DataLoader[Any]]) -> None:
    """End the processes of a loader at exit.

    Otherwise Python would send them a SIGTERM, which they ignore, and wait for their end.
    """
    existing = loader()
    if existing is not None:
        existing._iterator = None  # noqa: SLF001 - the iterator ends its processes when it is deleted


Split = InMemory | FromLoaders


def move_to_device(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches on the device. A GPU computes on a batch while the next batch is copied."""
    # The copies from pinned memory use a second stream. The computing stream waits for the copy of a batch.
    # The next copy starts only after that call, so the stream does not wait for it. record_stream keeps the
    # memory of a batch until the computing stream has used it.
    if device.type != "cuda":
        yield from batches
        return
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
    upcoming: Batch | None = None
    for batch in itertools.chain(batches, (None,)):
        arrived = upcoming
        if arrived is not None:
            computing = torch.cuda.current_stream(device)
            computing.wait_stream(copying)
            for part in arrived:
                part.record_stream(computing)
        if batch is not None:
            with torch.cuda.stream(copying):
                upcoming = batch[0].to(device, non_blocking=True), batch[1].to(device, non_blocking=True)
        if arrived is not None:
            yield arrived


@dataclass(frozen=True, kw_only=True)
class Keyed(Dataset[Any]):
    """The samples of a map-style data set by key: epoch * samples + index.

    The key seeds the random augmentation of its sample. A sample that cannot be read is returned as a
    UserError.
    """

    dataset: Any  # items are (x_CHW uint8 or float32, label)
    seed: int  # seed of random augmentation
    classes: int  # 0 for targets of any kind
    shape_CHW: tuple[int, ...]  # shape of all images
    target_shape: tuple[int, ...] = ()  # shape of all targets; () for labels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: int) -> tuple[torch.Tensor, int | torch.Tensor] | UserError:
        epoch, index = divmod(key, len(self))
        seed = derive_seed("sample", self.seed, epoch, index)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed visits all devices, and is slow
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        try:
            x_CHW, label = self.dataset[index]
            return x_CHW, self._target(index, x_CHW, label)
        except UserError as error:
            return error
        except OSError as error:
            return UserError(f"cannot read sample {index} ({one_line(error)})", fix="repair the data set")

    def _target(self, index: int, x_CHW: torch.Tensor, label: Any) -> int | torch.Tensor:
        """Return the label or target; raises UserError if its shape or the image's shape is wrong."""
        if tuple(x_CHW.shape) != self.shape_CHW:
            what = f"sample {index} has the shape {tuple(x_CHW.shape)}, the first one {self.shape_CHW}"
            raise UserError(what, fix="make all images of one shape")
        if self.classes and 0 <= label < self.classes:
            return int(label)
        if self.classes:
            what = f"the label of sample {index} is {label}, but there are {self.classes} classes"
            raise UserError(what, fix="labels from 0 on, each below the number of classes")
        target = as_target(label)
        if target.shape != self.target_shape:
            what = f"the target of sample {index} has the shape {tuple(target.shape)}"
            raise UserError(f"{what}, the first one {self.target_shape}", fix="make all of one shape")
        return target


def as_target(value: Any) -> torch.Tensor:
    """Return the target of an image as a tensor; numbers become float32 or int64."""
    target = torch.as_tensor(value)
    return target.float() if target.dtype == torch.float64 else target


def _collate(samples: list[Any]) -> Any:
    """Return the batch of samples, or the first error among the samples."""
    errors = (sample for sample in samples if isinstance(sample, UserError))
    return next(errors, None) or default_collate(samples)


def _start_worker(_worker: int) -> None:
    """Prepare a new loader process."""
    torch.set_num_threads(1)
    ignore_signals()
    end_with_parent()
