"""Directives are read as a real Slurm reads them: benchmarks/directives.py compares more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.sbatch.directives import asked, differences, directives

COUNT, SEED = 162, 5


def test_directives_are_those_of_the_seed_and_of_each_kind() -> None:
    rows = directives(SEED, COUNT)
    assert rows == directives(SEED, COUNT) != directives(SEED + 1, COUNT)
    assert set(Counter(row.kind for row in rows).values()) == {COUNT // 9}


@pytest.mark.usefixtures("real_slurm")
def test_slurm_reads_the_same() -> None:
    agree("22.05", None)


@pytest.mark.proof
def test_a_later_slurm_reads_the_same(later_root: Path) -> None:
    agree("26.05", later_root)


def agree(release: str, root: Path | None) -> None:
    """Slurm refuses what lint has an error for, and has the values that the reader has."""
    rows = directives(SEED, COUNT)
    answers = asked([row.line for row in rows], root)
    assert COUNT / 3 < sum(not answer.said for answer in answers) < COUNT * 2 / 3
    pairs = zip(rows, answers, strict=True)
    assert [
        (row.line, text) for row, answer in pairs for text in differences(row.line, answer, release)
    ] == []
