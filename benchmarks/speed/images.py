"""ResNet-18 from JPEGs: C3."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.speed.figures import Figure, UnmeasurableError, guarded, in_rounds
from benchmarks.speed.runs import Bench, Run, example, launch, ours


def part_images(bench: Bench) -> list[Figure]:
    """ResNet-18 from JPEGs against the example."""
    fp32 = Figure("C3 ResNet-18 fp32", "images/s", 1.0, higher=True)
    cpu = Figure("C3 ResNet-18 fp32", "images/CPU s", 1.2, higher=True)
    bf16 = Figure("C3 ResNet-18 bf16, channels last", "images/s", 1.8, higher=True)
    batch, skip, last = (16, 2, 4) if bench.options.quick else (16, 4, 14)

    def command(i: int, *flags: str) -> list[str]:
        folders = ("--data-dir", str(jpegs / "train"), "--val-path", str(jpegs / "val"), "--workers", "2")
        how = ("--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--weight-decay", "1e-4")
        model = ("--dataset", "imagefolder", "--model", "resnet18", "--schedule", "constant")
        seed = ("--batch-size", str(batch), "--seed", str(i + 1), "--log-every", "10")
        return ours(bench, *folders, *how, *model, *seed, *flags)

    def theirs(_: int) -> list[str]:
        return [
            *(example(bench, "imagenet"), str(jpegs), "-a", "resnet18", "-b", str(batch), "-j", "2"),
            *("--epochs", "1", "--no-accel", "--lr", "0.1"),
        ]

    def timed(words: list[str]) -> Run:
        run = launch(bench, words, threads=bench.options.threads, end=last)
        if re.search(r"loss \D*(nan|inf)|Loss (nan|inf)", run.output):
            raise UnmeasurableError("a loss was not finite")
        return run

    jpegs = bench.scratch / "jpegs"

    def work() -> None:
        example(bench, "imagenet")
        draw(jpegs, classes=100 if bench.options.quick else 1000)
        runs = in_rounds(
            bench.rounds,
            {
                "theirs": lambda i: timed(theirs(i)),
                "fp32": lambda i: timed(command(i)),
                "bf16": lambda i: timed(command(i, "--precision", "bf16", "--channels-last")),
            },
        )
        for run in runs:
            for figure, name, by_cpu in ((fp32, "fp32", False), (cpu, "fp32", True), (bf16, "bf16", False)):
                figure.ours.append(run[name].rate(batch, skip=skip, last=last, cpu=by_cpu))
                figure.theirs.append(run["theirs"].rate(batch, skip=skip, last=last, cpu=by_cpu))

    return guarded([fp32, cpu, bf16], work)


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
