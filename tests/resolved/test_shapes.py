"""Partitions with several kinds of nodes: what a job gets by default, and what fits on none of them."""

from __future__ import annotations

from typing import Any

import pytest

from sbatchgen.jobs.inputs.document import Document, decode, parse_scalar
from sbatchgen.jobs.inputs.flags import key_type
from sbatchgen.jobs.inputs.layers import Layer, Level
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

PROFILE = """
name: site
url: https://example.org
checked: 2026-01-01
default_partition: gpu
partitions:
  gpu:
    shapes:
      - {nodes: 2, cpus_per_node: 96, mem_per_node: 960G, gpus_per_node: 8, gpu_types: {h100: 8}}
      - {nodes: 4, cpus_per_node: 32, mem_per_node: 240G, gpus_per_node: 4, gpu_types: {a100: 4}}
      - {nodes: 8, cpus_per_node: 128, mem_per_node: 480G, gpus_per_node: 0}
"""


@pytest.fixture
def profile() -> Document[Profile]:
    return decode(PROFILE, Profile, name="site.yaml")


def resolved(profile: Document[Profile], mode: str, **options: Any) -> ResolvedJob:
    values = {
        f"options.{name}": parse_scalar(str(v), key_type(f"options.{name}")) for name, v in options.items()
    }
    flags = Layer(Level.COMMAND_LINE, values, dict.fromkeys(values, "flag"))
    return resolve(profile, [flags], mode_name=mode, name=mode)


def ids(resolved: ResolvedJob) -> set[str]:
    return {finding.rule for finding in check(resolved, log_folders_made=True) if finding.severity == "error"}


def test_a_partition_has_what_its_largest_nodes_have(profile: Document[Profile]) -> None:
    gpu = profile.value.partitions["gpu"]  # type: ignore[index]
    assert (gpu.cpus_per_node, str(gpu.mem_per_node), gpu.gpus_per_node) == (128, "960G", 8)
    assert dict(gpu.gpu_types) == {"h100": 8, "a100": 4}


@pytest.mark.parametrize(
    ("asked", "cpus", "memory"),
    [("8", 12, "960G"), ("1", 8, "60G"), ("h100:2", 12, "240G"), ("a100:4", 8, "240G")],
)
def test_a_job_gets_the_share_that_all_fitting_nodes_have(
    profile: Document[Profile], asked: str, cpus: int, memory: str
) -> None:
    made = resolved(profile, "ddp", gpus_per_node=asked)
    processes = made.nproc_per_node
    assert (made.options.cpus_per_task, str(made.options.mem)) == (cpus * processes, memory)
    assert not ids(made)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gpus_per_node": "8", "cpus_per_task": 128}, {"SB237"}),
        ({"gpus_per_node": "a100:4", "mem": "480G"}, {"SB237"}),
        ({"gpus_per_node": "8", "nodes": 3}, {"SB237"}),
        ({"gpus_per_node": "16"}, {"SB207"}),
        ({"gpus_per_node": "8", "nodes": 2}, set()),
        ({"gpus_per_node": "2", "nodes": 6}, set()),
    ],
)
def test_what_fits_on_no_kind_of_node(
    profile: Document[Profile], options: dict[str, Any], expected: set[str]
) -> None:
    made = resolved(profile, "ddp", **options)
    assert ids(made) == expected


def test_cpu_jobs_fit_on_the_smallest_nodes(profile: Document[Profile]) -> None:
    made = resolved(profile, "cpu")
    assert made.options.cpus_per_task is not None
    assert made.options.cpus_per_task <= 32


def test_the_type_to_name_is_one_of_which_a_node_has_as_many() -> None:
    text = PROFILE.replace("gpu_types: {h100: 8}", "gpu_types: {mig: 2, h100: 6}")
    made = resolved(decode(text, Profile, name="site.yaml"), "ddp", gpus_per_node=6)
    (fix,) = (
        finding.problem.fix for finding in check(made, log_folders_made=True) if finding.rule == "SB209"
    )
    assert fix == "name one, as h100:6"


FEW_OF_A_TYPE = """
name: site
url: https://example.org
checked: 2026-01-01
default_partition: gpu
partitions:
  gpu:
    shapes:
      - {nodes: 4, cpus_per_node: 32, mem_per_node: 240G, gpus_per_node: 4, gpu_types: {v100: 4}}
      - {nodes: 1, cpus_per_node: 96, mem_per_node: 960G, gpus_per_node: 8, gpu_types: {a100: 8}}
      - {nodes: 1, cpus_per_node: 96, mem_per_node: 960G, gpus_per_node: 7, gpu_types: {1g.10gb: 7}}
"""


@pytest.mark.parametrize(("nodes", "gpus"), [(1, "a100:8"), (2, "v100:4"), (4, "v100:4"), (5, "1")], ids=str)
def test_beside_slices_a_job_names_a_type_that_enough_nodes_have(nodes: int, gpus: str) -> None:
    made = resolved(decode(FEW_OF_A_TYPE, Profile, name="site.yaml"), "ddp", nodes=nodes)
    assert made.options.gpus_per_node == gpus
    assert not ids(made)


def test_a_job_with_too_many_nodes_keeps_the_gpus_of_a_node() -> None:
    text = "\n".join(line for line in FEW_OF_A_TYPE.splitlines() if "a100" not in line and "1g" not in line)
    made = resolved(decode(text, Profile, name="site.yaml"), "ddp", nodes=10)
    assert made.options.gpus_per_node == "4"
    why = "the partition has GPUs in 4 nodes, and the job wants 10"
    assert made.origins["options.gpus_per_node"].where == why
    (error,) = (finding for finding in check(made, log_folders_made=True) if finding.severity == "error")
    assert error.problem.what.startswith("partition 'gpu' has only 4 nodes with 4 GPUs")
    assert error.problem.what.endswith("but 10 nodes were asked for")
