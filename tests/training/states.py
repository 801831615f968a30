"""States of checkpoints: made, saved, found and compared."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from .quickly import sitecustomize  # noqa: F401 - before torch, which other folders load by this module

# isort: split
import torch

from training.saving import checkpoint

from .trainers import status


def everything(run_dir: Path) -> dict[str, Any]:
    """All that the newest checkpoint has."""
    state: dict[str, Any] = torch.load(run_dir / status(run_dir)["checkpoint"], weights_only=True)
    return state


def equal(first: Any, other: Any) -> bool:
    """To the bit, whatever it is made of."""
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        return first.dtype == other.dtype and torch.equal(first, other)
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(equal(first[key], other[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(other) and all(map(equal, first, other))
    return bool(first == other)


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """The model in the newest checkpoint that the status names."""
    state = torch.load(run_dir / status(run_dir)["checkpoint"], weights_only=True)
    weights: dict[str, torch.Tensor] = state["model"]
    return weights


def state(step: int, weight: torch.Tensor | None = None) -> dict[str, Any]:
    return {
        "model": {"w": torch.full((64, 64), float(step)) if weight is None else weight},
        "optimizer": {"state": {}, "param_groups": []},
        "step": step,
        "epoch": 0,
        "consumed": 0,
        "best": -1.0,
        "sums": [0.0, 0.0, 0.0],
        "config": {"train_samples": 250},
        "epochs": 1,
        "world": 1,
    }


def save(folder: Path, *steps: int, keep: int = 9) -> None:
    for step in steps:
        checkpoint.save(folder, state(step), step=step, keep=keep, best=False)


def encoded(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    checkpoint.encode(state, buffer)
    return buffer.getvalue()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def found_step(folder: Path, lines: list[str], resume: str = "auto") -> int:
    restored = checkpoint.find(folder, resume, lines.append)
    assert restored is not None
    return int(restored[1]["step"])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (os.environ["EVIL"],))
