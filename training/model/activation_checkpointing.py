"""Activation checkpointing: what the backward pass needs of a stage is computed again instead of being kept.

The result is that of keeping it, to the bit: random choices are repeated (torch.utils.checkpoint does that),
and running statistics, which a second pass would move once more, stay what the first made them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from training.errors import UserError

OWN = ("set_grad_checkpointing", "gradient_checkpointing_enable")  # of timm's and of Transformers' models


def recomputed(model: nn.Module) -> nn.Module:
    """The model, with the same names of weights, set to recompute.

    A model with a method for this (OWN) is asked to do it as it does. Of any other, each outermost
    nn.Sequential does: the stages of ResNets and most other models.

    Raises:
        UserError: If it has neither.
    """
    method = next((getattr(model, name) for name in OWN if hasattr(model, name)), None)
    if method is not None:
        method()
        return model
    made = _replaced(model)
    if not any(isinstance(module, Stages) for module in made.modules()):
        methods = " or ".join(f"{name}()" for name in OWN)
        raise UserError(
            f"--activation-checkpointing: {type(model).__name__} has no stages to recompute",
            fix=f"leave it out, or give the model nn.Sequential stages, or {methods}",
        )
    return made


def _replaced(module: nn.Module) -> nn.Module:
    """The module with each outermost nn.Sequential in it, or itself, replaced."""
    if type(module).forward is nn.Sequential.forward:
        return Stages(OrderedDict(module.named_children())) if list(module.parameters()) else module
    for name, child in module.named_children():
        setattr(module, name, _replaced(child))
    return module


class Stages(nn.Sequential):
    """Modules one after the other, of which only the input of about every sqrt(n)-th is kept.

    With n modules alike that needs the least memory of all ways which compute each but once more: Chen et
    al., Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174.
    """

    def forward(self, x: Any) -> Any:
        """What nn.Sequential does."""
        if not torch.is_grad_enabled():
            return _run(list(self), x)
        modules = list(self)
        pieces = math.isqrt(len(modules) - 1) + 1
        size = -(-len(modules) // pieces)
        for first in range(0, len(modules), size):
            piece = modules[first : first + size]
            again = functools.partial(_passes, piece)
            x = checkpoint(_run, piece, x, use_reentrant=False, context_fn=again)
        return x


def _run(modules: list[nn.Module], x: Any) -> Any:
    for module in modules:
        x = module(x)
    return x


def _passes(modules: list[nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What the first and the second pass through the modules run in."""
    return contextlib.nullcontext(), kept_buffers(*modules)


@contextlib.contextmanager
def kept_buffers(*modules: nn.Module) -> Iterator[None]:
    """Whatever happens meanwhile, the buffers (running statistics of norms) are then as they were."""
    buffers = list(itertools.chain.from_iterable(module.buffers() for module in modules))
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.data.copy_(value)  # .data: autograd has seen the buffer, but its value plays no part there
