"""No plan of a job that is right has a warning; `python benchmarks/plan.py --healthy` plans each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plan.healthy import jobs, planned
from tests.plan.plans import needs_sandbox

pytestmark = needs_sandbox
PART = 23  # not a divisor of what one profile has: each launcher and runtime is in it


@pytest.mark.proof
def test_a_job_that_is_right_has_no_warning(tmp_path: Path) -> None:
    every = [*jobs()]
    assert len(every) > 100
    plans = {name: planned(name, of, tmp_path) for name, of in every[::PART]}
    assert {name: findings for name, (_, findings) in plans.items() if findings} == {}
    reached = [name for name, (done, _) in plans.items() if done.steps]
    assert all("prefix" in name for name in {*plans} - {*reached})  # whose command this machine lacks
