"""Runs that are resumed: C7 and C8."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.speed.figures import Figure, UnmeasurableError, guarded, in_rounds
from benchmarks.speed.runs import Bench, Run, launch, ours


def part_resume(bench: Bench) -> list[Figure]:
    """Resumed against fresh and uninterrupted."""
    when = Figure("C7 resume at 80 %, to first step", "s", 1.0, higher=False, against="fresh+load+0.5")
    same = Figure("C8 equal to the bit, resumed", "values", 1.0, higher=True, against="uninterrupted")
    every, threads = round(0.8 * bench.steps), bench.options.threads
    flags = ("--batch-size", "64", "--save-every", str(every))

    def work() -> None:
        launch(bench, ours(bench, *flags, run="cut"), threads=threads, end=every + bench.skip)
        cut = bench.scratch / "cut" / "checkpoints" / f"step-{every:08}.pt"
        if not cut.is_file():
            raise UnmeasurableError(f"{cut.name} was not there in time")

        def resumed(_: int) -> Run:
            shutil.rmtree(bench.scratch / "resumed", ignore_errors=True)
            shutil.copytree(bench.scratch / "cut", bench.scratch / "resumed")
            return launch(bench, ours(bench, *flags, run="resumed", keep=True), threads=threads, end=1)

        fresh = ours(bench, *flags)
        for results in in_rounds(
            bench.rounds,
            {"resumed": resumed, "fresh": lambda _: launch(bench, fresh, threads=threads, end=1)},
        ):
            when.ours.append(results["resumed"].steps_s[0])
            when.theirs.append(results["fresh"].steps_s[0] + _load_s(cut) + 0.5)
        ends = []
        for run in ("cut", "whole"):
            launch(bench, ours(bench, *flags, run=run, keep=True), threads=threads)
            ends.append(max((bench.scratch / run / "checkpoints").glob("step-*.pt")))
        equal, total = compared(*ends)
        same.ours, same.theirs = [float(equal)], [float(total)]

    return guarded([when, same], work)


def _load_s(path: Path) -> float:
    """Seconds to check and load a checkpoint."""
    from training.saving.reading import load

    began = time.perf_counter()
    with path.open("rb") as file:
        load(file)
    return time.perf_counter() - began


def compared(first: Path, other: Path) -> tuple[int, int]:
    """How many of the values in two checkpoints are equal, and how many there are; a tensor is one value."""
    import torch

    left, right = (dict(_values(torch.load(path, weights_only=True))) for path in (first, other))
    equal = 0
    for key in left.keys() & right.keys():
        a, b = left[key], right[key]
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        equal += (a.dtype == b.dtype and torch.equal(a, b)) if both else a == b
    return equal, len(left.keys() | right.keys())


def _values(value: Any, *keys: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What is in dictionaries and lists, each with the keys that lead to it."""
    if isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(item, *keys, key)
    else:
        yield keys, value
