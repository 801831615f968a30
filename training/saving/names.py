"""The names of checkpoints. Needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINTS = "checkpoints"  # the folder, in the run folder
BEST = "best.pt"
STEP_NAME = re.compile(r"step-([0-9]{8,15})\.pt")
EPOCH_NAME = "checkpoint_epoch_{}.pt"


def name_of(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step-{step:08}.pt"


def step_of(path: Path) -> int | None:
    """The step in the name of a checkpoint; None if it has another name."""
    match = STEP_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints by step, newest first. No other record says which there are."""
    if not folder.is_dir():
        return []
    steps = [(step, path) for path in folder.iterdir() if (step := step_of(path)) is not None]
    return [path for _, path in sorted(steps, reverse=True)]
