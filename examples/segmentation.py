"""Find a class for each pixel, with own.py beside this file.

Flags: --dataset segmentation:data --model segmentation:model --task segmentation:task
"""

from __future__ import annotations

from typing import Any

import torch
from own import draw
from torch import nn
from torch.nn import functional


def data(_config: Any) -> Any:
    """Images, and of each a mask of the figure in it: int64 (N, 32, 32) in 0..1."""
    images = [draw(count, seed=seed)[0] for count, seed in ((2000, 0), (400, 1))]
    return [(x_NCHW, (x_NCHW[:, 0] > 127).long()) for x_NCHW in images]


def model(_config: Any) -> nn.Module:
    """A network from images (B, 1, 32, 32) to logits of two classes for each pixel, (B, 2, 32, 32)."""
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 2, 5, padding=2))


def task(_config: Any) -> Any:
    """The loss and the metrics, a value for each image; the first metric decides on best.pt."""

    def loss(logits_BKHW: torch.Tensor, mask_BHW: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits_BKHW, mask_BHW, reduction="none").mean(dim=(1, 2))

    def metrics(logits_BKHW: torch.Tensor, mask_BHW: torch.Tensor) -> dict[str, torch.Tensor]:
        found_BHW, figure_BHW = logits_BKHW.argmax(dim=1) == 1, mask_BHW == 1
        both_B, any_B = (x.sum(dim=(1, 2)) for x in (found_BHW & figure_BHW, found_BHW | figure_BHW))
        return {
            "iou": both_B / any_B.clamp(min=1),
            "pixels": (found_BHW == figure_BHW).float().mean(dim=(1, 2)),
        }

    return loss, metrics
