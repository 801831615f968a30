"""What status says of the check of a run's nodes, whatever the file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.overview import MAX_FAULT_CHARS, PREFLIGHT_FILE, preflight_in_words
from training import preflight

BAD = {
    "": [["torch", "can't be imported"]],
    "n3": [["run folder", "can't be written"], ["GPU 1", "computes wrong"]],
}


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"nodes": ["n1"], "faults": {}}, "1 node ready"),
        ({"nodes": ["n1", "n2"], "faults": {}}, "2 nodes ready"),
        (
            {"nodes": ["n3"], "faults": BAD},
            "all nodes: torch: can't be imported; n3: run folder: can't be written; n3: GPU 1: computes wrong",
        ),
        ({"nodes": 3, "faults": {}}, ""),
        ({"nodes": [], "faults": [1]}, ""),
        ({"nodes": [], "faults": {"n1": [[1], 2], "n2": 3}}, "0 nodes ready"),
        ({"nodes": ["n1"], "faults": {"n1": [["x", "y" * 9999]]}}, f"n1: x: {'y' * (MAX_FAULT_CHARS - 7)}"),
    ],
)
def test_what_was_found_is_one_line(tmp_path: Path, record: object, says: str) -> None:
    (tmp_path / PREFLIGHT_FILE).write_text(json.dumps(record))
    assert preflight_in_words(tmp_path) == says


def test_without_a_check_nothing_is_said(tmp_path: Path) -> None:
    assert preflight_in_words(tmp_path) == ""
    assert PREFLIGHT_FILE == preflight.RECORD
