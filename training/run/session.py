"""The objects that a run works with, and its progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from training.config import Config
from training.data.datasets import Data
from training.errors import UserError
from training.model.optimizer import Ema
from training.output.log import Log
from training.processes.stop import Stop
from training.processes.world import World
from training.run.usage import Usage
from training.saving.lock import RunLock
from training.saving.writer import Copies, Writer


@dataclass(kw_only=True, slots=True)
class Progress:
    """How far the run is; saved in checkpoints."""

    step: int = 0
    epoch: int = 0  # completed epochs
    consumed: int = 0  # samples of the current epoch
    best: float = -1.0  # highest validation accuracy, 0..1
    # of the current epoch: loss, correct, samples
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    checkpoint: str | None = None  # the newest, as a path in the run folder


@dataclass(kw_only=True, slots=True)
class Meter:
    """Speed, measured where the processes synchronise: there the GPU has finished its work."""

    began: float = field(default_factory=time.perf_counter)
    trained: int = 0  # samples since then, over all processes
    window_began: float = field(default_factory=time.perf_counter)
    # since the last progress line, as Progress.sums
    window: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def restart(self) -> None:
        """Start a new window."""
        self.window_began = time.perf_counter()
        self.window = [0.0, 0.0, 0.0]

    def window_rate(self) -> float:
        """Samples per second in this window."""
        return self.window[2] / max(time.perf_counter() - self.window_began, 1e-9)

    def rate(self) -> float:
        """Samples per second since the beginning, validation and saving included."""
        return self.trained / max(time.perf_counter() - self.began, 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """The objects that the loop works with.

    Args:
        batch: Images per step over all processes.
        model: The model without a wrapper: it is saved, and evaluated.
        trained: The same model for training steps, perhaps wrapped for several GPUs.
        settings: What the weights depend on (config.critical_settings), saved in checkpoints.
        scaler: The GradScaler of --precision fp16.
        ema: The running mean of --ema.
        problems: Errors in reading images, to be reported when the processes next synchronise.
    """

    config: Config
    world: World
    log: Log
    stop: Stop
    lock: RunLock
    data: Data
    batch: int
    model: nn.Module
    trained: nn.Module
    optimizer: torch.optim.Optimizer
    settings: dict[str, int | float | str]
    scaler: Any = None
    ema: Ema | None = None
    meter: Meter = field(default_factory=Meter)
    usage: Usage = field(default_factory=Usage)
    writer: Writer = field(default_factory=Writer)
    copies: Copies = field(default_factory=Copies)
    problems: list[UserError] = field(default_factory=list)
