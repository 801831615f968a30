"""ResNet-18 from JPEGs: C3 and C11."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.speed.figures import Figure, UnmeasurableError, guarded, in_rounds
from benchmarks.speed.runs import Bench, Run, example, launch, ours

BATCH = 16
LONGEST = 16  # steps of a run beside another one


def part_images(bench: Bench) -> list[Figure]:
    """ResNet-18 from JPEGs against the example."""
    fp32 = Figure("C3 ResNet-18 fp32", "images/s", 1.0, higher=True)
    cpu = Figure("C3 ResNet-18 fp32", "images/CPU s", 1.2, higher=True)
    bf16 = Figure("C3 ResNet-18 bf16, channels last", "images/s", 1.8, higher=True)
    skip, last = (2, 4) if bench.options.quick else (4, 14)

    def work() -> None:
        jpegs = _jpegs(bench)
        runs = in_rounds(
            bench.rounds,
            {
                "theirs": lambda _: _timed(bench, _theirs(bench, jpegs), last),
                "fp32": lambda i: _timed(bench, _ours(bench, jpegs, i), last),
                "bf16": lambda i: _timed(
                    bench, _ours(bench, jpegs, i, "--precision", "bf16", "--channels-last"), last
                ),
            },
        )
        for run in runs:
            for figure, name, by_cpu in ((fp32, "fp32", False), (cpu, "fp32", True), (bf16, "bf16", False)):
                figure.ours.append(run[name].rate(BATCH, skip=skip, last=last, cpu=by_cpu))
                figure.theirs.append(run["theirs"].rate(BATCH, skip=skip, last=last, cpu=by_cpu))

    return guarded([fp32, cpu, bf16], work)


def part_busy(bench: Bench) -> list[Figure]:
    """ResNet-18 from JPEGs and the example at the same time, beside processes that keep the CPUs busy."""
    figures = {
        busy: Figure(f"C11 ResNet-18 fp32, {busy} busy processes", "images/s", 1.0, higher=True)
        for busy in bench.options.busy
    }
    skip, last = (2, 4) if bench.options.quick else (4, LONGEST)

    def work() -> None:
        jpegs = _jpegs(bench)
        for number in range(bench.rounds):
            for busy, figure in figures.items():
                with busy_processes(busy), ThreadPoolExecutor(2) as both:
                    running = both.submit(_timed, bench, _theirs(bench, jpegs), last, "theirs")
                    beside = both.submit(_timed, bench, _ours(bench, jpegs, number), last, "ours")
                    theirs, mine = running.result(), beside.result()
                begin = max(run.steps_s[skip - 1] for run in (theirs, mine))
                end = min(run.steps_s[-1] for run in (theirs, mine))
                if end <= begin:
                    raise UnmeasurableError("the two did not run at the same time")
                for run, rates in ((theirs, figure.theirs), (mine, figure.ours)):
                    rates.append(BATCH * (run.step_at(end) - run.step_at(begin)) / (end - begin))

    return guarded([*figures.values()], work)


def _ours(bench: Bench, jpegs: Path, seed: int, *flags: str) -> list[str]:
    folders = ("--data-dir", str(jpegs / "train"), "--val-path", str(jpegs / "val"), "--workers", "2")
    how = ("--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--weight-decay", "1e-4")
    model = ("--dataset", "imagefolder", "--model", "resnet18", "--schedule", "constant")
    rest = ("--batch-size", str(BATCH), "--seed", str(seed + 1), "--log-every", "10")
    return ours(bench, *folders, *how, *model, *rest, *flags)


def _theirs(bench: Bench, jpegs: Path) -> list[str]:
    return [
        *(example(bench, "imagenet"), str(jpegs), "-a", "resnet18", "-b", str(BATCH), "-j", "2"),
        *("--epochs", "1", "--no-accel", "--lr", "0.1"),
    ]


def _timed(bench: Bench, words: list[str], last: int, name: str = "") -> Run:
    run = launch(bench, words, threads=bench.options.threads, end=last, name=name)
    if re.search(r"loss \D*(nan|inf)|Loss (nan|inf)", run.output):
        raise UnmeasurableError("a loss was not finite")
    return run


def _jpegs(bench: Bench) -> Path:
    example(bench, "imagenet")
    folder = bench.scratch / "jpegs"
    if not folder.exists():
        draw(folder, classes=100 if bench.options.quick else 1000)
    return folder


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keep `number` processes busy, each a CPU if there were so many."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def draw(folder: Path, *, classes: int) -> None:
    """A JPEG of 500x375 pixels a class, as large in bytes as photographs are; the same for the validation.

    Raises:
        UnmeasurableError: Without Pillow.
    """
    try:
        from PIL import Image  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise UnmeasurableError("needs torchvision and Pillow") from error
    for number in range(classes):
        place = folder / "train" / f"c{number:04}"
        place.mkdir(parents=True)
        coarse = Image.effect_noise((125, 94), 60 + number % 40)
        colours = [coarse.rotate(90 * turn).resize((500, 375), Image.Resampling.BICUBIC) for turn in range(3)]
        Image.merge("RGB", colours).save(place / "image.jpg", quality=90)
    (folder / "val").symlink_to(folder / "train")
