"""The limits of a cluster that an editor shows, for partitions and QOS whose names have dots."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.lab.editor.cluster import ClusterFacts

PROFILE = """\
name: x
url: https://a.example
checked: 2026-01-01
partitions:
  gpu:
    time_max: 1-00:00:00
  gpu.large:
    time_max: 2-00:00:00
  gpu.time_max:
    nodes_max: 2
  gpu.nodes_max:
    nodes_max: 3
qos:
  long:
    time_max: 1-00:00:00
  long.time_max:
    time_max: 3-00:00:00
sources:
  - {at: example/docs@0123abc gpu.md:1 1f2e3d4c, keys: [partitions.gpu]}
  - {at: example/docs@0123abc large.md:1 1f2e3d4c, keys: [partitions.gpu.large.time_max]}
"""


@pytest.fixture
def cluster() -> ClusterFacts:
    return ClusterFacts(document=decode(PROFILE, Profile, name="x.yaml"), folder=Path())


@pytest.mark.parametrize(
    ("option", "value", "partition", "shown"),
    [
        ("partition", "gpu", "", ["gpu.time_max: 1-00:00:00 x.yaml:5"]),
        ("partition", "gpu.large", "", ["gpu.large.time_max: 2-00:00:00 x.yaml:8"]),
        ("partition", "gpu.time_max", "", ["gpu.time_max.nodes_max: 2 x.yaml:10"]),
        ("time", "", "gpu", ["gpu.time_max: 1-00:00:00 x.yaml:5"]),
        ("nodes", "", "gpu", []),
        ("nodes", "", "gpu.nodes_max", ["gpu.nodes_max.nodes_max: 3 x.yaml:12"]),
        ("qos", "long", "", ["qos.long.time_max: 1-00:00:00 x.yaml:14"]),
        ("qos", "long.time_max", "", ["qos.long.time_max.time_max: 3-00:00:00 x.yaml:17"]),
    ],
)
def test_a_limit_belongs_to_the_partition_or_qos_of_its_name(
    cluster: ClusterFacts, option: str, value: str, partition: str, shown: list[str]
) -> None:
    lines = cluster.limits(option, value, [partition])
    limits = [line.split("`")[1] for line in lines]
    places = [line.rpartition("(")[2] if "documented" not in line else line for line in lines]
    assert limits == [text.rpartition(" ")[0] for text in shown]
    for place, text in zip(places, shown, strict=True):
        assert text.rpartition(" ")[2] in place


@pytest.mark.parametrize(
    ("key", "file"),
    [
        ("partitions.gpu.nodes", "gpu.md"),
        ("partitions.gpu", "gpu.md"),
        ("partitions.gpu.large.nodes", ""),
        ("partitions.gpu.large.time_max", "large.md"),
    ],
)
def test_a_source_describes_no_other_partition(cluster: ClusterFacts, key: str, file: str) -> None:
    assert cluster.source(key).rpartition("/")[2].partition("#")[0] == file
