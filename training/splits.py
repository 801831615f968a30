"""Splits: they turn index lists into batches on the device.

`Held` lies on the device as it is (uint8) and is normalised batch by batch: no loader, no copies. `Loaded`
goes through loader processes; its random augmentation is seeded by (seed, epoch, sample), and so depends
neither on the number of loaders nor on where a run was stopped.

Shape suffixes: N samples of the split, B of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
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

    @property
    def samples(self) -> int:
        """How many."""
        return len(self.labels_N)

    @property
    def index_device(self) -> torch.device:
        """Where index lists are wanted."""
        return self.labels_N.device

    def batches(self, index_lists: Sequence[torch.Tensor], *, epoch: int) -> Iterator[Batch]:
        """x_BCHW (float32) and y_B (int64) of each index list; nothing here is random, whatever the epoch."""
        del epoch
        normalise = self.norm.on(self.labels_N.device)
        for index_B in index_lists:
            yield normalise(self.images_NCHW[index_B]), self.labels_N[index_B]


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
