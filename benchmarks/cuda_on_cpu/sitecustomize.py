"""Loaded by Python as it starts in a process of programs.py: CPUs in the place of GPUs, and one pause.

With CUDA_ON_CPU=2 a program sees two GPUs, whose tensors are on the CPU, and NCCL is gloo. That proves how
the program starts and resumes, not that it trains on GPUs. With PAUSE=PATTERN the first start of a job pauses
after a step of the optimizer once there is a checkpoint: no machine is too fast to interrupt it.
"""

from __future__ import annotations

import atexit
import glob
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any

NOTHING = ("set_device", "synchronize", "empty_cache", "manual_seed_all", "reset_peak_memory_stats")
ZERO = ("current_device", "max_memory_allocated", "memory_allocated", "memory_reserved")


def pause_once_saved(pattern: str) -> None:
    """Pause in the step after a checkpoint, until Slurm ends the job."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def pause(*_: Any) -> None:
        while glob.glob(pattern):  # noqa: PTH207 - an absolute pattern
            time.sleep(1)

    register_optimizer_step_post_hook(pause)


def on_cpu(value: Any) -> Any:
    """Return the CPU for a GPU, and anything else as it is."""
    import torch

    is_gpu = isinstance(value, torch.device) and value.type == "cuda"
    return "cpu" if is_gpu or (isinstance(value, str) and value.startswith(("cuda", "cpu:"))) else value


def end_slowly() -> None:
    """Give gloo's thread time to drop its last tensors: it aborts or hangs if Python ends just then."""
    from torch import distributed

    destroy = distributed.destroy_process_group

    def slowly(*words: Any, **more: Any) -> None:
        time.sleep(0.5)
        destroy(*words, **more)

    distributed.destroy_process_group = slowly
    atexit.register(time.sleep, 0.5)


def put_cuda_on_cpu(gpus: int) -> None:
    """Let torch say that it has GPUs, and use the CPU where a program names one."""
    import torch
    from torch import distributed
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name in ("cuda", "pin_memory"):
                return args[0]
            if name == "to" and len(args) > 1 and type(args[1]) is int:
                args = (args[0], "cpu", *args[2:])
            return func(*map(on_cpu, args), **{key: on_cpu(value) for key, value in (kwargs or {}).items()})

    mode: Any = OnCpu()
    mode.__enter__()
    parallel: Any = torch.nn.parallel.DistributedDataParallel
    c10d: Any = distributed.distributed_c10d
    meet = c10d.init_process_group

    def by_gloo(*words: Any, **more: Any) -> Any:
        return meet("gloo", *words[1:], **{key: more[key] for key in {*more} - {"backend", "device_id"}})

    distributed.init_process_group = c10d.init_process_group = by_gloo
    distributed.barrier = changed(distributed.barrier, device_ids=lambda _: None)
    torch.load = changed(torch.load, map_location=on_cpu)
    parallel.__init__ = changed(parallel.__init__, device_ids=lambda _: None, output_device=lambda _: None)
    loader: Any = torch.utils.data.DataLoader
    loader.__init__ = changed(loader.__init__, pin_memory=lambda _: False)
    answers: dict[str, Any] = {"is_available": True, "device_count": gpus, "is_bf16_supported": True}
    answers["get_device_name"] = "CPU in place of a GPU"
    answers |= dict.fromkeys(NOTHING) | dict.fromkeys(ZERO, 0)
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_words, answer=answer, **_more: answer)
    torch.accelerator.is_available = torch.cuda.is_available
    torch.accelerator.device_count = torch.cuda.device_count
    torch.accelerator.set_device_index = torch.cuda.set_device
    # torch itself asks with check_available
    torch.accelerator.current_accelerator = lambda check_available=False: (
        None if check_available else torch.device("cuda")
    )


def changed(function: Callable[..., Any], **changes: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the function with some of its named arguments changed."""

    def call(*words: Any, **more: Any) -> Any:
        return function(*words, **{key: changes.get(key, same)(value) for key, value in more.items()})

    def same(value: Any) -> Any:
        return value

    return call


def do_without_network() -> None:
    """Let timm make models without weights, and torch find no models of others."""
    import torch

    timm: Any = import_module("timm")
    timm.create_model = changed(timm.create_model, pretrained=lambda _: False)
    torch.hub.list = lambda *_words, **_more: []


if not any(word.endswith(("training/task.py", "training/torchrun.py")) for word in sys.orig_argv):
    vision = run_path(str(Path(__file__).resolve().parents[2] / "tests/training/vision.py"))
    vision["fit"]()
    if gpus := os.environ.get("CUDA_ON_CPU"):
        put_cuda_on_cpu(int(gpus))
    if os.environ.get("WITHOUT_NETWORK"):
        do_without_network()
    end_slowly()
    if (saved := os.environ.get("PAUSE")) and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        pause_once_saved(saved)
