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


RESIDUAL = [*FAKE[:3], "4", "--batch-size", "4", "--model", "resnet18", "--optimizer", "sgd"]
ACCUMULATE = [*FAKE[:-1], "--optimizer", "sgd", "--accumulate", "64"]
Case = tuple[list[str], int]  # arguments, and the number of processes


def known() -> list[Case]:
    """Without its own convolution in bf16 (AVX-512), oneDNN's takes buffers that no reader of torch's code expects."""
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    lines = [more for more in MORE if "bf16" not in more or has_bf16]
    return [([*FAKE, *more.split()], 1 + at % 2) for at, more in enumerate(lines)]


@pytest.fixture(scope="module")
def peaks() -> list[tuple[Case, list[int]]]:
    """The computed and the real peaks of all cases, of a process with all of torch, which those of the other tests lack."""
    cases = [*known(), (RESIDUAL, 1), (ACCUMULATE, 2), (ACCUMULATE, 1)]
    words = [sys.executable, "-m", "tests.plan.allocator", json.dumps(cases)]
    done = subprocess.run(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return list(zip(cases, json.loads(done.stdout), strict=True))


def test_the_allocator_gives_out_as_much(peaks: list[tuple[Case, list[int]]]) -> None:
    hold(is_near, peaks[:-3])


def is_near(case: Case, pair: list[int]) -> None:
    computed, given_out = pair
    assert computed == pytest.approx(given_out, rel=0.01), case


def test_a_residual_network_needs_what_is_computed(peaks: list[tuple[Case, list[int]]]) -> None:
    (_, (computed, given_out)) = peaks[-3]
    assert computed == pytest.approx(given_out, rel=0.05)


def test_accumulation_under_ddp_holds_the_gradients_twice(peaks: list[tuple[Case, list[int]]]) -> None:
    of_gradients = 4 * 1_199_882
    (_, (more, _)), (_, (less, _)) = peaks[-2:]
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
