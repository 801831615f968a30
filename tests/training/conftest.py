"""Small synthetic digits, and real processes of the trainer that end with the test."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbatchgen.lab.prepare import digits
from training.processes.stop import SIGNALS

from .quickly import sitecustomize  # noqa: F401 - before anything makes an optimizer
from .trainers import LAUNCHER_VARIABLES, Here, Trainers


@pytest.fixture
def here(small_digits: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """A trainer in this process, whose signal handlers do not outlive the test."""
    for name in (*LAUNCHER_VARIABLES, *(name for name in os.environ if name.startswith("SLURM"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield Here(small_digits)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def small_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """250 training images: 8 steps of 32, the last one short; and 101 test images. All have 14x14 pixels."""
    folder = tmp_path_factory.mktemp("digits")
    digits.write(folder, train=250, test=101, seed=3)
    for path in folder.glob("*images*"):
        path.write_bytes(halved(path.read_bytes()))
    return folder


def halved(images: bytes) -> bytes:
    """An IDX file with every other row and column of each image: a run on it takes a sixth of the time."""
    magic, count, height, width = struct.unpack_from(">4i", images)
    rows = [images[first : first + width : 2] for first in range(16, len(images), 2 * width)]
    return struct.pack(">4i", magic, count, height // 2, width // 2) + b"".join(rows)


@pytest.fixture
def trainers(small_digits: Path) -> Iterator[Trainers]:
    """Trainers whose processes, and their children, end with the test."""
    made = Trainers(small_digits)
    yield made
    made.end()
