"""What a review says of the site: preemption, the memory of a GPU, and the cost in the site's own unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.units import Weights
from tests.conftest import Command

PROFILE = """
name: here
url: x
checked: 2026-01-01
default_partition: gpu
partitions:
  gpu: {cpus_per_node: 64, gpus_per_node: 4, mem_per_node: 400G, gpu_memory: 80G, preemption: requeue,
        preemption_grace: 00:02:00, billing: "CPU=1.0,Mem=0.25G,GRES/gpu=16"}
"""


def test_a_review_shows_them(folder: Path, command: Command) -> None:
    (folder / "here.yaml").write_text(PROFILE)
    done = command("review", "ddp", "--profile", "./here.yaml", "--nodes", "1", "--time", "02:00:00")
    assert "4 of 4 GPUs of 80G" in done.out
    assert "jobs of other partitions may preempt it (requeue after 0-00:02:00)" in done.out
    assert "456 billing-hours of the site" in done.out  # 2 h of 64 + 100 + 64


@pytest.mark.parametrize("text", ["", "CPU", "CPU=x", "CPU=1,,Mem=1", "BB/x=1", "CPU=1e400"])
def test_weights_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="weights"):
        Weights.parse(text)


def test_a_cost_that_is_not_known() -> None:
    assert Weights("CPU=1,Mem=1G").cost(cpus=1, mib=None, gpus=0) is None
    assert Weights("CPU=0.5,Node=10").cost(cpus=4, mib=None, gpus=0) == 12
