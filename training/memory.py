"""The peak memory of a run's steps on a GPU, computed without a GPU: `python3 .../training/memory.py ARGS`.

ARGS are the arguments of a training, and WORLD_SIZE is the number of its processes. The program prints a line
of JSON.

Two steps run with tensors that have a shape and no contents (torch's FakeTensorMode), and each tensor counts
while it exists. The peak excludes CUDA's context, workspaces of cuDNN, buffers of NCCL, and memory that the
allocator holds and cannot use. Sources: torch/utils/_python_dispatch.py; DistributedDataParallel,
gradient_as_bucket_view; c10/cuda/CUDACachingAllocator.cpp (it gives blocks of 512 bytes).
"""

import contextlib
import dataclasses
import functools
import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

PACKAGE = Path(__file__).resolve().parent
if __name__ == "__main__":  # started as a file: import the package around it, whatever is on the path
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != PACKAGE]
    sys.path.insert(0, str(PACKAGE.parent))

import torch
import torch.utils.checkpoint
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from training.config import Config, parse
from training.data.datasets import Data, load_data
from training.data.splits import InMemory
from training.errors import UserError, complain
from training.model.models import build_model, freeze, train_mode
from training.model.optimizer import Ema, Updater, build_optimizer
from training.model.precision import wants_channels_last
from training.model.tasks import build_task
from training.output.log import Log
from training.processes.stop import Stop
from training.processes.world import World
from training.run.loop import Tally, stand_in, train_step
from training.run.session import Session

BLOCK_BYTES = 512  # the unit of torch's allocator on GPUs
TORCH_ATTENTION = nn.functional.scaled_dot_product_attention
# The device of the fake tensors, because a torch for CPUs computes no gradients of fake tensors on GPUs.
CPU = torch.device("cpu")


class MemoryCounter(TorchDispatchMode):  # type: ignore[no-untyped-call,unused-ignore]
    """A context that counts the bytes of all tensors made within it, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]
        self.now = self.peak = 0  # the bytes of tensors now, and the most so far
        self._counted: set[int] = set()  # the addresses of storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, unless it is counted, until it is freed."""
        address = storage._cdata  # noqa: SLF001 - fake storages have no other address
        if address not in self._counted:  # a view has the storage of another tensor
            size = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
            self._counted.add(address)
            weakref.finalize(storage, self._free, address, size)
            self.now += size
            self.peak = max(self.peak, self.now)

    def _free(self, address: int, size: int) -> None:
        self._counted.discard(address)
        self.now -= size


