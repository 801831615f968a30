"""The rules about a cluster against a real slurmctld, for six clusters that do not exist."""

from __future__ import annotations

import random

import pytest

from benchmarks.verdicts import CLUSTERS, compared, linted

PENDS = {"SB204"}  # with EnforcePartLimits=NO: Slurm takes it, and never starts it


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("real_slurm")
@pytest.mark.parametrize("name", CLUSTERS)
def test_the_rules_and_slurm_say_the_same(name: str) -> None:
    """All options of a request lie around the limits; which, is drawn."""
    verdicts = list(compared(CLUSTERS[name], random.Random(f"{name} 3"), 40, linted))  # noqa: S311
    assert 5 < sum(verdict.refused for verdict in verdicts) < 40
    for verdict in verdicts:
        assert verdict.refused == bool(verdict.rules) or set(verdict.rules) == PENDS, verdict
