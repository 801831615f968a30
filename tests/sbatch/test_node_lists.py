"""Lists of numbers of nodes, such as --nodes=2,4 and --nodes=1-15:4, as sbatch of 26.05 reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.check.sbatch.values import RefusedError, node_range
from sbatchgen.lab.plan.step_tasks import _node_range
from tests.cluster import oracle

# A value, and the numbers that `sbatch -v` prints; or a part of its message.
LISTS = {
    "2,4,8": "2-8",
    "8,2": "2-8",
    "2-4,8": "2-8",
    "1-3,5-9": "1-9",
    "10-12,1-3": "1-12",
    "2,2": "2",
    "01,02": "1-2",
    "1-5000,6000": "1-6000",
    "1-15:4": "1-13",
    "1-15:04": "1-13",
    "1-16:5": "1-11",
    "1-6:4": "1-5",
    "1-5:4": "1",
    "3-4:1": "3",
    "2-8:100": "2",
    "0-8:2": "0-6",
    # Mistakes that sbatch accepts.
    "5-2,9": "9",
    "3,5-2": "3",
    "3-,4": "4",
    "-3,4": "0-4",
    "1,": "0-1",
    "1,,2": "0-2",
    " 2, +4": "2-4",
    # A step is for a single range.
    "1-15:4,20": '"1-15:4,20" is not a valid node count',
    "20,1-15:4": '"20,1-15:4" is not a valid node count',
    "1-15:4,2-9:3": '"1-15:4,2-9:3" is not a valid node count',
    "1-15:4,": '"1-15:4," is not a valid node count',
    "1-15:0": "is not a valid node count",
    "5-2:1": "is not a valid node count",
    "4:2": "is not a valid node count",
    "1-15:4:2": "is not a valid node count",
    "1-9:2-3": "is not a valid node count",
    "[1-3,5]": "is not a valid node count",
    "2,a": "is not a valid node count",
    "2-2:1": "invalid number of nodes (-N -1--1)",
    "5-2,3-1": "invalid number of nodes (-N -1--1)",
}


def as_printed(low: int, high: int) -> str:
    return f"{low}-{high}" if high != low else f"{low}"


@pytest.mark.parametrize("value", LISTS)
def test_a_list_is_read_as_sbatch_reads_it(value: str) -> None:
    said = LISTS[value]
    if "n" not in said:
        assert as_printed(*node_range(value, slurm="26.05")) == said
        return
    with pytest.raises(RefusedError) as refused:
        node_range(value, slurm="26.05")
    assert said in refused.value.args[0]


@pytest.mark.parametrize("value", ["2,4,8", "1-15:4"])
def test_older_releases_have_no_lists(value: str) -> None:
    with pytest.raises(RefusedError, match="is not a valid node count"):
        node_range(value, slurm="22.05")


@pytest.mark.parametrize("value", ["2,4,8", "1-15:4", "1-16:5", "1-5:4"])
def test_a_step_of_a_plan_reads_a_list_alike(value: str) -> None:
    assert as_printed(*_node_range(value)) == LISTS[value]


@pytest.mark.proof
@pytest.mark.slow
def test_sbatch_says_so(later_root: Path) -> None:
    for value, said in LISTS.items():
        reading = oracle.read(f'#!/bin/sh\n#SBATCH --nodes="{value}"\n', root=later_root)
        assert said in (reading.options.get("nodes", ""), *reading.messages) or any(
            said in message for message in reading.messages
        ), (value, reading)
