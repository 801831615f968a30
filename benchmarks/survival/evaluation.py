"""An evaluation that cannot be shared evenly: F14."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset

from benchmarks.survival.place import Place, Row
from tests.training import test_loop, test_writer
from training.run import evaluation


def f14(place: Place) -> Iterator[Row]:
    """An evaluation that cannot be shared evenly."""
    right = evaluated(place.new("F14/1"), 1)
    worst, padded, equal_counts = 0.0, 0.0, 0
    for size in (1, 2, 3):
        result = evaluated(place.new(f"F14/of-{size}"), size)
        for samples, score in result.items():
            equal_counts += score[1:] == (right[samples][1], samples)
            worst = max(worst, abs(score[0] - right[samples][0]))
            padded = max(padded, padding_error(place.folder, samples, size))
    yield Row(
        "evaluation of 1 to 33 images, batches of 4, on 1, 2 and 3 processes",
        f"accuracy and count equal in {equal_counts} of 99, loss within {worst:.0e} "
        f"(with a DistributedSampler accuracy is off by up to {100 * padded:.0f} points)",
        "all, 1e-12",
        equal_counts == 99 and worst <= 1e-12,
    )


def evaluated(folder: Path, size: int) -> dict[int, tuple[float, float, int]]:
    """The score by number of images: loss, accuracy, images."""

    def rank_of(rank: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
        for samples in range(1, 34):
            score = evaluation.evaluate(test_loop.session(folder, rank=rank, size=size, samples=samples))
            if rank == 0:
                line = f"{samples} {score.loss!r} {score.metrics['accuracy']!r} {score.samples}\n"
                with (folder / "scores").open("a") as file:
                    file.write(line)

    ranks = [test_writer.in_child(partial(rank_of, rank)) for rank in range(size)]
    codes = [test_writer.ended(child) for child in ranks]
    if any(codes):
        raise RuntimeError(f"a rank of {size} failed")
    lines = [line.split() for line in (folder / "scores").read_text().splitlines()]
    return {
        int(samples): (float(loss), float(accuracy), int(count)) for samples, loss, accuracy, count in lines
    }


def padding_error(folder: Path, samples: int, size: int) -> float:
    """How far off the accuracy is if a DistributedSampler shares the images."""
    made = test_loop.session(folder, rank=0, size=1, samples=samples)
    images, labels = test_loop.batch(made, torch.arange(samples))
    correct = (made.model(images).argmax(dim=1) == labels).double()
    dataset = TensorDataset(labels)
    shares: list[list[int]] = [
        list(DistributedSampler(dataset, size, rank, shuffle=False)) for rank in range(size)
    ]
    counted = correct[[index for share in shares for index in share]]
    return abs(float(counted.mean() - correct.mean()))
