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
from training.model.tasks import Task
from training.output.log import Log
from training.processes.stop import Stop
from training.processes.world import World
from training.run.usage import Usage
from training.saving.lock import RunLock
from training.saving.writer import Copies, Writer

WORST = -1e299
SYNC_S = 1.0  # about so long a request to stop waits, or for the end of a step


@dataclass(kw_only=True, slots=True)
class Progress:
    """How far the run is; saved in checkpoints."""

    step: int = 0
    epoch: int = 0  # completed epochs
    consumed: int = 0  # samples of the current epoch
    best: float = WORST  # highest first metric of a validation
    # of the current epoch: loss, score, samples
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    checkpoint: str | None = None  # the newest, as a path in the run folder


@dataclass(kw_only=True, slots=True)
class Meter:
    """Speed, measured where the processes synchronise: there the GPU has finished its work.

    They synchronise about every SYNC_S seconds, or after each step if it takes longer.
    """

    began: float = field(default_factory=time.perf_counter)
    trained: int = 0  # samples since then, over all processes
    window_began: float = field(default_factory=time.perf_counter)
    # since the last progress line, as Progress.sums
    window: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    window_steps: int = 0
    window_waited: float = 0.0  # usage.data_s when it began
    grad_norm: Any = None  # of a step of the window, before clipping
    synced: float = field(default_factory=time.perf_counter)
    steps: int = 0  # since then
    every: int = 1  # steps between synchronisations, the same on all processes

    def begin(self) -> None:
        """Begin steps of another kind: the first one is measured."""
        self.synced, self.steps, self.every = time.perf_counter(), 0, 1

    def due(self, step: int, most: int) -> bool:
        """Count a step; whether the processes synchronise after it, as they do after every `most` steps."""
        self.steps += 1
        self.window_steps += 1
        return self.steps >= self.every or step % most == 0

    def step_s(self) -> float:
        """Seconds that a step has taken since they synchronised; 0 if there was none."""
        return (time.perf_counter() - self.synced) / self.steps if self.steps else 0.0

    def synchronised(self, step_s: float) -> None:
        """Note that the processes have synchronised; a step takes `step_s` seconds on rank 0."""
        self.synced, self.steps = time.perf_counter(), 0
        if step_s:
            self.every = max(1, int(SYNC_S / step_s))

    def restart(self, waited: float) -> None:
        """Start a new window; `waited` seconds were spent waiting for data until now."""
        self.window_began, self.window_steps, self.window_waited = time.perf_counter(), 0, waited
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
        metrics: Their names, of the task.
        scaler: The GradScaler of --precision fp16.
        profiler: That of --profile-steps, on rank 0.
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
    task: Task
    settings: dict[str, int | float | str]
    metrics: tuple[str, ...] = ("accuracy",)
    scaler: Any = None
    profiler: Any = None
    ema: Ema | None = None
    meter: Meter = field(default_factory=Meter)
    usage: Usage = field(default_factory=Usage)
    writer: Writer = field(default_factory=Writer)
    copies: Copies = field(default_factory=Copies)
    problems: list[UserError] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """The name of the first metric."""
        return self.metrics[0]
