"""The benchmark of `when` runs on a real Slurm; its figures mean nothing in so short a time."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.usefixtures("real_slurm")
def test_each_question_ends_in_its_way() -> None:
    words = [sys.executable, str(REPOSITORY / "benchmarks" / "when.py"), "--quick"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ": 18 of 18 started" in done.stdout  # six questions, each in three ways
    ways = re.findall(r"ends (.+): after .* 0 did not complete", done.stdout)
    assert ways == ["the first row", "as asked for", "--fit"]
    assert re.search(r"holes that started within 5: \d+ of \d+\n", done.stdout)
    compared = re.findall(r"  (.+) ends sooner by .*: \d of 6 sooner", done.stdout)
    assert compared == ["the first row", "--fit"]
