"""The shapes of a job: each hole is looked for once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sbatchgen.jobs.starts import job_shapes
from sbatchgen.jobs.starts.job_shapes import JobShape


def test_a_hole_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def longest_hole(_: object, free: object, claims: object, count: int) -> Any:
        asked.append((free, claims, count))
        return SimpleNamespace(claim="a claim") if count == 2 else None

    monkeypatch.setattr(job_shapes, "longest_hole", longest_hole)
    nothing: Any = None
    shape = JobShape(request=nothing, partition=nothing, added_options={}, needs_s=None, moment=nothing)
    vars(shape).update(room=SimpleNamespace(nodes=["n1"], wanted=2, starts=True), _claims={})
    assert [shape.claim, shape.claim, shape.hole(2)] == ["a claim", "a claim", shape.hole(2)]
    assert [shape.hole(3), shape.hole(3)] == [None, None]
    assert asked == [(["n1"], {}, 2), (["n1"], {}, 3)]
