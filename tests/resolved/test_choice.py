"""The partition of a job that names none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sbatchgen.jobs.resolved.choice import LATER
from tests.cluster.controller import Controller
from tests.conftest import Command
from tests.tables import hold

HEAD = "name: ours\nurl: https://example.org\nchecked: 2026-01-01\nslurm: 22.05\n"
FACTS = """
partitions:
  cpu: {gpus_per_node: 0, cpus_per_node: 64, mem_per_node: 200000M, time_max: 7-00:00:00, nodes: "c[1-4]"}
  debug: {gpus_per_node: 4, gpu_type: a100, shards_per_gpu: 16, cpus_per_node: 32, mem_per_node: 400000M,
          time_max: 02:00:00, nodes_max: 1, nodes: "g[1-8]", options: {time: 00:30:00}}
  gpu: {gpus_per_node: 4, gpu_type: a100, shards_per_gpu: 16, cpus_per_node: 32, mem_per_node: 400000M,
        time_max: 1-00:00:00, nodes_max: 4, nodes: "g[1-8]", features: [ib]}
  old: {gpus_per_node: 4, gpu_type: a100, cpus_per_node: 32, time_max: 30-00:00:00, state: down}
  shut: {gpus_per_node: 4, gpu_type: a100, cpus_per_node: 32, time_max: 30-00:00:00, state: inactive}
  reserved: {gpus_per_node: 4, gpu_type: a100, cpus_per_node: 32, time_max: 30-00:00:00, reservation_only: true}
  big: {gpus_per_node: 8, gpu_type: h100, cpus_per_node: 64, mem_per_node: 900000M, time_max: 3-00:00:00,
        nodes_max: 2, nodes: "h[1-2]"}
  theirs: {gpus_per_node: 8, gpu_type: h100, cpus_per_node: 64, mem_per_node: 900000M, time_max: 14-00:00:00,
           nodes_min: 2, nodes: "h[1-2]", accounts: [chem, bio]}
