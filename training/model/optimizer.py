"""Optimizers, learning rates as functions of the position, and the running mean of the weights (EMA)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from training.config import Config
from training.model.models import head_of

EMA_WARM_UP = 10  # about so many steps, until the mean has forgotten the random initial weights
# The names of the values that each optimizer holds for a weight.
STATE_NAMES: dict[type[Optimizer], set[str]] = {
    torch.optim.SGD: {"momentum_buffer"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.Adadelta: {"step", "square_avg", "acc_delta"},
}


def build_optimizer(config: Config, model: nn.Module) -> Optimizer:
    """Return the optimizer of a model on its device.

    The weights are in one group, or in two if the head has a learning rate of its own. Each group is split
    into matrices, and biases and norms (1-D), which may have no weight decay.
    """
    head = head_of(model) if config.head_lr else ()
    is_same_decay = config.weight_decay_on == "all" or not config.weight_decay
    groups = []
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for is_head in (False, True) if head else (False,):
        weights = [weight for name, weight in trained.items() if (name in head) == is_head]
        matrices = [weight for weight in weights if weight.ndim > 1]
        others = [weight for weight in weights if weight.ndim <= 1]
        if is_same_decay:  # all weights in the first group, for fewer kernels
            matrices, others = matrices + others, []
        scale = {"lr_scale": config.head_lr / config.lr} if is_head else {}
        for params, decay in ((matrices, config.weight_decay), (others, config.weight_decay * is_same_decay)):
            groups.append({"params": params, "weight_decay": decay, **scale})
    if config.optimizer == "sgd":
        return _with_momentum(_fused(torch.optim.SGD, groups, lr=config.lr, momentum=config.momentum))
    if config.optimizer == "adamw":
        return _fused(torch.optim.AdamW, groups, lr=config.lr)
    return torch.optim.Adadelta(groups, lr=config.lr)  # has no fused version


def _fused(kind: Callable[..., Optimizer], groups: list[dict[str, Any]], **options: Any) -> Optimizer:
    """Return a fused optimizer, or an ordinary optimizer if torch has no fused kernels for the device.

    SGD has fused kernels since torch 2.3, and on CPUs since torch 2.4.
    """
    try:
        return kind([dict(group) for group in groups], fused=True, **options)  # copies, which it may change
    except (TypeError, RuntimeError):
        return kind(groups, **options)


def _with_momentum(sgd: Optimizer) -> Optimizer:
    """Add zero momentum where SGD has no momentum yet; return the optimizer.

    A fused optimizer would allocate the momentum uninitialised in its first step.
    """
    # The momentum would stay uninitialised if the first step overflows under a loss scale
    # (docs/design/training.md).
    for group in sgd.param_groups:
        if not group.get("momentum"):
            continue
        for weight in group["params"]:
            sgd.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
    return sgd


def load_state(optimizer: Optimizer, stored: dict[str, Any]) -> None:
    """Load a state_dict. If it does not fit the weights, raise an error of any type, and change nothing."""
    lr = float(stored["param_groups"][0]["lr"])
    groups = optimizer.state_dict()["param_groups"]  # other settings, such as fused, stay
    numbers = [number for group in stored["param_groups"] for number in group["params"]]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state = {}
    for index, (number, weight) in enumerate(zip(numbers, weights, strict=True)):
        parts = {name: value for name, value in stored["state"].get(number, {}).items() if value is not None}
        if isinstance(parts.get("step"), int):  # Adadelta of torch 2.2
            parts["step"] = torch.tensor(float(parts["step"]))
        are_plain = all(
            value.layout is torch.strided and value.device.type == "cpu" for value in parts.values()
        )
        shapes = {name: value.shape for name, value in parts.items() if value.is_floating_point()}
        expected = {name: () if name == "step" else weight.shape for name in STATE_NAMES[type(optimizer)]}
        if parts and not (are_plain and shapes == expected and parts.get("step", 0) >= 0):
            raise ValueError(f"the optimizer's state of weight {number} has other parts or shapes")
        if parts:  # in the memory format of the weight: fused kernels don't look at strides
            copies = {name: torch.empty_like(weight, device="cpu") for name in parts if name != "step"}
            state[index] = parts | {name: copy.copy_(parts[name]) for name, copy in copies.items()}
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    set_lr(optimizer, lr)
    _with_momentum(optimizer)


@dataclass(frozen=True, slots=True)
class Updater:
    """The objects that update the weights: the optimizer, the loss scale of fp16, and the means of --ema."""

    optimizer: Optimizer
    scaler: Any = None
    ema: Ema | None = None

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
            "ema": self.ema.means if self.ema else {},
        }

    def load(self, state: dict[str, Any], *, optimizer: bool) -> None:
        """Load a state that `state` returned, with `optimizer` also the optimizer's part.

        Raises an error of any type if the state does not fit.
        """
        if self.ema:
            self.ema.load(state.get("ema") or {})
        if self.scaler and state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])
        if optimizer:
            load_state(self.optimizer, state["optimizer"])

    def evaluated_weights(self) -> contextlib.AbstractContextManager[None]:
        """Give the model, within this context, the weights to evaluate and export: the means, if any."""
        return self.ema.in_place() if self.ema else contextlib.nullcontext()


def state_bytes(config: Config, model: nn.Module) -> int:
    """Return the approximate bytes of a checkpoint: the weights, their means and the optimizer's state."""
    values_per_weight = {"sgd": int(config.momentum > 0), "adamw": 2, "adadelta": 2}[config.optimizer]
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    others = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    return weights * (1 + values_per_weight + (config.ema > 0)) + others


def lr_at(config: Config, epoch: int, steps: float, *, steps_per_epoch: int) -> float:
    """Return the learning rate after `epoch` epochs and `steps` steps of the current batch size."""
    warmup = config.warmup_epochs * steps_per_epoch
    step = epoch * steps_per_epoch + steps
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    if config.schedule == "step":
        return float(config.lr * config.gamma ** (epoch // config.step_size))
    if config.schedule == "cosine":
        total = config.epochs * steps_per_epoch - warmup
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(total, 1))))
    return config.lr


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of all weights; the head's changes in proportion."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1)


class Ema:
    """A running mean of a model's weights and of its norms' statistics."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        saved_names = model.state_dict().keys()
        tensors = (*model.named_parameters(), *model.named_buffers())
        kept = {
            name: part.detach() for name, part in tensors if name in saved_names and part.is_floating_point()
        }
        self._weights = list(kept.values())
        self.means = {name: weight.clone() for name, weight in kept.items()}

    def update(self, step: int) -> None:
        """Add the weights after step number `step`, counted from 0, to the means."""
        decay = min(self.decay, (1 + step) / (EMA_WARM_UP + step))
        torch._foreach_lerp_([*self.means.values()], self._weights, 1 - decay)

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the means; a weight without a saved mean begins with its current value.

        Raises ValueError if a mean has another shape than its weight.
        """
        for (name, mean), weight in zip(self.means.items(), self._weights, strict=True):
            new = state.get(name, weight)
            if new.shape != weight.shape:
                raise ValueError(f"the mean of {name} has another shape")
            mean.copy_(new)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the means as its weights within this context."""
        before = [weight.clone() for weight in self._weights]
        torch._foreach_copy_(self._weights, [*self.means.values()])
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, before)
