"""Optimizers, and the learning rate as a function of the step: a schedule without state cannot be lost."""

from __future__ import annotations

import math

import torch
from torch import nn

from .config import Config


def build(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a model which is already on its device. Biases and norms (1-D) are not decayed."""
    weights = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in weights if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr)
    return torch.optim.Adadelta(groups, lr=config.lr)


def lr_at(config: Config, step: int, *, steps_per_epoch: int) -> float:
    """The learning rate of a step; the first is 0."""
    warmup = config.warmup_epochs * steps_per_epoch
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    if config.schedule == "step":
        return float(config.lr * config.gamma ** (step // steps_per_epoch))
    if config.schedule == "cosine":
        total = config.epochs * steps_per_epoch - warmup
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(total, 1))))
    return config.lr


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """For all weights."""
    for group in optimizer.param_groups:
        group["lr"] = lr
