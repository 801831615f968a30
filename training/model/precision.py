"""--precision and --deterministic: autocast, the loss scale of fp16, and which kernels torch may use."""

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
# Without one of these torch's kernels convert each bfloat16 to float32 and back; the last is Arm's name.
BF16 = ("amx_bf16", "avx512_bf16", "bf16")


def autocast(config: Config, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which the model computes."""
    if config.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, {"bf16": torch.bfloat16, "fp16": torch.float16}[config.precision])


class Autocast(nn.Module):
    """A model that computes in autocast: nn.DataParallel's threads would take fp16 for bf16."""

    def __init__(self, model: nn.Module, config: Config, device: torch.device) -> None:
        super().__init__()
        self.model, self._config, self._device = model, config, device

    def forward(self, x_BCHW: torch.Tensor) -> Any:
        """Call the model."""
        with autocast(self._config, self._device):
            return self.model(x_BCHW)


def choose_kernels(config: Config, device: torch.device) -> None:
    """Let torch use the fastest kernels for the GPU, or with --deterministic kernels that repeat each bit."""
    if config.deterministic:
        torch.use_deterministic_algorithms(True)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined,unused-ignore]
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: rounds factors to 10 bits, each time the same
        torch.backends.cudnn.benchmark = not config.deterministic


def wants_channels_last(config: Config, device: str, model: nn.Module) -> bool:
    """Return whether a model gets this memory format; a user's model may need the other one."""
    if config.channels_last or config.no_channels_last or ":" in config.model:
        return config.channels_last
    # doubles the rate of bf16 convolutions on an H200; on CPUs steps of convnet and ResNets are faster
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return device == "cpu" or (config.precision != "fp32" and convolves)


def build_scaler(config: Config, device: torch.device) -> Any:
    """Return the loss scale of --precision fp16, else None.

    UserError if this torch has none for the device.
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
    """Return a warning if this CPU, as Linux describes it, cannot compute in bf16.

    None if it can, or is unknown.
    """
    with contextlib.suppress(OSError):
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
        if flags and not set(BF16) & set(flags[1].split()):
            without = f"this processor has neither {BF16[0]} nor {BF16[1]}"
            return f"Warning: {without}: --precision bf16 is slower than fp32 on it"
    return None
