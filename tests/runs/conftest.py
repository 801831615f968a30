"""What tests of runs share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.slurm import fakes


@pytest.fixture
def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs that stand for Slurm's: no job is in the queue, there is no database."""
    place = folder / "bin"
    fakes.squeue(place, [])
    fakes.failing(place, "sacct", "Slurm accounting storage is disabled")
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return place
