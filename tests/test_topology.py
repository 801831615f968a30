"""CPUs of GPUs: eight machines, and the masks that guides print."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.rules.judge import check
from sbatchgen.topology import cpus_of_gpus, mask
from sbatchgen.units import CpuList
from tests.conftest import Command
from tests.scripts import plan, script

TRENTO = "package:1 numa:4 l3:2 core:8 pu:2(indexes=64*2:1*64)"
ORDER = (6, 7, 2, 3, 0, 1, 4, 5)  # the L3 of each half of an MI250X
LOW_NOISE = range(0, 64, 8)
# LUMI-AI-Guide, 05-multi-gpu-and-node/run_ddp_srun_4.sh
LUMI = (
    "0x00fe000000000000,0xfe00000000000000,0x0000000000fe0000,0x00000000fe000000,0x00000000000000fe,"
    "0x000000000000fe00,0x000000fe00000000,0x0000fe0000000000"
)
# olcf-user-docs, systems/frontier_user_guide.rst: the cores of each L3 that jobs get, by GPU.
FRONTIER = ["49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47"]
MACHINES = {
    "LUMI-G": (TRENTO, "l3", ORDER, LOW_NOISE, FRONTIER),
    "Frontier": ("Package:1 L3:8 Core:8 PU:2(indexes=64*2:1*64)", "l3", ORDER, LOW_NOISE, FRONTIER),
    "Perlmutter": (TRENTO, "numa", (3, 2, 1, 0), (), ["48-63", "32-47", "16-31", "0-15"]),
    "DGX A100": (
        "package:2 numa:4 l3:4 core:4 pu:2(indexes=128*2:1*128)",
        "numa",
        (3, 3, 1, 1, 7, 7, 5, 5),
        (),
        ["48-55", "56-63", "16-23", "24-31", "112-119", "120-127", "80-87", "88-95"],
    ),
    "DGX H100": (
        "package:2 numa:1 l3:1 core:56 pu:2(indexes=112*2:1*112)",
        "numa",
        (0, 0, 0, 0, 1, 1, 1, 1),
        (),
        ["0-13", "14-27", "28-41", "42-55", "56-69", "70-83", "84-97", "98-111"],
    ),
    "GH200 x4": (
        "package:4 numa:1 l3:1 core:72 pu:1",
        "numa",
        (0, 1, 2, 3),
        (),
        ["0-71", "72-143", "144-215", "216-287"],
    ),
    "p5.48xlarge": (
        "package:2 numa:1 l3:6 core:8 pu:2(indexes=96*2:1*96)",
        "package",
        (0, 0, 0, 0, 1, 1, 1, 1),
        (),
        ["0-11", "12-23", "24-35", "36-47", "48-59", "60-71", "72-83", "84-95"],
    ),
    "Puhti": (
        "Package:2 NUMANode:1(memory=192GB) L3:1 Core:20 PU:1",
        "numa",
        (0, 0, 1, 1),
        (),
        ["0-9", "10-19", "20-29", "30-39"],
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_each_gpu_gets_the_cores_beside_it(name: str) -> None:
    synthetic, near, gpus, reserved, cpus = MACHINES[name]
    assert cpus_of_gpus(synthetic, near, gpus, reserved=reserved) == cpus
    assert [CpuList.parse(each) for each in cpus] == cpus


def test_the_masks_are_those_of_the_guides() -> None:
    lists = cpus_of_gpus(TRENTO, "l3", ORDER, reserved=LOW_NOISE)
    assert [int(mask(each), 16) for each in lists] == [int(each, 16) for each in LUMI.split(",")]
    # lumi-userguide, lumig-job.md and distribution-binding.md
    for text, cpus in (("7e000000000000", "49-54"), ("fe000000000000,fe00000000000000", "49-55 57-63")):
        assert [mask(each) for each in cpus.split()] == [f"0x{each}" for each in text.split(",")]


def test_both_threads_of_a_core_are_apart() -> None:
    (cpus,) = cpus_of_gpus(TRENTO, "numa", (3,), threads=2)
    assert cpus == "48-63,112-127"
    assert cpus_of_gpus("core:2 pu:2(indexes=0,2,1,3)", "core", (1,), threads=2) == ["1,3"]
    assert cpus_of_gpus("core:2 pu:2", "core", (1,), threads=2) == ["2-3"]


@pytest.mark.parametrize(
    ("synthetic", "near", "gpus"),
    [
        ("numa:2", "numa", (0,)),
        ("numa:2 core:2 pu:1", "l3", (0,)),
        ("numa:2 core:2 pu:1", "numa", (2,)),
        ("core:2 pu:2", "pu", (0,)),
        ("core:0 pu:1", "core", (0,)),
        ("core:x pu:1", "core", (0,)),
        ("core:999999 pu:99", "core", (0,)),
        ("core:2 pu:1(indexes=0,0)", "core", (0,)),
        ("core:2 pu:1(indexes=numa:core)", "core", (0,)),
    ],
)
def test_a_wrong_description_is_refused(synthetic: str, near: str, gpus: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"has no|there is no|several|not a level|too many|indexes="):
        cpus_of_gpus(synthetic, near, gpus)


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
    of = plan("ddp", here, launcher="srun")
    assert "--cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000," in script(of)
    assert check(of) == []


def test_a_task_for_several_gpus_is_not_bound(here: Path) -> None:
    for of in (plan("ddp", here), plan("single", here), plan("cpu", here)):
        assert "cpu-bind" not in script(of)
        assert check(of) == []


def test_the_cpus_of_a_part_of_a_node_are_not_known(here: Path) -> None:
    of = plan("ddp", here, launcher="srun", gpus_per_node="2")
    assert "cpu-bind" not in script(of)
    (finding,) = check(of)
    assert (finding.rule, finding.severity) == ("SB040", "info")
    (finding,) = check(plan("ddp", here, launcher="srun", partition="other"))
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
