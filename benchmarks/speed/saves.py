"""Checkpoints: C6."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import Any

from benchmarks.speed.figures import Figure, in_rounds
from benchmarks.speed.runs import Bench


def part_saves(bench: Bench) -> list[Figure]:
    """Checkpoints against torch.save."""
    import torch

    from training.saving import checkpoint
    from training.saving.writer import Copies

    plain = "torch.save, fsync"
    sync = Figure("C6 save, on the disk", "ms", 1.25, higher=False, against=plain)
    stall = Figure("C6 save, training stands still", "ms", 1.25, higher=False, against=plain)
    torch.set_num_threads(bench.options.threads)
    tensors = {f"weight{i}": torch.randn(1_000_000) for i in range(51)}
    state = {"model": tensors, "optimizer": {}, "step": 0}
    folder = bench.scratch / "saves"
    folder.mkdir()
    copies = Copies()

    def plainly(_: int) -> None:
        path = folder / "plain.pt"
        torch.save(state, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def timed(work: Callable[[int], Any]) -> Callable[[int], float]:
        def call(number: int) -> float:
            began = time.perf_counter()
            work(number)
            return (time.perf_counter() - began) * 1000

        return call

    saves = {
        "plain": timed(plainly),
        "ours": timed(lambda number: checkpoint.save(folder, state, step=number, keep=1, best=False)),
        "copy": timed(lambda _: copies.take(state)),
    }
    for save in saves.values():
        save(0)  # the first ones find no file to replace, and no memory
    for results in in_rounds(4 * bench.rounds, {name: _later(save) for name, save in saves.items()}):
        sync.ours.append(results["ours"])
        stall.ours.append(results["copy"])
        for figure in (sync, stall):
            figure.theirs.append(results["plain"])
    shutil.rmtree(folder)
    return [sync, stall]


def _later(save: Callable[[int], float]) -> Callable[[int], float]:
    return lambda number: save(number + 1)
