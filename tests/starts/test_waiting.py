"""What `when` shows of jobs that wait, without a Slurm."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbatchgen.jobs.starts import waiting
from tests.slurm import fakes

SPRIO = """\
4711 gpu 12 0 5 1000 0
4711 debug 12 0 5 7 0
4711 long 12 0 5 1000 0
4712 gpu 3 0 0 0 0
4712 long 3 0 0 0 0
4713 gpu 0 0 0 0 0
4714 gpu 0 0 0 0 0
4714 debug 0 0 0 8 0

"""


def test_the_terms_of_a_priority_are_those_of_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.saying(tmp_path / "bin", "sprio", SPRIO)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    moment: Any = SimpleNamespace(settings={"PriorityType": "priority/multifactor"})
    assert waiting._priorities_in_words(moment, os.environ) == {
        "4711": "; its priority is of age 12, size 5, partition 1000 in gpu, long; of age 12, size 5, partition 7 in debug",
        "4712": "; its priority is of age 3",
        "4713": "",
        "4714": "; its priority is of nothing in gpu; of partition 8 in debug",
    }
