"""Optimizers, and what goes with them: learning rate, loss scale, running mean of the weights.

The learning rate is a function of the step: a schedule without state cannot be lost.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from training.config import Config
from training.errors import UserError

EMA_WARM_UP = 10  # steps: a mean that begins with random weights has to forget them


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a model which is already on its device; biases and norms (1-D) are a group apart."""
    weights = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in weights if p.ndim > 1], "weight_decay": config.weight_decay},
        {
            "params": [p for p in weights if p.ndim <= 1],
            "weight_decay": config.weight_decay if config.weight_decay_on == "all" else 0.0,
        },
    ]
    if config.optimizer == "sgd":
        return _fused(torch.optim.SGD, groups, lr=config.lr, momentum=config.momentum)
    if config.optimizer == "adamw":
        return _fused(torch.optim.AdamW, groups, lr=config.lr)
    return torch.optim.Adadelta(groups, lr=config.lr)  # which nobody has fused


def _fused(
    kind: Callable[..., torch.optim.Optimizer], groups: list[dict[str, Any]], **how: Any
) -> torch.optim.Optimizer:
    """An optimizer that changes each weight in one go, if this torch has that for the weights' device.

    Which it has, it says itself: for SGD the word `fused` came with torch 2.3, and for CPUs with 2.4.
    """
    try:
        return kind([dict(group) for group in groups], fused=True, **how)  # a refusal leaves its marks there
    except (TypeError, RuntimeError):
        return kind(groups, **how)


def state_bytes(config: Config, model: nn.Module) -> int:
    """About the bytes of a checkpoint: the weights, their running mean, what the optimizer keeps of each."""
    of_each = {"sgd": int(config.momentum > 0), "adamw": 2, "adadelta": 2}[config.optimizer]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    others = sum(b.numel() * b.element_size() for b in model.buffers())
    return weights * (1 + of_each + (config.ema > 0)) + others


def lr_at(config: Config, step: int, *, steps_per_epoch: int) -> float:
    """The learning rate of a step; the first is 0."""
    warmup = config.warmup_epochs * steps_per_epoch
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    if config.schedule == "step":
        return float(config.lr * config.gamma ** (step // steps_per_epoch // config.step_size))
    if config.schedule == "cosine":
        total = config.epochs * steps_per_epoch - warmup
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(total, 1))))
    return config.lr


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """For all weights."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def build_scaler(config: Config, device: torch.device) -> Any:
    """The loss scale of --precision fp16 (a torch.amp.GradScaler), else None.

    Raises:
        UserError: If this torch has none for the device.
    """
    if config.precision != "fp16":
        return None
    made = getattr(torch.amp, "GradScaler", None)  # before torch 2.3 there was one for GPUs alone
    if made is not None:
        return made(device.type)
    if device.type == "cuda":
        return torch.cuda.amp.GradScaler()
    what = f"--precision fp16 on the CPU needs torch 2.3 or later, this is {torch.__version__}"
    raise UserError(what, fix="--precision bf16")


class Ema:
    """A running mean of a model's weights. Running statistics of norms are means already, and not in it."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._names = [name for name, _ in model.named_parameters()]
        self._weights = [weight.detach() for weight in model.parameters()]
        self._means = [weight.clone() for weight in self._weights]

    def update(self, step: int) -> None:
        """Take in the weights after a step; the first is 0."""
        decay = min(self.decay, (1 + step) / (EMA_WARM_UP + step))
        torch._foreach_lerp_(self._means, self._weights, 1 - decay)

    def state(self) -> dict[str, torch.Tensor]:
        """The means by the names of the weights."""
        return dict(zip(self._names, self._means, strict=True))

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from what `state` gave; where there is none, from the weights as they are."""
        for name, mean, weight in zip(self._names, self._means, self._weights, strict=True):
            mean.copy_(state.get(name, weight))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the means as its weights for a while."""
        own = [weight.clone() for weight in self._weights]
        torch._foreach_copy_(self._weights, self._means)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, own)
