#!/usr/bin/env python3
"""Compare the computed peak of memory with a real one: `python benchmarks/memory.py`.

The same steps run with fake tensors, and with real ones on this machine's CPU, whose allocator torch.profiler
follows. CUDA's allocator, workspaces of cuDNN and buffers of NCCL are in neither.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from tests.plan.allocator import most_bytes
from tests.training import vision
from training.config import parse
from training.memory import peak

MODELS = ("convnet", "resnet18", "resnet50", "mobilenet_v3_small", "vit_b_16")
VARIANTS = (
    "--optimizer sgd",
    "--optimizer adamw --precision bf16",
    "--optimizer sgd --accumulate 2",
    "--optimizer sgd --activation-checkpointing",
    "--optimizer sgd --channels-last",
    "--optimizer adamw --ema 0.9",
)
BATCHES = {"convnet": 512}
FEW = 8


def compare(model: str, variant: str, processes: int) -> float:
    """Print both for a training; return the error in percent."""
    size = str(BATCHES.get(model, FEW))
    arguments = ["--dataset", "fake", "--fake-samples", size, "--batch-size-per-gpu", size, "--model", model]
    arguments += variant.split()
    computed, real = int(peak(parse(arguments), processes)["peak_bytes"]), most_bytes(arguments, processes)
    error = 100 * (computed - real) / real
    what = f"{model:20}{variant:45}{processes:2} processes"
    print(f"{what}{computed / (1 << 20):9.1f} MiB{real / (1 << 20):9.1f} MiB{error:+8.2f} %", flush=True)
    return error


def main() -> None:
    """Compare all models and variants; a line for each."""
    vision.fit()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, CPU: computed, measured, error")
    errors = []
    for model, variant, processes in itertools.product(MODELS, VARIANTS, (1, 2)):
        if processes == 1 or variant in VARIANTS[:3]:
            errors.append(abs(compare(model, variant, processes)))
    print(
        f"{len(errors)} trainings: largest error {max(errors):.2f} %, mean {sum(errors) / len(errors):.2f} %"
    )


if __name__ == "__main__":
    main()
