"""Discovered profiles and their clusters say the same of jobs as people type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.clusters import Cluster, compared
from tests.cluster import accounting, fixtures

CONFIGS = Path(__file__).with_name("configs")


@pytest.fixture
def root(request: pytest.FixtureRequest, real_slurm: None) -> Path | None:
    return request.getfixturevalue("later_root") if request.param == "26.05" else None


@pytest.mark.parametrize(
    ("root", "name"), [("22.05", "plain"), ("26.05", "plain"), ("22.05", "older")], indirect=["root"]
)
def test_both_say_the_same(name: str, root: Path | None) -> None:
    result = compared(Cluster.of(CONFIGS / name, later=bool(root)), root)
    assert result.agree > 300
    assert (result.alarms, result.misses) == ([], [])


@pytest.mark.usefixtures("real_slurm")
def test_both_say_the_same_of_accounts_and_qos() -> None:
    fixtures._need(accounting.why_not(), what="accounts in a database")
    result = compared(Cluster.of(CONFIGS / "accounts"))
    assert result.agree > 600
    assert result.alarms == []
    assert {words for said, words in result.misses if "h9000" not in words} == set()
