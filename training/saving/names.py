"""The names of checkpoints. Needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINTS = "checkpoints"  # the folder, in the run folder
BEST = "best.pt"
STEP_NAME = re.compile(r"step-(\d{8,})\.pt")
EPOCH_NAME = "checkpoint_epoch_{}.pt"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints by step, newest first. No other record says which there are."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := STEP_NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]
