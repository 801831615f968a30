"""The computed peak of memory is that of torch's allocator in the same steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY
from tests.tables import hold

TRAINING = REPOSITORY / "training"
# With channels_last the kernels of CPUs make no copies of their own.
FAKE = ["--dataset", "fake", "--fake-samples", "64", "--batch-size-per-gpu", "64", "--channels-last"]


MORE = [
    "--optimizer sgd",
    "--optimizer adamw --precision bf16",
    "--optimizer sgd --accumulate 4",
    "--optimizer sgd --activation-checkpointing",
    "--ema 0.9 --clip-norm 1",
    "--optimizer sgd --freeze conv1.*",
]


def peaks(*cases: tuple[list[str], int]) -> list[list[int]]:
    """The computed and the real peaks, of a process with all of torch, which those of the other tests lack."""
    words = [sys.executable, "-m", "tests.plan.allocator", json.dumps(cases)]
    done = subprocess.run(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    pairs: list[list[int]] = json.loads(done.stdout)
    return pairs


def test_the_allocator_gives_out_as_much() -> None:
    # Without its own convolution in bf16 (AVX-512), oneDNN's takes buffers that no reader of torch's code expects.
    known = [more for more in MORE if "bf16" not in more or torch.ops.mkldnn._is_mkldnn_bf16_supported()]
    cases = [([*FAKE, *more.split()], processes) for more in known for processes in (1, 2)]
    hold(is_near, list(zip(cases, peaks(*cases), strict=True)))


def is_near(case: tuple[list[str], int], pair: list[int]) -> None:
    computed, given_out = pair
    assert computed == pytest.approx(given_out, rel=0.01), case


def test_a_residual_network_needs_what_is_computed() -> None:
    arguments = [*FAKE[:3], "4", "--batch-size", "4", "--model", "resnet18", "--optimizer", "sgd"]
    ((computed, given_out),) = peaks((arguments, 1))
    assert computed == pytest.approx(given_out, rel=0.05)


def test_accumulation_under_ddp_holds_the_gradients_twice() -> None:
    of_gradients = 4 * 1_199_882
    arguments = [*FAKE[:-1], "--optimizer", "sgd", "--accumulate", "64"]
    (more, _), (less, _) = peaks((arguments, 2), (arguments, 1))
    assert more - less == pytest.approx(of_gradients, rel=0.1)


def answered(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the program says of a command line with two processes, started in another folder."""
    return subprocess.run(
        [sys.executable, str(TRAINING / "memory.py"), *arguments],
        cwd=Path("/"), env={"WORLD_SIZE": "2"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_answers_in_json() -> None:
    done = answered(*FAKE, "--precision", "bf16", "--compile", "--workers", "8", "--device", "cuda")
    facts = json.loads(done.stdout)
    assert facts.pop("peak_bytes") > 10 << 20
    assert facts == {"images": 64, "shape": [1, 28, 28], "precision": "bf16", "tries_kernels": False}


def test_a_wrong_argument_is_an_error_as_in_the_training() -> None:
    done = answered("--batch-size", "3", "--dataset", "fake")
    assert (done.returncode, "cannot be shared by 2 processes" in done.stderr) == (1, True), done.stderr
