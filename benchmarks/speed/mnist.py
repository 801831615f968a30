"""MNIST: C1, C2 and C5."""

from __future__ import annotations

import re
from statistics import median

from benchmarks.speed.figures import Figure, UnmeasurableError, guarded, in_rounds, spread
from benchmarks.speed.runs import Bench, Run, example, launch, ours

GATE = 2.0


def part_mnist(bench: Bench) -> list[Figure]:
    """MNIST against the example."""
    fp32, bf16 = (
        Figure(f"{name} MNIST {precision}", "images/s", target, higher=True)
        for name, precision, target in (("C1", "fp32", 1.1), ("C2", "bf16", 1.8))
    )
    cpu = Figure("C1 MNIST fp32", "images/CPU s", 1.4, higher=True)
    first = Figure("C5 start to first step", "s", 1.05, higher=False)
    batch, end = 64, bench.steps if bench.options.quick else 0
    flags = ("--optimizer", "adadelta", "--lr", "1", "--batch-size", str(batch))

    def work() -> None:
        runs = list(
            in_rounds(
                bench.rounds,
                {
                    "theirs": lambda i: launch(
                        bench, mnist(bench, i + 1), threads=bench.options.threads, end=end
                    ),
                    "fp32": lambda i: launch(
                        bench,
                        ours(bench, *flags, "--seed", str(i + 1)),
                        threads=bench.options.threads,
                        end=end,
                    ),
                    "bf16": lambda i: launch(
                        bench,
                        ours(bench, *flags, "--seed", str(i + 1), "--precision", "bf16"),
                        threads=bench.options.threads,
                        end=end,
                    ),
                },
            )
        )
        for figure, name in ((fp32, "fp32"), (bf16, "bf16")):
            valid = runs if end else valid_rounds(runs, name)
            if not valid:
                figure.left_out = f"no run came within {GATE} points of the example's accuracy"
            for run in valid:
                figure.ours.append(run[name].rate(batch, skip=bench.skip, last=bench.steps))
                figure.theirs.append(run["theirs"].rate(batch, skip=bench.skip, last=bench.steps))
        for run in runs if fp32.ours else ():
            for figures, name in ((cpu.ours, "fp32"), (cpu.theirs, "theirs")):
                figures.append(run[name].rate(batch, skip=bench.skip, last=bench.steps, cpu=True))
        for run in runs:
            first.ours.append(run["fp32"].steps_s[0])
            first.theirs.append(run["theirs"].steps_s[0])

    return guarded([fp32, cpu, bf16, first], work)


def mnist(bench: Bench, seed: int) -> list[str]:
    """The example's MNIST."""
    return [example(bench, "mnist"), "--epochs", "1", "--no-accel", "--seed", str(seed)]


def accuracy(output: str) -> float:
    """The accuracy in percent that the example or our trainer printed last.

    Raises:
        UnmeasurableError: If neither did.
    """
    if matches := re.findall(r"Accuracy: (\d+)/(\d+)", output):
        return 100 * int(matches[-1][0]) / int(matches[-1][1])
    if matches := re.findall(r"Accuracy: ([\d.]+)%", output):
        return float(matches[-1])
    raise UnmeasurableError("it printed no accuracy")


def valid_rounds(runs: list[dict[str, Run]], name: str) -> list[dict[str, Run]]:
    """The rounds that count."""
    wanted = median(accuracy(run["theirs"].output) for run in runs) - GATE
    reached = [accuracy(run[name].output) for run in runs]
    print(f"accuracy of {name}: {spread(reached)} %, at least {wanted:.2f} % is wanted", flush=True)
    return [run for run, percent in zip(runs, reached, strict=True) if percent >= wanted]
