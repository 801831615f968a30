"""Activation checkpointing: the backward pass computes stages again, whose values are not kept.

This needs less memory, and the results are the same to the bit.
"""

import contextlib
import functools
import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from training.errors import UserError

# Methods of models of timm and of Transformers.
OWN_METHODS = ("set_grad_checkpointing", "gradient_checkpointing_enable")


def checkpoint_activations(model: nn.Module) -> nn.Module:
    """Return the model with checkpointing, by its own method, or else of its outermost nn.Sequentials.

    Raises UserError if the model has no such method and no nn.Sequential.
    """
    method = next((getattr(model, name) for name in OWN_METHODS if hasattr(model, name)), None)
    if method is not None:
        method()
        return model
    replaced = _replace_sequentials(model)
    if not any(isinstance(module, Stages) for module in replaced.modules()):
        methods = " or ".join(f"{name}()" for name in OWN_METHODS)
        fix = f"leave it out, or give the model nn.Sequential stages, or {methods}"
        what = f"--activation-checkpointing: {type(model).__name__} has no stages to recompute"
        raise UserError(what, fix=fix)
    return replaced


def _replace_sequentials(module: nn.Module) -> nn.Module:
    """Return the module, with each outermost nn.Sequential replaced by Stages."""
    if type(module).forward is nn.Sequential.forward:
        return Stages(OrderedDict(module.named_children())) if list(module.parameters()) else module
    for name, child in module.named_children():
        setattr(module, name, _replace_sequentials(child))
    return module


class Stages(nn.Sequential):
    """An nn.Sequential that keeps only the input of each sqrt(n)-th of its n modules: the least memory."""

    # Chen et al., Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174

    def forward(self, x: Any) -> Any:
        """Call the modules one after the other."""
        if not torch.is_grad_enabled():
            return super().forward(x)  # type: ignore[no-untyped-call,unused-ignore]
        modules = list(self)
        pieces = math.isqrt(len(modules) - 1) + 1
        size = -(-len(modules) // pieces)  # modules of a piece, rounded up
        for first in range(0, len(modules), size):
            piece = nn.Sequential(*modules[first : first + size])
            x = checkpoint(piece, x, use_reentrant=False, context_fn=functools.partial(_contexts, piece))
        return x


def _contexts(piece: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its recomputation, which changes no statistics."""
    return contextlib.nullcontext(), keep_buffers(piece)


@contextlib.contextmanager
def keep_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the module's buffers (running statistics of norms) at the end."""
    buffers = list(module.buffers())
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.data.copy_(value)  # .data, because autograd does not need the old value
