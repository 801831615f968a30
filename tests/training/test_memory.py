"""The computed peak of memory is that of torch's allocator in the same steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.training import vision
from tests.training.allocator import most_bytes
from training.config import parse
from training.memory import peak

# With channels_last the kernels of CPUs make no copies of their own.
FAKE = ["--dataset", "fake", "--fake-samples", "64", "--batch-size-per-gpu", "64", "--channels-last"]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "more",
    [
        "--optimizer sgd",
        "--optimizer adamw --precision bf16",
        "--optimizer sgd --accumulate 4",
        "--optimizer sgd --activation-checkpointing",
        "--ema 0.9 --clip-norm 1",
        "--optimizer sgd --freeze conv1.*",
    ],
)
def test_the_allocator_gives_out_as_much(more: str, processes: int) -> None:
    arguments = [*FAKE, *more.split()]
    computed = peak(parse(arguments), processes)["peak_bytes"]
    assert computed == pytest.approx(most_bytes(arguments, processes), rel=0.01)


def test_a_residual_network_needs_what_is_computed() -> None:
    vision.fit()
    arguments = [*FAKE[:3], "4", "--batch-size", "4", "--model", "resnet18", "--optimizer", "sgd"]
    computed = peak(parse(arguments), 1)["peak_bytes"]
    assert computed == pytest.approx(most_bytes(arguments, 1), rel=0.05)


def test_accumulation_under_ddp_holds_the_gradients_twice() -> None:
    of_gradients = 4 * 1_199_882
    more = peak(parse([*FAKE[:-1], "--optimizer", "sgd", "--accumulate", "64"]), 2)["peak_bytes"]
    less = peak(parse([*FAKE[:-1], "--optimizer", "sgd", "--accumulate", "64"]), 1)["peak_bytes"]
    assert more - less == pytest.approx(of_gradients, rel=0.1)


def answered(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the program says of a command line with two processes, started in another folder."""
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "training/memory.py"), *arguments],
        cwd=Path("/"), env={"WORLD_SIZE": "2"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_answers_in_json() -> None:
    done = answered(*FAKE, "--precision", "bf16", "--compile", "--workers", "8", "--device", "cuda")
    facts = json.loads(done.stdout)
    assert facts.pop("peak_bytes") > 10 << 20
    assert facts == {"images": 64, "shape": [1, 28, 28], "precision": "bf16"}


def test_a_wrong_argument_is_an_error_as_in_the_training() -> None:
    done = answered("--batch-size", "3", "--dataset", "fake")
    assert (done.returncode, "cannot be shared by 2 processes" in done.stderr) == (1, True), done.stderr
