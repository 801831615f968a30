"""Splits: they turn index lists into batches on the device.

`Held` lies on the device as it is (uint8) and is augmented and normalised there, batch by batch: no loader,
no copies. `Loaded` goes through loader processes. What is random is decided by (seed, epoch, sample), and so
depends neither on the number of loaders nor on where a run was stopped.

Shape suffixes: N samples of the split, B of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from .order import mix
from .stop import leave_signals_to_parent

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """Mean and standard deviation of each channel, for images whose values were brought to 0..1."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def on(self, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function that makes float32 of uint8 images there; others are what the model wants, and stay."""
        mean_C11, std_C11 = (
            torch.tensor(values, device=device).view(-1, 1, 1) for values in (self.mean, self.std)
        )

        def normalise(x_BCHW: torch.Tensor) -> torch.Tensor:
            return (x_BCHW.float() / 255 - mean_C11) / std_C11 if x_BCHW.dtype == torch.uint8 else x_BCHW

        return normalise


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Images (uint8, or float32 as the model wants them) and int64 labels in memory, on one device."""

    images_NCHW: torch.Tensor
    labels_N: torch.Tensor
    norm: Norm
    shift: int = 0  # pixels by which an image is moved at most, and perhaps mirrored; 0: neither
    seed: int = 0

    @property
    def samples(self) -> int:
        """How many."""
        return len(self.labels_N)

    @property
    def index_device(self) -> torch.device:
        """Where index lists are wanted."""
        return self.labels_N.device

    def batches(self, index_lists: Sequence[torch.Tensor], *, epoch: int) -> Iterator[Batch]:
        """x_BCHW (float32) and y_B (int64) of each index list."""
        normalise = self.norm.on(self.labels_N.device)
        key = mix("shift", self.seed, epoch)
        for index_B in index_lists:
            x_BCHW = self.images_NCHW[index_B]
            if self.shift:
                x_BCHW = shifted(x_BCHW, hashed(index_B, key), self.shift)
            yield normalise(x_BCHW), self.labels_N[index_B]


def hashed(index_B: torch.Tensor, key: int) -> torch.Tensor:
    """A random-looking number 0..2^31-1 for each index, the same on every device: int64, like the indices.

    Shifts and products of 32 bits, as hash functions end with; below 2^63, so that nothing overflows.
    """
    h_B = (index_B * 0x9E3779B1 + key) & 0xFFFFFFFF
    for right, factor in ((16, 0x45D9F3B), (15, 0x2C1B3C6D), (16, 1)):
        h_B = ((h_B ^ (h_B >> right)) * factor) & 0xFFFFFFFF
    return h_B >> 1


def shifted(x_BCHW: torch.Tensor, random_B: torch.Tensor, most: int) -> torch.Tensor:
    """Each image moved by up to `most` pixels each way, black moving in, and every second one mirrored.

    Args:
        x_BCHW: Images of any type.
        random_B: Decides about each, see `hashed`.
        most: Pixels.
    """
    batch, channels, height, width = x_BCHW.shape
    ways = 2 * most + 1
    padded_BCHW = functional.pad(x_BCHW, (most, most, most, most))
    along_H, along_W = (torch.arange(size, device=x_BCHW.device) for size in (height, width))
    mirrored_B1 = (random_B % 2 == 1).unsqueeze(1)
    row_BH = (random_B // 2 % ways).unsqueeze(1) + along_H
    column_BW = (random_B // (2 * ways) % ways).unsqueeze(1) + torch.where(
        mirrored_B1, width - 1 - along_W, along_W
    )
    image_B111 = torch.arange(batch, device=x_BCHW.device).view(-1, 1, 1, 1)
    channel_C11 = torch.arange(channels, device=x_BCHW.device).view(-1, 1, 1)
    return padded_BCHW[image_B111, channel_C11, row_BH[:, None, :, None], column_BW[:, None, None, :]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A map-style data set of (x_CHW uint8 or float32, label), read sample by sample."""

    dataset: Any
    norm: Norm
    device: torch.device
    workers: int
    seed: int

    @property
    def samples(self) -> int:
        """How many."""
        return len(self.dataset)

    @property
    def index_device(self) -> torch.device:
        """Where index lists are wanted."""
        return torch.device("cpu")

    def batches(self, index_lists: Sequence[torch.Tensor], *, epoch: int) -> Iterator[Batch]:
        """x_BCHW (float32) and y_B (int64) of each index list, on the device; both empty for an empty one."""
        lists = [index_B.tolist() for index_B in index_lists]
        on_gpu = self.device.type == "cuda"
        loader = DataLoader(
            _Seeded(self.dataset, self.seed, epoch),
            batch_sampler=[indices for indices in lists if indices],
            num_workers=self.workers,
            worker_init_fn=_start_worker,
            pin_memory=on_gpu,
        )
        loaded = iter(loader)
        normalise = self.norm.on(self.device)
        for indices in lists:
            if not indices:
                yield (
                    torch.empty(0, device=self.device),
                    torch.empty(0, dtype=torch.int64, device=self.device),
                )
                continue
            x_BCHW, y_B = next(loaded)
            x_BCHW = x_BCHW.to(self.device, non_blocking=on_gpu)
            yield normalise(x_BCHW), y_B.to(self.device, non_blocking=on_gpu)


Split = Held | Loaded


@dataclass(frozen=True)
class _Seeded(Dataset[tuple[torch.Tensor, int]]):
    """A data set whose random choices for a sample depend on (seed, epoch, sample) alone."""

    dataset: Any
    seed: int
    epoch: int

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        key = mix("sample", self.seed, self.epoch, index)
        torch.default_generator.manual_seed(
            key
        )  # torch.manual_seed visits all devices: a hundred times slower
        random.seed(key)
        x_CHW, label = self.dataset[index]
        return x_CHW, int(label)


def _start_worker(_worker: int) -> None:
    torch.set_num_threads(1)
    leave_signals_to_parent()
