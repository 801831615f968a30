"""Where the faults happen, with how many trials; and a line of the table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.training.moments import Held
from tests.training.trainers import (
    Ended,
    Here,
    Trainers,
    status,
)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    figure: str
    target: str
    passed: bool


@dataclass
class Place:
    """Where the faults happen, and with how many trials."""

    folder: Path
    quick: bool
    trainers: Trainers
    here: Here
    patches: pytest.MonkeyPatch

    def times(self, full: int, quick: int) -> int:
        """How many trials."""
        return quick if self.quick else full

    def new(self, name: str) -> Path:
        """A path without a folder, or an empty folder."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    @cached_property
    def held(self) -> Held:
        """Trainers that stop at chosen moments."""
        return Held(self.trainers, self.folder / "held")

    @cached_property
    def finished(self) -> Path:
        """A run of one epoch."""
        ended_with(0, self.here(self.folder / "finished", "--save-every", "4"))
        return self.folder / "finished"


def ended_with(code: int, ended: Ended) -> None:
    """Check a condition that a figure needs.

    Raises:
        RuntimeError: If not.
    """
    if ended.code != code:
        raise RuntimeError(f"exit status {ended.code}, not {code}: {ended.err[-300:]}")


def newest(run_dir: Path) -> Path:
    """The newest checkpoint of a run."""
    checkpoint: str = status(run_dir)["checkpoint"]
    return run_dir / checkpoint


def one_line_failure(ended: Ended) -> bool:
    """Whether it ended with status 1 and one line that says why."""
    return ended.code == 1 and ended.err.startswith("error: ") and ended.err.count("\n") == 1
