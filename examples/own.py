"""A data set and a model of your own for the training package: start from this file.

In the folder that holds it, try it here, then as a job:

    sbatchgen submit ddp --profile local -- --dataset own:data --model own:model --epochs 3
    sbatchgen submit ddp --profile mycluster -- --dataset own:data --model own:model --epochs 20

docs/how-to/own-data.md says what each function gets and must give, and what is guaranteed for it.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

CLASSES = ("disc", "square")
SIDE = 32  # pixels

Images = tuple[torch.Tensor, torch.Tensor]


def data(config: Any) -> tuple[Images, Images]:  # noqa: ARG001 - config.data_dir would say where files are
    """Training and validation as tensors in memory: the simplest way, and the fastest."""
    return draw(2000, seed=0), draw(400, seed=1)


def draw(count: int, *, seed: int) -> Images:
    """Images (count, 1, 32, 32) uint8 and labels (count,) int64 in 0..1. Yours would be read from files."""
    generator = torch.Generator().manual_seed(seed)  # its own: the same images at each start, on each process
    labels_N = torch.randint(len(CLASSES), (count,), generator=generator)
    x0_N11, y0_N11 = (torch.randint(10, 22, (count, 1, 1), generator=generator) for _ in range(2))
    radius_N11 = torch.randint(3, 9, (count, 1, 1), generator=generator)
    across_W, down_H1 = torch.arange(SIDE), torch.arange(SIDE).unsqueeze(1)
    dx_NHW, dy_NHW = (across_W - x0_N11).expand(-1, SIDE, -1), (down_H1 - y0_N11).expand(-1, -1, SIDE)
    disc_NHW = dx_NHW**2 + dy_NHW**2 <= radius_N11**2
    square_NHW = (dx_NHW.abs() <= radius_N11) & (dy_NHW.abs() <= radius_N11)
    ink_NHW = torch.where(labels_N.view(-1, 1, 1) == 0, disc_NHW, square_NHW)
    noise_NHW = torch.randint(100, (count, SIDE, SIDE), generator=generator)
    return (ink_NHW * 155 + noise_NHW).to(torch.uint8).unsqueeze(1), labels_N


class Shapes(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The same, one image at a time, as for files too many to hold; training images are changed at random."""

    classes = CLASSES

    def __init__(self, images: Images, *, changed: bool) -> None:
        self.images_NCHW, self.labels_N = images
        self.changed = changed

    def __len__(self) -> int:
        return len(self.labels_N)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """One image (1, 32, 32) uint8, and its label."""
        x_CHW = self.images_NCHW[index]  # yours would read a file here
        if self.changed:  # both generators were seeded for this sample of this epoch
            if random.random() < 0.5:  # noqa: S311 - pictures, not secrets
                x_CHW = x_CHW.flip(-1)
            x_CHW = (x_CHW + torch.randint(30, x_CHW.shape)).clamp(max=255).to(torch.uint8)
        return x_CHW, int(self.labels_N[index])


def files(config: Any) -> tuple[Shapes, Shapes]:
    """Training and validation as map-style data sets, read by --workers processes for each rank."""
    train, validation = data(config)
    return Shapes(train, changed=True), Shapes(validation, changed=False)


def model(config: Any) -> nn.Module:  # noqa: ARG001 - config has every flag: config.dataset, config.seed, ...
    """A network from images (B, 1, 32, 32) to logits (B, 2)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, len(CLASSES)),
    )
