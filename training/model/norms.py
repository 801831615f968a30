"""Batch norms, whose running statistics play no part in a training step."""

from __future__ import annotations

import itertools

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def only_norms_have_buffers(model: nn.Module) -> bool:
    """Whether DistributedDataParallel may leave the buffers alone (broadcast_buffers=False).

    It copies those of rank 0 before each step. Rank 0's running statistics, which are saved and evaluated, do
    not depend on the others'.
    """
    norms = (module.buffers() for module in model.modules() if isinstance(module, _BatchNorm))
    of_norms = {id(buffer) for buffer in itertools.chain.from_iterable(norms)}
    return all(id(buffer) in of_norms for buffer in model.buffers())
