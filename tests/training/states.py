"""States of checkpoints: made, saved, found and compared."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch

from training.saving import checkpoint

from .trainers import status


def everything(run_dir: Path) -> dict[str, Any]:
    """All that the newest checkpoint has."""
    found: dict[str, Any] = torch.load(run_dir / status(run_dir)["checkpoint"], weights_only=True)
    return found


def equal(one: Any, other: Any) -> bool:
    """To the bit, whatever it is made of."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """The model in the newest checkpoint that the status names."""
    state = torch.load(run_dir / status(run_dir)["checkpoint"], weights_only=True)
    found: dict[str, torch.Tensor] = state["model"]
    return found


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
    found = checkpoint.find(folder, resume, lines.append)
    assert found is not None
    return int(found[1]["step"])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (os.environ["EVIL"],))
