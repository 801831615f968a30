"""Hostile and clumsy calls on the real Slurm: nothing past the budget, and no bytes that were not reviewed."""

from __future__ import annotations

import os
import sys

import pytest

from tests.budget import calls
from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY

WHOLE = os.environ.get("HOSTILE") == "whole"


@on_one_release
def test_no_call_passes_the_budget(cluster: Cluster) -> None:
    """Each kind four times, or all 500."""
    every = calls.calls()
    most = calls.EACH if WHOLE else 4
    seen: dict[str, int] = {}
    chosen = []
    for call in every:
        seen[call.kind] = seen.get(call.kind, 0) + (call.argv[:1] != ["review"])
        if seen[call.kind] <= most - (call.argv[:1] == ["review"]):
            chosen.append(call)
    answers = calls.run(cluster, chosen)
    taken = calls.gpu_hours(cluster)
    cluster.run(["scancel", "--me"])
    counts = calls.kinds_of(answers)
    assert {kind: sum(each.values()) for kind, each in counts.items()} == dict.fromkeys(counts, most)
    assert len(counts) == len(calls.KINDS)
    assert 0 < taken <= calls.MOST, (taken, counts)
    assert set(counts["other bytes"]) == {3}
    assert set(counts["damaged budget"]) == {7}
    bugs = [answer for answer in answers if answer.status == 1 or "Traceback" in answer.err]
    assert not bugs, bugs
    said = [answer.err for answer in answers if answer.status == 7]
    assert all("fix: " in text for text in said)


@pytest.mark.parametrize("slurm_release", ["22.05"], indirect=True)
def test_twenty_at_once_can_not_take_the_rest_twice(cluster: Cluster) -> None:
    cluster.put("many/job.sh", calls.SCRIPT)
    cluster.put("many/budget.yaml", "gpu_hours: 3\n")
    command = f"{sys.executable} -m sbatchgen submit job.sh --yes --again --budget budget.yaml"
    every = (
        f"for i in $(seq 20); do ({command} >$i.out 2>$i.err; echo $? >$i.status) & done; wait; cat *.status"
    )
    env = {"PYTHONPATH": str(REPOSITORY)}
    done = cluster.run(["bash", "-c", every], env=env, cwd=cluster.home / "many")
    shown = cluster.run(["squeue", "--me", "--noheader", "--format=%i"]).stdout.split()
    cluster.run(["scancel", "--me"])
    assert sorted(done.stdout.split()) == ["0"] * 3 + ["7"] * 17
    assert len(shown) == 3
