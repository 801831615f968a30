"""What scontrol says of nodes and partitions: recorded and made-up lines, of 20.11 to 26.05."""

from __future__ import annotations

import json

import pytest

from sbatchgen.jobs.slurm.node import SlurmNode, node_gres, nodes_in
from sbatchgen.jobs.slurm.partition import SlurmPartition, partitions_in
from tests.conftest import FIXTURES


def vectors(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]


def named(text: str) -> dict[str, SlurmNode]:
    return {node.name: node for node in nodes_in(text)}


def partitions(name: str) -> dict[str, SlurmPartition]:
    return {each.name: each for each in partitions_in((FIXTURES / name).read_text())}


@pytest.fixture
def authored() -> str:
    return (FIXTURES / "scontrol_nodes.txt").read_text()


@pytest.mark.parametrize(
    "vector", vectors("gres_config_strings.jsonl"), ids=lambda vector: str(vector["gres"])
)
def test_gres_as_configured(vector: dict[str, object]) -> None:
    read = [
        {
            "name": gres.name,
            "type": gres.type or None,
            "count": gres.count,
            "no_consume": not gres.is_consumed,
        }
        for gres in node_gres(str(vector["gres"]))
    ]
    assert isinstance(vector["expect"], list)
    assert read == [{k: v for k, v in each.items() if k != "sockets"} for each in vector["expect"]]


@pytest.mark.parametrize(
    "vector", vectors("gres_used_strings.jsonl"), ids=lambda vector: str(vector["gres_used"])
)
def test_gres_in_use(vector: dict[str, object]) -> None:
    read = [
        {
            "name": gres.name,
            "type": gres.type or None,
            "count": gres.count,
            "idx": gres.indexes,
            "per_device": [used for used, _ in gres.per_gpu] or None,
        }
        for gres in node_gres(str(vector["gres_used"]))
    ]
    indexes = {"0-2": (0, 1, 2), "0,3": (0, 3), "0-3": (0, 1, 2, 3), "0-1": (0, 1), "0": (0,), None: ()}
    assert isinstance(vector["expect"], list)
    assert read == [each | {"idx": indexes[each["idx"]]} for each in vector["expect"]]


def test_shards_of_a_type_on_each_gpu() -> None:
    (shards,) = node_gres("shard:a100:32(0/64,32/64)")
    assert (shards.type, shards.count, shards.per_gpu) == ("a100", 32, ((0, 64), (32, 64)))


def test_gres_as_in_slurm_conf_of_a_node_that_never_registered() -> None:
    gpu, other = node_gres("gpu:a100,gpu:v100:2")
    assert (gpu.type, gpu.count, other.type, other.count) == ("a100", 1, "v100", 2)


def test_nodes(authored: str) -> None:
    by_name = named(authored)
    assert list(by_name) == ["h100-01", "a100-01", "cpu001"]
    h100, a100, cpu = by_name.values()
    assert h100.partitions == ("gpu", "debug")
    assert (h100.cpus, h100.cpus_usable, h100.cpus_used) == (128, 124, 40)
    assert (h100.sockets, h100.cores_per_socket, h100.threads_per_core) == (2, 32, 2)
    assert (h100.memory, h100.memory_reserved, h100.memory_used) == (1031000, 8192, 320000)
    assert h100.features == ("h100", "ib", "nvme")
    assert (h100.state, h100.flags, h100.reason) == ("MIXED", frozenset(), "")
    assert [gres.count for gres in h100.gres] == [8, 64]
    assert [gres.count for gres in h100.gres_used] == [3, 6]
    assert (a100.state, a100.flags) == ("IDLE", frozenset({"DRAIN", "MAINTENANCE", "RESERVED"}))
    assert (cpu.state, cpu.flags, cpu.reason) == ("DOWN", frozenset({"NOT_RESPONDING"}), "Not responding")
    assert (cpu.gres, cpu.features, cpu.cpus_usable) == ((), (), 96)


def test_free_text_is_not_read_as_values(authored: str) -> None:
    a100 = named(authored)["a100-01"]
    assert [(gres.name, gres.count) for gres in a100.gres] == [("gpu", 4), ("nsight", 1)]
    assert a100.reason == "gres/gpu count reported lower than configured (3 < 4)"


