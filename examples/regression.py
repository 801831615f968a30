"""Predict a number for each image, with own.py beside this file.

Flags: --dataset regression:data --model regression:model --task regression:task
"""

from __future__ import annotations

from typing import Any

import torch
from own import SIDE, draw
from torch import nn


def data(_config: Any) -> Any:
    """Images, and of each how much of it is bright: float32 (N, 1)."""
    images = [draw(count, seed=seed)[0] for count, seed in ((2000, 0), (400, 1))]
    return [(x_NCHW, (x_NCHW > 150).float().mean(dim=(2, 3))) for x_NCHW in images]


def model(_config: Any) -> nn.Module:
    """A network from images (B, 1, 32, 32) to one number each, (B, 1)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.ReLU(), nn.Linear(32, 1))


def task(_config: Any) -> Any:
    """The loss and the metrics, a value for each image; the first metric decides on best.pt."""

    def loss(output_B1: torch.Tensor, target_B1: torch.Tensor) -> torch.Tensor:
        return (output_B1 - target_B1).square().mean(dim=1)

    def metrics(output_B1: torch.Tensor, target_B1: torch.Tensor) -> dict[str, torch.Tensor]:
        error_B = (output_B1 - target_B1).abs().mean(dim=1)
        return {"within_0.02": error_B < 0.02, "mean_error": error_B}

    return loss, metrics
