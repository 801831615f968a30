"""What a job asks for where a site counts GPUs in total, names their type, or gives time by number of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.units import NodeRange
from sbatchgen.jobs.judge.job_check import check
from tests.conftest import Command
from tests.scripts import errors, resolved, script

PROFILE = """
name: here
url: https://example.org
checked: 2026-01-01
default_partition: debug
gpu_request: gpus
partitions:
  debug: {gpus_per_node: 4, cpus_per_node: 64, node_minutes_max: 90, gpu_type: gh200, gpu_type_required: true}
  bins:
    gpus_per_node: 4
    cpus_per_gpu: 7
    time_max: 1-00:00:00
    time_by_nodes: {1-2: 00:30:00, 3-8: 12:00:00, 9-: 1-00:00:00}
  unknown: {gpus_per_node: 4}
"""


@pytest.fixture
def here(folder: Path) -> Path:
    """A profile with limits that depend on the number of nodes."""
    file = folder / "here.yaml"
    file.write_text(PROFILE)
    return file


@pytest.mark.parametrize(
    ("said", "total", "each"),
    [
        ({"nodes": 1}, "gh200:4", None),
        ({"nodes": 1, "gpus_per_node": "2"}, "gh200:2", None),
        ({"nodes": 2}, None, "gh200:4"),
        ({"nodes": 3, "launcher": "srun", "partition": "bins"}, None, "4"),
        ({"nodes": 2, "gpus_per_node": "2"}, None, "gh200:2"),
        ({"nodes": 2, "gpus_per_node": "h100:2"}, None, "h100:2"),
        ({"nodes": 2, "gpus": "gh200:6"}, "gh200:6", None),
    ],
)
def test_a_total_of_gpus_is_asked_for_on_one_node(
    here: Path, said: dict[str, Any], total: str | None, each: str | None
) -> None:
    """Slurm may split a total as 3 and 1."""
    of = resolved("ddp", here, **said)
    assert (of.options.gpus, of.options.gpus_per_node, of.options.gres) == (total, each, None)


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ({"gpus": "gh200:4"}, "--nodes 1, or --gpus-per-node=gh200:2 instead of --gpus"),
        ({"gpus": "gh200:6"}, "--gpus-per-node=gh200:3 instead of --gpus"),
        ({"gpus": "gh200:7"}, "--gpus-per-node=gh200:N instead of --gpus, with as many on each node"),
        ({"gpus": "gh200:8"}, ""),
        ({"gpus": "gh200:2"}, ""),
        ({"gpus": "gh200:6", "gpus_per_node": "gh200:3"}, ""),
        ({"nodes": 1, "gpus": "gh200:3"}, ""),
    ],
)
def test_a_total_that_slurm_may_split_unevenly_is_an_error(
    here: Path, said: dict[str, Any], fix: str
) -> None:
    fixes = [each.problem.fix for each in errors(resolved("ddp", here, **said)) if each.rule == "SB242"]
    assert fixes == [fix] * bool(fix)


def test_a_total_of_gpus_is_all_right(here: Path) -> None:
    of = resolved("ddp", here, nodes=2, launcher="srun")
    assert errors(of) == []
    assert (of.gpus_per_node, of.nproc_per_node) == (4, 4)


def test_a_request_in_another_form_needs_the_type(here: Path) -> None:
    (finding,) = errors(resolved("ddp", here, gres="gpu:4"))
    assert finding.problem.what == "a request for GPUs of partition 'debug' must name their type"
    assert finding.problem.fix == "ask for gh200:4"


def test_the_time_limit_fits_the_number_of_nodes(here: Path) -> None:
    times = {nodes: resolved("ddp", here, nodes=nodes).options.time for nodes in (1, 4, 90, 91)}
    assert times == {1: 3600, 4: 22 * 60, 90: 60, 91: 60}
    assert resolved("ddp", here, nodes=2, partition="bins").options.time == 1800


@pytest.mark.parametrize(
    ("said", "what", "fix"),
    [
        (
            {"nodes": 4, "time": 3600},
            "4 nodes of partition 'debug' may run for 0-00:22:00, not for 0-01:00:00: a job may have 90 node-minutes",
            "set --time 0-00:22:00 or less or --nodes 1",
        ),
        ({"nodes": 91, "time": 60}, "91 nodes of partition 'debug' may run for 0-00:00:00", "set --nodes 90"),
        (
            {"partition": "bins", "nodes": 2, "time": 36000},
            "2 nodes of partition 'bins' may run for 0-00:30:00, not for 0-10:00:00",
            "set --time 0-00:30:00 or less or --nodes 3",
        ),
    ],
)
def test_a_longer_time_is_an_error(here: Path, said: dict[str, Any], what: str, fix: str) -> None:
    (finding,) = errors(resolved("ddp", here, **said))
    assert finding.problem.what.startswith(what)
    assert finding.problem.fix == fix


def test_a_partition_is_chosen_by_its_time_for_so_many_nodes(here: Path, command: Command) -> None:
    out = command("render", "ddp", "--profile", "./here.yaml", "--nodes", "4", "--time", "10:00:00").out
    assert "#SBATCH --partition=bins" in out


@pytest.mark.parametrize("text", ["", "0", "0-4", "5-4", "-3", "a", "1-2-3", "1,2", "1" * 10])
def test_a_range_of_nodes_is_read_strictly(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of nodes"):
        NodeRange.parse(text)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("3-8: 12", "2-8: 12", "the ranges 1-2 and 2-8 overlap"),
        ("9-: 1-00", "9-: 2-00", "2-00:00:00 for 9- nodes is more than time_max"),
        ("gpu_type: gh200, ", "", "no key gives the type for which jobs ask"),
        ("node_minutes_max: 90", "node_minutes_max: 0", "'0' must be 1 or more"),
    ],
)
def test_nonsense_is_refused(here: Path, command: Command, old: str, new: str, what: str) -> None:
    here.write_text(PROFILE.replace(old, new))
    assert what in command("profile", "check", "./here.yaml").err


def test_a_guessed_number_of_cpus_is_shown(here: Path, command: Command) -> None:
    words = ["ddp", "--profile", "./here.yaml", "--partition"]
    said = "a guess; write cpus_per_gpu of the partition into the profile"
    assert "--cpus-per-task 16" in (out := command("review", *words, "unknown").out)
    assert said in out
    assert said in command("explain", *words, "unknown").out
    assert said not in command("review", *words, "bins").out


def test_a_whole_node_of_unknown_size_gives_all_its_cpus(here: Path, command: Command) -> None:
    of = resolved("ddp", here, partition="unknown", exclusive=True)
    assert of.options.cpus_per_task is None
    assert "cpus-per-task" not in script(of)
    assert "OMP_NUM_THREADS=$(((SLURM_CPUS_ON_NODE + 3) / 4))" in script(of)
    assert [finding for finding in check(of) if finding.severity != "info"] == []
    words = ["ddp", "--profile", "./here.yaml", "--partition", "unknown", "--exclusive"]
    out = command("review", *words).out
    assert "guess" not in out
    assert "each node   4 of 4 GPUs, all CPUs, the cluster's default memory; exclusive" in out
    assert resolved("ddp", here, partition="debug", exclusive=True).options.cpus_per_task == 64
