"""--precision and --deterministic: autocast, the loss scale of fp16, and the kernels that torch may use."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.config import Config
from training.errors import UserError

CPUINFO = Path("/proc/cpuinfo")
# Features in /proc/cpuinfo of CPUs that compute in bfloat16 (the last one of Arm). Without them torch
# converts each bfloat16 to float32 and back.
BF16_FEATURES = ("amx_bf16", "avx512_bf16", "bf16")


def autocast(config: Config, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context of --precision for the model's forward pass."""
    if config.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, {"bf16": torch.bfloat16, "fp16": torch.float16}[config.precision])


class Autocast(nn.Module):
    """A model with autocast inside, because threads of nn.DataParallel would use fp16 for bf16."""

    def __init__(self, model: nn.Module, config: Config, device: torch.device) -> None:
        super().__init__()
        self.model, self._config, self._device = model, config, device

    def forward(self, x_BCHW: torch.Tensor) -> Any:
        """Call the model."""
        with autocast(self._config, self._device):
            return self.model(x_BCHW)


def choose_kernels(config: Config, device: torch.device) -> None:
    """Let torch choose the fastest kernels, or with --deterministic only kernels that repeat each bit."""
    if config.deterministic:
        torch.use_deterministic_algorithms(True)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined,unused-ignore]
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 rounds factors to 10 bits, always in the same way
        torch.backends.cudnn.benchmark = not config.deterministic


def wants_channels_last(config: Config, device: str, model: nn.Module) -> bool:
    """Return whether the model gets the memory format channels_last; users' models need the flag."""
    if config.channels_last or config.no_channels_last or ":" in config.model:
        return config.channels_last
    # channels_last doubles the rate of bf16 convolutions on an H200, and is faster on CPUs (convnet, ResNets)
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return device == "cpu" or (config.precision != "fp32" and convolves)


def build_scaler(config: Config, device: torch.device) -> Any:
    """Return the loss scale for --precision fp16, or None for another precision.

    Raises UserError if this torch has no loss scale for the device.
    """
    if config.precision != "fp16":
        return None
    if hasattr(torch.amp, "GradScaler"):  # before torch 2.3 only for GPUs
        return torch.amp.GradScaler(device.type)
    if device.type == "cuda":
        return torch.cuda.amp.GradScaler()
    what = f"--precision fp16 on the CPU needs torch 2.3 or later, this is {torch.__version__}"
    raise UserError(what, fix="--precision bf16")


def warn_of_bf16() -> str | None:
    """Return a warning if the CPU lacks bf16; None if it has bf16, or if its features are unknown."""
    with contextlib.suppress(OSError):
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
        if flags and not set(BF16_FEATURES) & set(flags[1].split()):
            lacks = f"this processor has neither {BF16_FEATURES[0]} nor {BF16_FEATURES[1]}"
            return f"Warning: {lacks}: --precision bf16 is slower than fp32 on it"
    return None
