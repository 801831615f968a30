"""The objects that a run works with, and its progress."""

import time
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from training.config import Config, critical_settings, global_batch
from training.data.datasets import Data
from training.model.optimizer import Updater
from training.model.tasks import Task
from training.output.log import Log
from training.processes.stop import Stop
from training.processes.world import World
from training.run.pace import Pace
from training.run.usage import Usage
from training.saving.writer import Writer

WORST = -1e299
SYNC_S = 1.0  # about so long a request to stop waits, or for the end of a step


@dataclass(kw_only=True, slots=True)
class Progress:
    """How far the run is; saved in checkpoints."""

    step: int = 0
    epoch: int = 0  # trained epochs
    consumed: int = 0  # samples of the current epoch
    best: float = WORST  # highest first metric of a validation
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # loss, score, samples of this epoch
    checkpoint: str | None = None  # the newest, as a path in the run folder

    def trained(self, samples: int) -> None:
        """Count the epoch if all its `samples` are trained."""
        if self.consumed == samples:
            self.epoch, self.consumed = self.epoch + 1, 0

    @property
    def unvalidated(self) -> bool:
        """Whether the last epoch is trained, and not yet validated."""
        return not self.consumed and self.sums[2] > 0

    @property
    def done(self) -> int:
        """Epochs that are trained and validated."""
        return self.epoch - self.unvalidated

    def validated(self, score: float) -> bool:
        """Begin the next epoch; whether this is the best score."""
        best, self.sums = score > self.best, [0.0, 0.0, 0.0]
        self.best = max(self.best, score)
        return best


@dataclass(kw_only=True, slots=True)
class Meter:
    """Speed, measured where the processes synchronise: there the GPU has finished its work."""

    trained: int = 0  # samples since this start, over all processes
    window_began: float = field(default_factory=time.perf_counter)  # after the last progress line
    window: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # since then, as Progress.sums
    window_steps: int = 0
    window_waited: float = 0.0  # usage.data_s when it began
    usage: Usage = field(default_factory=Usage)
    pace: Pace = field(default_factory=lambda: Pace([], 0, on_gpu=False))
    profiler: Any = None  # the profiler of --profile-steps, on rank 0
    grad_norm: Any = None  # of a step of the window, before clipping
    synced: float = field(default_factory=time.perf_counter)
    steps: int = 0  # since then
    every: int = 1  # steps between synchronisations, the same on all processes

    def begin(self) -> None:
        """Begin steps of another kind: the first one is measured."""
        self.synced, self.steps, self.every = time.perf_counter(), 0, 1

    def due(self, step: int, period: int) -> bool:
        """Count a step; whether the processes synchronise after it, as they do after every `period` steps."""
        self.steps += 1
        self.window_steps += 1
        return self.steps >= self.every or step % period == 0

    def step_s(self) -> float:
        """Return seconds that a step has taken since they synchronised; 0 if there was none."""
        return (time.perf_counter() - self.synced) / self.steps if self.steps else 0.0

    def synchronised(self, step_s: float) -> None:
        """Note that the processes have synchronised; a step takes `step_s` seconds on rank 0."""
        self.synced, self.steps = time.perf_counter(), 0
        if step_s:
            self.every = max(1, int(SYNC_S / step_s))

    def restart(self) -> None:
        """Start a new window."""
        self.window_began, self.window_steps = time.perf_counter(), 0
        self.window, self.window_waited = [0.0, 0.0, 0.0], self.usage.data_s

    def rate(self) -> float:
        """Return samples per second since the beginning, validation and saving included."""
        return self.trained / max(time.perf_counter() - self.usage.began, 1e-9)


@dataclass(frozen=True, slots=True)
class Session:
    """The objects that the loop works with."""

    config: Config
    world: World
    log: Log
    stop: Stop
    data: Data
    task: Task
    model: nn.Module  # without a wrapper: it is saved, and evaluated
    trained: nn.Module  # the same for training steps, perhaps wrapped for several GPUs
    updater: Updater
    writer: Writer = field(default_factory=Writer)
    meter: Meter = field(default_factory=Meter)

    @property
    def batch(self) -> int:
        """Images per step over all processes."""
        return global_batch(self.config, self.world.size)

    @property
    def settings(self) -> dict[str, Any]:
        """What the weights depend on, saved in checkpoints."""
        of_data = {"train_samples": self.data.train.samples, "data_checksum": self.data.checksum}
        return critical_settings(self.config, batch=self.batch) | of_data

    @property
    def images_at_once(self) -> int:
        """The most images that a process trains on at once."""
        return self.batch // self.config.accumulate // self.world.size
