"""torchvision beside a torch for CPUs, where the installed one is made for GPUs.

The package index has one build for Linux. Without CUDA its library is not loaded, and its import then fails
at two operators which no test needs (RuntimeError: operator torchvision::nms does not exist).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

LIBRARIES: list[Any] = []  # what these define lasts as long as they do


def fit() -> None:
    """Let the next import of torchvision succeed; does nothing where it would by itself."""
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    try:
        load: Any = torch.ops.load_library
        load(next(Path(spec.origin).parent.glob("_C*.so")))
    except OSError:
        if not LIBRARIES:
            library: Any = torch.library.Library
            LIBRARIES.append(library("torchvision", "DEF"))
            for name in ("nms", "qnms"):
                LIBRARIES[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