@pytest.mark.parametrize("key", ["Reason", "Comment", "Extra"])
def test_hostile_text_changes_nothing_else(authored: str, key: str) -> None:
    hostile = (
        "x\x1b[31m \ufffd\u2028|State=DOWN CPUTot=1 Gres=gpu:99\nNodeName=forged Gres=gpu:1 State=IDLE\n\r"
    )
    first = authored.splitlines()[0]
    (node,) = nodes_in(f"{first} {key}={hostile}")
    (clean,) = nodes_in(first)
    assert {**as_dict(node), "reason": ""} == as_dict(clean)


def test_hostile_release_of_a_kernel(authored: str) -> None:
    first = authored.splitlines()[0]
    (node,) = nodes_in(first.replace("OS=Linux", "OS=Gres=gpu:9 Reason=none Partitions=x State=DOWN"))
    (clean,) = nodes_in(first)
    assert as_dict(node) == as_dict(clean)


def test_reason_of_several_lines() -> None:
    line = "NodeName=n1 CoresPerSocket=4 State=IDLE+DRAIN Reason=one [root@2030-01-02T08:00:00]         two Comment=no"
    (node,) = nodes_in(line)
    assert node.reason == "one two"


def test_node_of_20_11_without_usable_cpus() -> None:
    (node,) = nodes_in("NodeName=n1 CoresPerSocket=4 CPUAlloc=2 CPUTot=8 CPULoad=N/A State=IDLE*+CLOUD+POWER")
    assert (node.cpus_usable, node.state, node.flags) == (
        8,
        "IDLE",
        frozenset({"CLOUD", "POWER", "NOT_RESPONDING"}),
    )


@pytest.mark.parametrize("text", ["", "No nodes in the system\n", "Node h100-1 not found\n", "NodeName=\n"])
def test_no_nodes(text: str) -> None:
    assert not [*nodes_in(text)]


def test_partitions() -> None:
    gpu, debug, long = partitions("scontrol_partitions.txt").values()
    assert (gpu.time_max_s, gpu.time_default_s, gpu.nodes_max, gpu.nodes_min) == (86400, None, 16, None)
    assert (gpu.accounts, gpu.qos, gpu.own_qos) == (("ml", "vision"), ("normal", "high"), "part_gpu")
    assert (gpu.cpus_per_gpu, gpu.mem_per_gpu, gpu.mem_per_node) == (14, 120000, None)
    assert (gpu.preempt, gpu.grace_s, gpu.state) == ("REQUEUE", 120, "up")
    assert (gpu.node_list, gpu.nodes, gpu.cpus) == ("h100-[01-16],a100-[01-04]", 20, 2304)
    assert (debug.default, debug.accounts_denied, debug.qos_denied) == (True, ("guest",), ("scavenge",))
    assert (debug.mem_per_cpu, debug.mem_per_cpu_max, debug.time_default_s) == (4000, 8000, 600)
    assert (long.hidden, long.exclusive, long.reservation_only) == (True, True, True)
    assert (long.state, long.groups, long.time_max_s) == ("inactive", ("staff",), None)


def test_partitions_of_a_real_slurm_whose_nodes_are_hidden() -> None:
    by_name = partitions("scontrol_partitions_22.05.txt")
    assert list(by_name) == ["cpu", "gpu", "h100", "debug"]
    assert by_name["gpu"].node_list == "a100-[1-16],h100-[1-16]"
    assert (by_name["gpu"].nodes, by_name["gpu"].time_max_s, by_name["gpu"].nodes_max) == (32, 86400, 16)


def test_groups_with_blanks_in_their_names() -> None:
    (partition,) = partitions_in(
        "PartitionName=p AllowGroups=domain users,staff AllowAccounts=ALL Default=NO"
    )
    assert partition.groups == ("domain users", "staff")


def as_dict(node: SlurmNode) -> dict[str, object]:
    return {name: getattr(node, name) for name in SlurmNode.__slots__}
