"""What a profile says of OverSubscribe, topology and reservations, as real controllers of two releases have them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.slurm.partition import reservations_in
from sbatchgen.lab.discover.comparison import differences
from sbatchgen.lab.discover.facts import profile_text
from sbatchgen.lab.discover.slurm_answers import ask
from tests.cluster.controller import Controller
from tests.discover.test_update import live

NODES = "NodeName=n[1-9] CPUs=4 RealMemory=1000"
PARTITIONS = (
    "PartitionName=a Nodes=n[1-5] Default=YES OverSubscribe=FORCE:2\n"
    "PartitionName=b Nodes=n[5-9] OverSubscribe=FORCE:1\nPartitionName=c Nodes=n[5-9] OverSubscribe=YES:4"
)
TREE = "SwitchName=s1 Nodes=n[1-5]\nSwitchName=s2 Nodes=n[6-9]\nSwitchName=top Switches=s[1-2]"
BLOCKS = "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockName=b3 Nodes=n9\nBlockSizes=1"
START = "StartTime=2199-01-01T00:00:00 Duration=60"


def discovered(controller: Controller, folder: Path) -> Profile:
    """The profile that discover makes; its file is new, so nothing in it is stale."""
    controller.commands(folder, "scontrol", "sbatch", "sacctmgr", "id")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    cluster = ask(environment)
    made = decode(
        profile_text(cluster, environment, name="site", today="2026-01-31"), Profile, name="site.yaml"
    )
    assert differences(made, cluster) == []
    return made.value


def started(root: Path | None, **more: str) -> Controller:
    return Controller(nodes=NODES, partitions=PARTITIONS, root=root, **more)


def test_partitions_leaf_switches_and_reservations(slurm_root: Path | None, tmp_path: Path) -> None:
    with started(slurm_root, extra="TopologyPlugin=topology/tree", topology=TREE) as controller:
        controller.reserve(f"ReservationName=mine {START} Users=root Nodes=n[1-2]")
        controller.reserve(f"ReservationName=theirs {START} Users=alice Nodes=n3")
        controller.reserve(f"ReservationName=flex {START} Users=root Nodes=n4 Flags=FLEX")
        controller.reserve(f"ReservationName=lesson {START} Users=root Nodes=n5 Flags=WEEKLY")
        profile = discovered(controller, tmp_path)
        script = "#!/bin/bash\n#SBATCH --nodes=5\n"
        refused = [controller.test_only(script, f"--switches={n}", "-pb").returncode for n in (1, 2)]
    limits, parts = profile.limits, profile.partitions
    assert (limits.topology, limits.switch_nodes) == ("tree", 5)
    assert [part.oversubscribed for part in parts.values()] == [True, False, False]
    of = {str(name): (each.partitions, each.until) for name, each in profile.reservations.items()}
    assert of["mine"][0] == ("a",)
    assert str(of["mine"][1]).startswith("2199-01-01T01:00:00")
    assert (of["flex"], of["lesson"]) == (((), None), (("a", "b", "c"), None))
    assert "theirs" not in of
    assert refused == [1, 0]


def test_a_cluster_without_topology(slurm_root: Path | None, tmp_path: Path) -> None:
    with started(slurm_root) as controller:
        assert discovered(controller, tmp_path).limits.topology == "flat"
        assert controller.test_only("#!/bin/bash\n#SBATCH --nodes=5 --switches=1\n").returncode == 0


def test_blocks(later_root: Path, real_slurm: None, tmp_path: Path) -> None:
    with started(later_root, extra="TopologyPlugin=topology/block", topology=BLOCKS) as controller:
        assert discovered(controller, tmp_path).limits.topology == "block"


def reserved(**values: str) -> list[Any]:
    line = " ".join(f"{key}={value}" for key, value in {"ReservationName": "x", **values}.items())
    return [*reservations_in(f"{line}\n")]


OPEN = (
    {"Users": "ann,bob"},
    {"Users": "-bob"},
    {"Accounts": "physics"},
    {"Groups": "(null)", "Users": "(null)"},
)
CLOSED = ({"Users": "bob"}, {"Accounts": "teaching", "Users": "ann"})


def test_who_may_use_a_reservation() -> None:
    said = [reserved(**lists)[0].is_open_to("ann", ["staff"], ["physics"]) for lists in OPEN + CLOSED]
    assert said == [True] * len(OPEN) + [False] * len(CLOSED)


def test_a_reservation_that_is_gone_is_stale() -> None:
    own = 'name: x\nurl: ""\nchecked: x\nreservations: {monday: {}, tuesday: {}}\n'
    rows = differences(
        decode(own, Profile, name="own.yaml"), live("", reservations=reserved(ReservationName="monday"))
    )
    assert [(row.key, row.severity) for row in rows if row.path[0] == "reservations"] == [
        ("reservations.tuesday", "warning")
    ]
