"""The session of a run: the objects that the training works with, its progress and its speed."""

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

WORST_SCORE = -1e299  # below any score; a checkpoint with an infinity would be refused
# Seconds between two synchronisations, if no step takes longer. A request to stop waits for the next one.
SYNC_S = 1.0


@dataclass(kw_only=True, slots=True)
class Progress:
    """The progress of a run, which checkpoints hold."""

    step: int = 0
    epoch: int = 0  # trained epochs
    consumed: int = 0  # trained samples of the current epoch
    best: float = WORST_SCORE  # the highest score, which is the first metric of a validation
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # loss, score, samples of this epoch
    checkpoint: str | None = None  # path of the newest checkpoint in the run folder

    def count_epoch(self, samples: int) -> None:
        """Count the current epoch as trained if all its `samples` are trained."""
        if self.consumed == samples:
            self.epoch, self.consumed = self.epoch + 1, 0

    @property
    def unvalidated(self) -> bool:
        """Whether the last epoch is trained but not validated."""
        return not self.consumed and self.sums[2] > 0

    @property
    def done(self) -> int:
        """The number of epochs that are trained and validated."""
        return self.epoch - self.unvalidated

    def note_score(self, score: float) -> bool:
        """Note the score of an epoch's validation; return whether it is the best score so far."""
        is_best, self.sums = score > self.best, [0.0, 0.0, 0.0]
        self.best = max(self.best, score)
        return is_best


@dataclass(kw_only=True, slots=True)
class Meter:
    """The speed of a run, measured at synchronisations, when the GPU has finished its work.

    A window is the time since the last progress line.
    """

    trained_samples: int = 0  # since this start, over all processes
    window_began: float = field(default_factory=time.perf_counter)
    window: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # as Progress.sums, of the window
    window_steps: int = 0
    window_waited: float = 0.0  # usage.data_s at the beginning of the window
    usage: Usage = field(default_factory=Usage)
    pace: Pace = field(default_factory=lambda: Pace([], 0, on_gpu=False))
    profiler: Any = None  # the profiler of --profile-steps, on rank 0
    grad_norm: Any = None  # the norm of the gradients before clipping, in a step of the window
    synced_at: float = field(default_factory=time.perf_counter)  # the time of the last synchronisation
    steps: int = 0  # steps since the last synchronisation
    period: int = 1  # steps between two synchronisations, the same on all processes

    def begin(self) -> None:
        """Begin steps of training or validation. The processes synchronise after the first step."""
        self.synced_at, self.steps, self.period = time.perf_counter(), 0, 1

    def is_sync_due(self, step: int, max_period: int) -> bool:
        """Count a step; return whether the processes synchronise after this step.

        They synchronise at least after every `max_period` steps.
        """
        self.steps += 1
        self.window_steps += 1
        return self.steps >= self.period or step % max_period == 0

    def step_s(self) -> float:
        """Return the mean seconds of the steps since the last synchronisation; 0 without a step."""
        return (time.perf_counter() - self.synced_at) / self.steps if self.steps else 0.0

    def note_sync(self, step_s: float) -> None:
        """Note a synchronisation, and choose the number of steps until the next synchronisation.

        `step_s` is the time of a step on rank 0.
        """
        self.synced_at, self.steps = time.perf_counter(), 0
        if step_s:
            self.period = max(1, int(SYNC_S / step_s))

    def begin_window(self) -> None:
        """Begin a new window."""
        self.window_began, self.window_steps = time.perf_counter(), 0
        self.window, self.window_waited = [0.0, 0.0, 0.0], self.usage.data_s

    def rate(self) -> float:
        """Return the samples per second since the start, including the time of validation and saving."""
        return self.trained_samples / max(time.perf_counter() - self.usage.began, 1e-9)


@dataclass(frozen=True, slots=True)
class Session:
    """The objects that the training loop works with."""

    config: Config
    world: World
    log: Log
    stop: Stop
    data: Data
    task: Task
    model: nn.Module  # the model without a wrapper, to save and to evaluate
    training_model: nn.Module  # the same model for training steps, which may have a wrapper for several GPUs
    updater: Updater
    writer: Writer = field(default_factory=Writer)
    meter: Meter = field(default_factory=Meter)

    @property
    def batch(self) -> int:
        """The images per step of all processes."""
        return global_batch(self.config, self.world.size)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings on which the weights depend, which checkpoints hold."""
        data_facts = {"train_samples": self.data.train.samples, "data_checksum": self.data.checksum}
        return critical_settings(self.config, batch=self.batch) | data_facts

    @property
    def images_at_once(self) -> int:
        """The images that a process trains on at once."""
        return self.batch // self.config.accumulate // self.world.size
