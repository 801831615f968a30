"""Each task bound to the CPUs of its GPU, as guides of centres print the masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.texts import CpuList
from sbatchgen.jobs.judge.job_check import check
from tests.conftest import Command
from tests.scripts import resolved, script

# olcf-user-docs, systems/frontier_user_guide.rst: the cores of each L3 that jobs get, by GPU.
FRONTIER = ["49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47"]
# LUMI-AI-Guide, 05-multi-gpu-and-node/run_ddp_srun_4.sh
LUMI = (
    "0x00fe000000000000,0xfe00000000000000,0x0000000000fe0000,0x00000000fe000000,0x00000000000000fe,"
    "0x000000000000fe00,0x000000fe00000000,0x0000fe0000000000"
)


def test_the_masks_are_those_of_the_guides() -> None:
    assert [int(CpuList(each).mask, 16) for each in FRONTIER] == [int(each, 16) for each in LUMI.split(",")]
    # lumi-userguide, lumig-job.md and distribution-binding.md
    assert [CpuList(each).mask for each in ("49-54", "49-55", "57-63")] == [
        "0x7e000000000000",
        "0xfe000000000000",
        "0xfe00000000000000",
    ]
    assert CpuList("1,3").mask == "0xa"


PROFILE = f"""
name: here
url: https://example.org
checked: 2026-01-01
default_partition: g
partitions:
  g: {{gpus_per_node: 8, cpus_per_node: 56, gpu_cpus: [{", ".join(FRONTIER)}]}}
  other: {{gpus_per_node: 8, cpus_per_node: 56}}
step: {{cpu-bind: gpu_cpus}}
"""


@pytest.fixture
def here(folder: Path) -> Path:
    """A profile of such nodes."""
    file = folder / "here.yaml"
    file.write_text(PROFILE)
    return file


def test_each_task_is_bound_to_the_cpus_of_its_gpu(here: Path) -> None:
    of = resolved("ddp", here, launcher="srun")
    assert "--cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000," in script(of)
    assert check(of) == []


def test_a_task_for_several_gpus_is_not_bound(here: Path) -> None:
    for of in (resolved("ddp", here), resolved("single", here), resolved("cpu", here)):
        assert "cpu-bind" not in script(of)
        assert check(of) == []


def test_the_cpus_of_a_part_of_a_node_are_not_known(here: Path) -> None:
    of = resolved("ddp", here, launcher="srun", gpus_per_node="2")
    assert "cpu-bind" not in script(of)
    (finding,) = check(of)
    assert (finding.rule, finding.severity) == ("SB040", "info")
    (finding,) = check(resolved("ddp", here, launcher="srun", partition="other"))
    assert finding.problem.what == "partition 'other' has no gpu_cpus, so tasks can't be bound to them"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("49-55, 57-63, ", "57-63, ", "7 lists for 8 GPUs"),
        ("49-55", "55-49", "is not a list of CPUs in ascending order"),
        ("49-55", "49-x", "is not a list of CPUs, as 1-7,65-71"),
        ("49-55", "9999", "is not a list of CPUs in ascending order, up to 8191"),
        ("49-55", "1-2-3", "is not a list of CPUs"),
    ],
)
def test_nonsense_is_refused(here: Path, command: Command, old: str, new: str, what: str) -> None:
    here.write_text(PROFILE.replace(old, new))
    assert what in command("profile", "check", "./here.yaml").err
