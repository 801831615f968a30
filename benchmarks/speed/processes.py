"""Two processes against one: C4."""

from __future__ import annotations

from benchmarks.speed.figures import Figure, guarded, in_rounds
from benchmarks.speed.runs import Bench, launch, ours


def part_processes(bench: Bench) -> list[Figure]:
    """Two processes against one."""
    figure = Figure("C4 2 processes / (2 x 1 process)", "images/s", 0.8, higher=True, against="2 x one")
    last, skip = bench.steps // 2, bench.skip // 2
    two = ("--launcher", "spawn", "--nproc-per-node", "2", "--batch-size", "128")

    def work() -> None:
        runs = in_rounds(
            bench.rounds,
            {
                "two": lambda _: launch(bench, ours(bench, *two), threads=1),
                "one": lambda _: launch(bench, ours(bench, "--batch-size", "64"), threads=1, end=last + skip),
            },
        )
        for run in runs:
            figure.ours.append(run["two"].rate(128, skip=skip, last=last))
            figure.theirs.append(2 * run["one"].rate(64, skip=skip, last=last + skip))

    return guarded([figure], work)