class BucketedModel(nn.Module):
    """A stand-in for DistributedDataParallel, which moves gradients to buckets.

    DistributedDataParallel itself reads values, and fake tensors have no values.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self._skips_buckets = model, False
        for weight in model.parameters():
            if weight.requires_grad:
                register: Any = weight.register_post_accumulate_grad_hook
                register(functools.partial(self._fill, torch.empty_like(weight)))

    def _fill(self, bucket: torch.Tensor, weight: torch.Tensor) -> None:
        """Move the gradient of a weight to its bucket."""
        if not self._skips_buckets and weight.grad is not None:
            weight.grad = bucket.copy_(weight.grad)

    def no_sync(self) -> contextlib.AbstractContextManager[object]:
        """Keep the gradients out of the buckets within this context."""
        return patch.object(self, "_skips_buckets", new=True)

    def forward(self, x_BCHW: torch.Tensor) -> Any:
        """Call the model."""
        return self.model(x_BCHW)


def peak(config: Config, processes: int, *, fake: bool = True) -> dict[str, Any]:
    """Return the peak bytes of a process's tensors in its steps, with facts about the batch.

    Without `fake`, the tensors have contents. Raises UserError if the configuration cannot run.
    """
    data = load_data(config, CPU)
    model = build_model(config, data)
    freeze(model, config)
    if wants_channels_last(config, "cuda", model):
        config = dataclasses.replace(config, channels_last=True)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]
    mode: Any = FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext()
    # torch 2.2 mistakes tensors without contents for tensors of torch.compile.
    not_compiling = patch.object(torch.utils.checkpoint, "_is_compiling", lambda *_: False, create=True)
    with (
        mode,
        MemoryCounter() as counter,
        not_compiling,
        patch.multiple(nn.functional, **gpu_functions(config)),
    ):
        session = session_of(config, processes, data, model)
        train_mode(session.training_model)
        tally = Tally(session)
        count = session.batch // config.accumulate
        for number in range(2):  # in the second step the optimizer has a state
            batches = iter(lambda: stand_in(session, session.images_at_once), None)
            train_step(session, batches, [count] * config.accumulate, tally, step=number)
    in_memory = [split for split in (data.train, data.validation) if isinstance(split, InMemory)]
    data_bytes = sum(split.images_NCHW.nbytes + split.labels_N.nbytes for split in in_memory)
    if isinstance(data.train, InMemory) and data.train.images_NCHW.dtype == torch.uint8:
        data_bytes += session.images_at_once * data.train.images_NCHW[0].nbytes  # the batch before its norm
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return {
        "peak_bytes": counter.peak + data_bytes,
        "images": session.images_at_once,
        "shape": data.shape_CHW,
        "precision": config.precision,
        # For convolutions of fp32, cuDNN tries kernels in the first steps that need much memory.
        "tries_kernels": convolves and config.precision == "fp32" and not config.deterministic,
    }


def session_of(config: Config, processes: int, data: Data, model: nn.Module) -> Session:
    """Return the session for training steps of rank 0 of `processes`, with new weights."""
    replace_tensors(model)
    optimizer = build_optimizer(config, model)
    for group in optimizer.param_groups:
        group["foreach"] = not group.get("fused")  # the default on GPUs
    world = World(rank=0, size=processes, local_rank=0, device=CPU, backend="", threads=1, host="")
    log = Log(run_dir=Path(config.run_dir), speaks=False, records=False)
    task = dataclasses.replace(build_task(config, data), mix=None)
    trained = BucketedModel(model) if processes > 1 else model
    updater = Updater(optimizer, ema=Ema(model, config.ema) if config.ema else None)
    return Session(config, world, log, Stop(), data, task, model, trained, updater)


def replace_tensors(model: nn.Module) -> None:
    """Replace weights and buffers by new tensors, which FakeTensorMode makes without contents."""
    new_by_id: dict[int, Any] = {}  # by the id of the old tensor, which several modules may share
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            new = nn.Parameter(torch.zeros_like(weight), weight.requires_grad)
            setattr(module, name, new_by_id.setdefault(id(weight), new))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, new_by_id.setdefault(id(buffer), torch.zeros_like(buffer)))


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002 - as in torch
    """Return torch.nn.functional.dropout as GPUs compute it, with a mask of a byte for each value."""
    del inplace
    return torch.native_dropout(x, p, train=True)[0] if training and p else x


def attend(query: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
    """Return the attention in the layout of GPUs: (B, L, heads, D) for float32, else as the query has."""
    # torch's MultiheadAttention copies the float32 result. Source: _scaled_dot_product_efficient_attention
    # and its neighbours in torch/_meta_registrations.py
    result = TORCH_ATTENTION(query, *others, **options)
    is_copied = result.dtype == torch.float32
    return result.transpose(1, 2).contiguous().transpose(1, 2) if is_copied else result


def with_float32_inputs(function: Any) -> Any:
    """Return the function with float32 inputs, as autocast calls it on GPUs but not on CPUs."""

    def called(*inputs: Any, **options: Any) -> Any:
        return function(*tree_map_only(torch.Tensor, torch.Tensor.float, inputs), **options)

    return called


def gpu_functions(config: Config) -> dict[str, Any]:
    """Return substitutes for functions of torch.nn.functional that keep other tensors on GPUs."""
    # Source of the lists: aten/src/ATen/autocast_mode.h
    upcast = ("layer_norm", "group_norm", "softmax") if config.precision != "fp32" else ()
    others = {name: with_float32_inputs(getattr(nn.functional, name)) for name in upcast}
    return {"dropout": dropout, "scaled_dot_product_attention": attend, **others}


def main(argv: list[str]) -> int:
    """Print the peak memory for a command line of the trainer; return the exit status."""
    try:
        config = dataclasses.replace(parse(argv), workers=0, compile=False, init_from="")
        print(json.dumps(peak(config, int(os.environ.get("WORLD_SIZE", "1")))))
    except UserError as error:
        complain(f"error: {error}")
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
