"""The reader of --array against what slurmctld said."""

from __future__ import annotations

import pytest

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.sbatch.array import indices
from sbatchgen.check.script.script import JobScript
from tests.sbatch.array_values import REFUSED, TAKEN


@pytest.mark.parametrize("text", TAKEN)
def test_what_slurmctld_takes_is_an_array(text: str) -> None:
    assert indices(text) is not None
    script = f'#!/bin/bash\n#SBATCH --time=00:05:00\n#SBATCH --array="{text}"\ntrue\n'
    assert [each.rule for each in lint(JobScript(file="a", text=script)) if each.severity == "error"] == []


@pytest.mark.parametrize("text", REFUSED)
def test_what_slurmctld_refuses_is_none(text: str) -> None:
    assert indices(text) is None


def test_the_indices() -> None:
    assert [*map(list, indices("1,3-5,7-12:2%3") or ())] == [[1], [3, 4, 5], [7, 9, 11]]
    assert [*map(list, indices("[0-2]%10") or ())] == [[0, 1, 2]]
    assert indices("") == ()
    assert indices("9" * 5000) == (range(10**18, 10**18 + 1),)
