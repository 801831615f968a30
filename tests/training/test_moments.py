"""Signals to each process at each moment, and a file system that answers late.

All combinations are what benchmarks/faults.py goes through; here each signal, each target and each moment is met.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from . import moments
from .moments import FLAGS, Held, noted, seen
from .trainers import Trainers

TERM, USR1, USR2, INT = moments.NUMBERS
# Since pytorch/pytorch#160690 torchrun's agent can pass USR1 on; before, that ends it.
PASSED_ON = USR1 if any(action.dest == "signals_to_handle" for action in get_args_parser()._actions) else TERM


@pytest.fixture(scope="module")
def held(small_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """One for all tests, which are compared with the same uninterrupted run."""
    trainers = Trainers(small_digits)
    yield Held(trainers, tmp_path_factory.mktemp("held"))
    trainers.end()


@pytest.mark.parametrize(
    ("launcher", "plan"),
    [
        (
            "torchrun",
            [
                (PASSED_ON, "agent", "start-up"),
                (signal.SIGHUP, "agent", "step"),
                (TERM, "all, twice", "save"),
                (TERM, "agent", "last save"),
            ],
        ),
        (
            "spawn",
            [
                (INT, "all, twice", "start-up"),
                (USR1, "parent", "save"),
            ],
        ),
        (
            "srun",
            [
                (TERM, "one rank", "step"),
                (USR2, "all", "validation"),
                (INT, "one rank", "last save"),
            ],
        ),
    ],
)
def test_each_signal_target_and_moment(
    held: Held, launcher: str, plan: list[tuple[signal.Signals, str, str]]
) -> None:
    """Fault F8: a run of each launcher, of torchrun and srun up to its end."""
    lives = held.lives(launcher, launcher, plan)

    assert {life.name: life.problems for life in lives if life.problems} == {}


def test_a_slow_file_system_holds_up_nothing_but_itself(held: Held, trainers: Trainers) -> None:
    """Fault F7: a save takes a second, and the other rank cannot see the folder."""
    run_dir, notes = held.folder / "slow", held.notes("slow")
    slow = held.environment(
        notes, SLOW_DIR=str(run_dir), SLOW_S="0.2 0.3"
    )  # a save has two such calls at least
    flags = (*FLAGS, "--epochs", "1", "--save-every", "4")
    ended = trainers.run_ranks(2, run_dir, *flags, env=slow)

    assert ended.code == 0, ended.err
    assert [len(step) for step in seen(notes)] == [32] * 7 + [26]
    assert min(noted(notes, "save")) > 0.3
    assert noted(notes, "stall")[0] < noted(notes, "save")[0] / 2  # if it waited for its save: as much
