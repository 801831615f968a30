"""Curves for TensorBoard, if it is installed: numbers of the events, by torch's SummaryWriter."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

from training.files import own_folder

FOLDER = "tensorboard"
FLUSH_S = 10  # a killed run loses the points of so long a time
PARTS = {"train": "train", "epoch": "validation"}  # of these events; the ending of a tag
NO_CURVES = {"epoch", "step", "samples", "train_loss"}
ALIKE = {
    "lr",
    "samples_per_s",
    "grad_norm",
    "step_s",
    "data_wait",
    "gpu_allocated_bytes",
}  # of training alone


class Curves:
    """Writes one event file. TensorBoard is imported by `begin`; a broken one may raise any exception."""

    def __init__(self) -> None:
        self._writer: Any = None

    def begin(self, run_dir: Path, step: int) -> None:
        """Start at `step`: what earlier starts have of later steps is hidden."""
        if importlib.util.find_spec("tensorboard") is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
        own_folder(run_dir, FOLDER)
        folder = str(run_dir / FOLDER)
        self._writer = SummaryWriter(folder, purge_step=step + 1, flush_secs=FLUSH_S)  # type: ignore[no-untyped-call,unused-ignore]

    def add(self, kind: str, facts: dict[str, Any]) -> None:
        """Add the numbers of an event, if it has curves."""
        if self._writer is None or kind not in PARTS:
            return
        for name in facts.keys() - NO_CURVES:
            if name not in ALIKE:
                self._writer.add_scalar(f"{name}/{PARTS[kind]}", facts[name], facts["step"])
            elif kind == "train":
                self._writer.add_scalar(name, facts[name], facts["step"])

    def end(self) -> None:
        """Write what is left."""
        writer = self._writer
        self.stop()
        if writer is not None:
            writer.close()

    def stop(self) -> None:
        """Add nothing more."""
        self._writer = None