"""
DEFAULT = "default_partition: cpu\n"
DOWN, SHUT, RESERVED = "down", "inactive", "only for jobs with a reservation"
THEIRS = "only for account chem or bio"
SHORT, DAY = "time limit 0-02:00:00 is less than 1-12:00:00", "time limit 1-00:00:00 is less than 1-12:00:00"
ONE, FOUR = "1 node at most", "4 nodes at most"

# The job, the partition, and why those before it are passed over.
CHOSEN: list[tuple[str, str, dict[str, str]]] = [
    ("cpu", "cpu", {}),
    ("cpu --time 6-00:00:00", "cpu", {}),
    ("cpu --time 10-00:00:00 --account bio --nodes 1", "", {}),
    ("single", "debug", {"cpu": "no GPUs"}),
    ("single --gres shard:8", "debug", {"cpu": "no shards"}),
    ("single --time 03:00:00", "gpu", {"debug": "time limit 0-02:00:00 is less than 0-03:00:00"}),
    ("single --constraint ib --nodelist g2", "debug", {"cpu": "no node g2, no GPUs"}),
    ("ddp", "debug", {"cpu": "no GPUs"}),
    ("ddp --nodes 2", "gpu", {"cpu": "no GPUs", "debug": ONE}),
    (
        "ddp --nodes 2 --gpus-per-node 4 --time 1-12:00:00",
        "big",
        {"debug": f"{SHORT}, {ONE}", "gpu": DAY, "old": DOWN},
    ),
    ("ddp --gpus-per-node 8 --nodes 1", "big", {"gpu": "4 GPUs a node", "shut": f"{SHUT}, 4 GPUs a node"}),
    (
        "ddp --gpus-per-node h100:2 --nodes 1",
        "big",
        {"debug": "GPUs of type a100", "gpu": "GPUs of type a100"},
    ),
    ("ddp --nodes 1 --mem 500G", "big", {"debug": "400000M of memory a node"}),
    ("single --cpus-per-task 40", "big", {"debug": "32 CPUs a node", "gpu": "32 CPUs a node"}),
    (
        "ddp --nodes 2 --gpus-per-node 4 --time 5-00:00:00 --account bio",
        "theirs",
        {"old": DOWN, "reserved": RESERVED},
    ),
    ("ddp --nodes 2 --time 5-00:00:00 --reservation r", "reserved", {"old": DOWN, "shut": SHUT}),
    ("ddp --nodes 2 --time 5-00:00:00", "", {"theirs": THEIRS, "gpu": f"{DAY[:-10]}5-00:00:00"}),
    ("ddp --nodes 9", "", {"debug": ONE, "gpu": FOUR, "big": "2 nodes at most"}),
    ("ddp --nodes 2 --partition debug", "debug", {}),
]


def explained(command: Command, job: str, profile: Path) -> tuple[dict[str, tuple[str, str]], int]:
    """Value and origin of each row about partitions, and the exit status."""
    result = command("explain", *job.split(), "--profile", str(profile), "--runtime", "host")
    lines = [line for line in result.out.splitlines() if line.startswith(("partition", "--partition"))]
    rows = (list(filter(None, (part.strip() for part in line.split("  ")))) for line in lines)
    return {row[0]: (row[1], row[2]) for row in rows}, result.status


@pytest.fixture
def profile(folder: Path) -> Path:
    """A cluster whose default partition has no GPUs."""
    path = folder / "ours.yaml"
    path.write_text(HEAD + DEFAULT + FACTS)
    return path


def test_the_default_partition_or_the_first_that_fits(profile: Path, command: Command) -> None:
    def check(job: str, wanted: str, passed_over: dict[str, str]) -> None:
        rows, status = explained(command, job, profile)
        said = {name.split()[1]: why for name, (_, why) in rows.items() if name.startswith("partition ")}
        assert said.items() >= passed_over.items(), said
        if wanted:
            assert rows["--partition"][0] == wanted
            assert status == 0 or "--partition" in job
            assert ("partition" in rows) == bool(passed_over)
            assert not passed_over or wanted not in said
        else:
            assert status in (3, 4)
            assert set(said) == {"cpu", "debug", "gpu", "old", "shut", "reserved", "big", "theirs"}

    hold(check, CHOSEN)


def test_what_fits_nowhere_is_refused_with_the_reason_of_each_partition(
    profile: Path, command: Command
) -> None:
    result = command("render", "single", "--time", "40-00:00:00", "--profile", str(profile))
    assert result.status == 4
    assert "error: partition 'cpu' has no GPUs" in result.err
    (line,) = re.findall("info: the job fits no other partition .*", result.err)
    for name in ("debug", "gpu", "old", "shut", "reserved", "big", "theirs"):
        assert len(re.findall(rf"\b{name}\b[^;]*: ", line)) == 1
    assert result.err.count("'cpu'") == 2  # its GPUs and its time limit, each with a fix


def test_the_options_of_a_partition_are_those_of_the_chosen_one(profile: Path, command: Command) -> None:
    """They make a job fit, and never keep it out: debug has half an hour, and takes two."""
    script = command("render", "single", "--profile", str(profile)).out
    assert "#SBATCH --partition=debug\n" in script
    assert "#SBATCH --time=0-00:30:00\n" in script
    text = HEAD + "default_partition: a\npartitions:\n"
    text += "  a: {gpus_per_node: 1, time_max: 1-00:00:00, options: {time: 1-00:00:00, qos: a}}\n"
    text += "  b: {gpus_per_node: 4, time_max: 01:00:00, options: {qos: b}}\n"
    text += "qos: {a: {gpus_max: 1}, b: {nodes_max: 1}}\n"
    profile.write_text(text)
    script = command("render", "ddp", "--gpus-per-node", "2", "--nodes", "1", "--profile", str(profile)).out
    assert "#SBATCH --partition=b\n#SBATCH --qos=b\n" in script
    assert "#SBATCH --time=0-01:00:00\n" in script


def test_the_review_says_it_in_a_line(profile: Path, command: Command) -> None:
    shown = command("review", "ddp", "--nodes", "2", "--profile", str(profile)).out
    assert "partition gpu    " in shown
    assert "the first that fits; cpu: no GPUs; debug: 1 node at most\n" in shown
    assert "the first that fits" not in command("review", "cpu", "--profile", str(profile)).out


def test_a_script_names_it_only_where_the_cluster_would_take_another(profile: Path, command: Command) -> None:
    """`omit` keeps the default one out of the script, and all of them where no partition is the default."""
    omit = "omit: [partition]\n"
    for default, job, wanted in (
        (DEFAULT, "cpu", ""),
        (DEFAULT, "ddp", "debug"),
        ("", "ddp", ""),
        ("", "ddp --partition big", "big"),
    ):
        profile.write_text(HEAD + default + omit + FACTS)
        script = command("render", *job.split(), "--profile", str(profile)).out
        assert ("--partition=" in script) == bool(wanted)
        assert not wanted or f"#SBATCH --partition={wanted}\n" in script
    profile.write_text(HEAD + omit + FACTS)
    rows, status = explained(command, "ddp --time 03:00:00", profile)
    assert (rows["partition"], status) == (
        ("gpu", "the first that fits; the script leaves it to the cluster"),
        0,
    )


def test_the_first_that_fits_is_taken_where_there_is_no_default_one(profile: Path, command: Command) -> None:
    profile.write_text(HEAD + FACTS)
    assert "--partition=cpu\n" in command("render", "cpu", "--profile", str(profile)).out
    assert "--partition=gpu\n" in command("render", "ddp", "--nodes", "2", "--profile", str(profile)).out
    refused = command(
        "render", "ddp", "--nodes", "2", "--max-restarts", "0", "--mem", "2T", "--profile", str(profile)
    )
    assert (refused.status, "error: the job fits no partition (cpu: " in refused.err) == (4, True)


def test_the_partition_of_a_mode_has_the_facts_of_that_mode(profile: Path, command: Command) -> None:
    profile.write_text(f"{HEAD}{DEFAULT}{FACTS}modes: {{ddp: {{partition: big}}}}\n")
    script = command("render", "ddp", "--profile", str(profile)).out
    assert "#SBATCH --partition=big\n" in script
    assert "#SBATCH --gpus-per-node=8\n" in script


def test_a_warning_alone_refuses_nothing(profile: Path, command: Command) -> None:
    """Where the only partition is down, its jobs wait, as before."""
    profile.write_text(
        HEAD + "default_partition: a\npartitions: {a: {state: down, gpus_per_node: 4}, b: {state: down}}\n"
    )
    result = command("render", "single", "--profile", str(profile))
    assert result.status == 0
    assert "partition 'a' is down" in result.err
    assert "--partition=a\n" in result.out


NODES = """NodeName=c[1-4] CPUs=64 RealMemory=200000
NodeName=g[1-8] CPUs=32 RealMemory=400000 Gres=gpu:a100:4,shard:64 Feature=ib
NodeName=h[1-2] CPUs=64 RealMemory=900000 Gres=gpu:h100:8"""
PARTITIONS = """PartitionName=cpu Nodes=c[1-4] Default=YES MaxTime=7-00:00:00
PartitionName=debug Nodes=g[1-8] MaxTime=02:00:00 MaxNodes=1
PartitionName=gpu Nodes=g[1-8] MaxTime=1-00:00:00 MaxNodes=4
PartitionName=old Nodes=g[1-8] MaxTime=30-00:00:00 State=DOWN
PartitionName=shut Nodes=g[1-8] MaxTime=30-00:00:00 State=INACTIVE
PartitionName=reserved Nodes=g[1-8] MaxTime=30-00:00:00 ReqResv=YES
PartitionName=big Nodes=h[1-2] MaxTime=3-00:00:00 MaxNodes=2
PartitionName=theirs Nodes=h[1-2] MaxTime=14-00:00:00 MinNodes=2"""
GRES = """NodeName=g[1-8] Name=gpu Type=a100 File=/dev/nvidia[0-3]
NodeName=g[1-8] Name=shard Count=64
NodeName=h[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-7]"""


@pytest.mark.proof
def test_slurm_takes_the_chosen_one_and_refuses_the_others(
    profile: Path, command: Command, controller_factory: Callable[..., Controller]
) -> None:
    """Not asked: one that is down, which takes jobs and starts none, and the accounts, which need a database."""
    controller = controller_factory(
        nodes=NODES, partitions=PARTITIONS, gres=GRES, extra="EnforcePartLimits=ALL"
    )
    profile.write_text(f"{HEAD}{DEFAULT}options: {{cpus_per_task: 1, mem: 1G}}{FACTS}")
    asked = []

    def check(job: str, wanted: str, _: dict[str, str]) -> None:
        rows, _status = explained(command, job, profile)
        script = command("render", *job.split(), "--profile", str(profile), "--runtime", "host").out
        assert controller.test_only(script).returncode == 0
        for name, (_value, why) in rows.items():
            partition = name.partition(" ")[2]
            if partition not in ("", "old") and why != LATER and not why.startswith("only for account"):
                verdict = controller.test_only(script, f"--partition={partition}")
                assert verdict.returncode == 1, (partition, why, verdict)
                asked.append(partition)

    hold(check, [case for case in CHOSEN if case[1] and not re.search("--partition|--reservation", case[0])])
    assert len(asked) > 20
