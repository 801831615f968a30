"""Which GPUs and shards are free, and which jobs would start: of a real Slurm that is kept busy, and of others' lines."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.jobs.slurm.gpu_nodes import GpuNode, count_gpus, gpu_nodes, node_with_gpus, why_unavailable
from sbatchgen.jobs.slurm.node import nodes_in
from tests.cluster.slurm import Cluster
from tests.conftest import FIXTURES, Command
from tests.slurm import fakes
from tests.tables import hold

LINE = (
    "NodeName=n1 CoresPerSocket=32  CPUAlloc=0 CPUTot=64 AvailableFeatures=ib ActiveFeatures=ib Gres={gres} "
    "GresDrain=N/A GresUsed={used} NodeAddr=n1 NodeHostName=n1  RealMemory=1000 AllocMem=0 Sockets=2 Boards=1 "
    "State={state} ThreadsPerCore=1 Partitions=gpu {rest}"
)
MOMENTS, DIFFERENT = 25, 10
JOBS = ["scontrol", "-o", "-d", "show", "job"]
PROFILE = """
name: ours
url: https://example.org
checked: 2026-01-01
slurm: 22.05
default_partition: gpu
partitions:
  gpu: {gpus_per_node: 4, gpu_type: a100, shards_per_gpu: 16, cpus_per_node: 8, mem_per_node: 16000M, nodes_max: 4,
        time_max: 1-00:00:00}
  cpu: {cpus_per_node: 8, mem_per_node: 16000M, nodes_max: 4, time_max: 02:00:00}
options: {mem: 100M, cpus_per_task: 1}
"""


def node(gres: str, used: str, state: str = "MIXED", rest: str = "", **of_jobs: int) -> GpuNode:
    (slurm_node,) = nodes_in(LINE.format(gres=gres, used=used, state=state, rest=rest))
    return node_with_gpus(slurm_node, {("n1", int(index[1:])): count for index, count in of_jobs.items()})


def free(gpu_node: GpuNode) -> tuple[list[int], list[int]]:
    """The GPUs that are free, and the free shards of each GPU."""
    return [gpu.index for gpu in gpu_node.gpus if gpu.free], [gpu.shards_free for gpu in gpu_node.gpus]


# Gres, GresUsed, the free GPUs, the free shards of each
DECODED = [
    ("gpu:a100:4", "gpu:a100:0(IDX:N/A)", [0, 1, 2, 3], [0, 0, 0, 0]),
    ("gpu:a100:4(S:0-1)", "gpu:a100:2(IDX:0,3)", [1, 2], [0, 0, 0, 0]),
    ("gpu:4", "gpu:(null):3(IDX:0-2)", [3], [0, 0, 0, 0]),
    ("gpu:2,shard:128", "gpu:1(IDX:0),shard:32(0/64,32/64)", [], [0, 32]),
    ("gpu:2,shard:128", "gpu:0(IDX:N/A),shard:32(0/64,32/64)", [0], [64, 32]),
    ("gpu:a100:2,shard:a100:128", "gpu:a100:0(IDX:N/A),shard:a100:64(0/64,64/64)", [0], [64, 0]),
    ("gpu:4,shard:20", "gpu:1(IDX:0),shard:8(-/5,5/5,3/5,0/5)", [3], [0, 0, 2, 5]),
    ("gpu:4,shard:20", "shard:8(-/5,5/5,3/5,0/5)", [3], [0, 0, 2, 5]),
    ("gpu:a100:4,shard:a100:64", "gpu:a100:1(IDX:0),shard:a100:2(IDX:1-2)", [3], [0, 0, 0, 16]),
    # of the same gres.conf, in 22.05 and in 26.05
    ("gpu:a100:4,shard:a100:63", "shard:a100:0(IDX:N/A)", [0, 1, 2, 3], [15, 16, 16, 16]),
    ("gpu:a100:4,shard:a100:63", "shard:a100:0(0/15,0/16,0/16,0/16)", [0, 1, 2, 3], [15, 16, 16, 16]),
    ("gpu:4", "gpu:3", [3], [0, 0, 0, 0]),  # numbers only: which are free is not said
    ("gpu:4", "N/A", [0, 1, 2, 3], [0, 0, 0, 0]),
    ("gpu:4", "gpu:2(IDX:7-9)", [0, 1, 2, 3], [0, 0, 0, 0]),
]


def test_gres_are_decoded_by_gpu() -> None:
    def check(gres: str, used: str, gpus: list[int], shards: list[int]) -> None:
        assert free(node(gres, used)) == (gpus, shards)

    hold(check, DECODED)


def test_types_are_counted_by_type() -> None:
    """A type counts what is in use of it, whatever the order of the numbers."""
    mixed = node("gpu:a100:2,gpu:h100:2", "gpu:a100:1(IDX:2),gpu:h100:1(IDX:0)")
    by_type = {row.type: (row.total, row.in_use, row.free) for row in count_gpus([mixed])}
    assert by_type == {"a100": (2, 1, 1), "h100": (2, 1, 1)}


def test_a_type_is_one_row_whatever_partitions_its_nodes_are_in() -> None:
    nodes = [node("gpu:a100:4", "N/A") for _ in range(2)]
    apart = replace(nodes[1], node=replace(nodes[1].node, partitions=("other",)))
    (row,) = count_gpus([nodes[0], apart])
    assert (row.total, row.partitions) == (8, (*nodes[0].node.partitions, "other"))


def test_shards_of_older_releases_are_those_of_jobs() -> None:
    gres, used = "gpu:a100:4,shard:a100:64", "gpu:a100:1(IDX:0),shard:a100:2(IDX:1-2)"
    assert free(node(gres, used, g1=12, g2=16)) == ([3], [0, 4, 0, 16])
    hidden = node(gres, used, g1=12)
    assert [gpu.shards_used for gpu in hidden.gpus] == [0, 12, None, 0]
    assert free(hidden) == ([3], [0, 4, 0, 16])


def test_a_node_that_takes_no_jobs_has_nothing_free() -> None:
    for state, words in (
        ("IDLE+DRAIN", "drained"),
        ("MIXED+DRAIN", "drained"),
        ("DOWN*+NOT_RESPONDING", "down"),
        ("IDLE*", "not responding"),
        ("IDLE+MAINTENANCE+RESERVED", "in maintenance"),
        ("MIXED+PLANNED", ""),
        ("IDLE+CLOUD+POWERED_DOWN", ""),
    ):
        gpu_node = node("gpu:a100:4", "gpu:a100:1(IDX:0)", state)
        assert why_unavailable(gpu_node.node) == words
        (row,) = count_gpus([gpu_node])
        assert (row.total, row.in_use, row.free, row.unavailable) == (
            4,
            1,
            *((0, 3) if words else (3, 0)),
        )


def test_recorded_nodes() -> None:
    having = gpu_nodes(nodes_in((FIXTURES / "scontrol_nodes.txt").read_text()), {})
    by_name = {gpu_node.node.name: gpu_node for gpu_node in having}
    assert free(by_name["h100-01"]) == ([4, 6, 7], [0, 0, 4, 6, 8, 0, 8, 8])
    assert why_unavailable(by_name["a100-01"].node) == "drained"


FORGED = "UserId=a(1) JobState=RUNNING Reason=None Nodes=n[1-4] CPU_IDs=0 Mem=1 GRES=shard:a100:16(IDX:0) MinCPUsNode=1"
RECORD = (
    "JobId={id} JobName={name} UserId=a(1) GroupId=a(1) MCS_label={label} Account=(null) QOS=(null) JobState={state} "
    "Reason=None NodeList=n1 JOB_GRES=shard:5   Nodes=n1 CPU_IDs=0 Mem=1 GRES=shard:a100:{shards}(IDX:0) MinCPUsNode=1 "
    "Network=(null) Command=/x Comment={comment} "
)
Job = dict[str, str | int]
HONEST: Job = {"id": 7, "name": "lr=0.1", "shards": 5}
# What other jobs say, and the shards in use on the first GPU of n1 and of n2 then; None if that is not certain
SAYINGS: list[tuple[list[Job], int | None, int | None]] = [
    ([], 5, 0),
    ([{"name": f"x {FORGED}"}], 6, 0),
    ([{"comment": FORGED}], 6, 0),
    ([{"comment": f"x\nJobId=9 JobName=y {FORGED}"}], 6, 0),  # of a job that there is not
    ([{"name": f"x\nJobId=9 JobName=y {FORGED}\nJobId=10 JobName="}], 6, 0),
    ([{"name": f"x {FORGED}", "state": "COMPLETED"}], 5, 0),
    ([{"comment": f"x\nJobId=8 JobName=job {FORGED}"}], None, 0),  # itself a second time
    ([{"comment": f"x\nJobId=7 JobName=lr=0.1 {FORGED}"}], None, 0),  # another one a second time
    ([{"label": f"x {FORGED}"}], None, 0),
    ([{"name": "renamed", "seen": "old"}], None, 0),
]


def test_texts_of_users_forge_no_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    lines = (LINE.replace("n1", name) for name in ("n1", "n2"))
    gres, used = "gpu:a100:4,shard:a100:64", "gpu:a100:0(IDX:N/A),shard:a100:{}"
    here = [
        line.format(gres=gres, used=used.format(shards), state="MIXED", rest="")
        for line, shards in zip(lines, ("6(IDX:0)", "0(IDX:N/A)"), strict=True)
    ]

    def check(others: list[Job], *shards: int | None) -> None:
        plain = {"id": 8, "name": "job", "shards": 1, "label": "N/A", "state": "RUNNING", "comment": "x"}
        jobs = [{**plain, **job} for job in (HONEST, *others)]
        fields = {"JobID": "id", "Name": "name", "State": "state", "MCSLabel": "label"}
        table = [{field: str(job[key]) for field, key in fields.items()} for job in jobs]
        for row, job in zip(table, jobs, strict=True):
            row |= {"NodeList": "n1", "Account": "(null)", "Name": str(job.get("seen", job["name"]))}
        fakes.squeue(tmp_path / "bin", table)
        fakes.recorded(
            tmp_path / "bin",
            "scontrol",
            {"-a -o -d show job": "\n".join(RECORD.format(**job) for job in jobs)},
        )
        having = gpu_nodes(nodes_in("\n".join(here)), dict(os.environ))
        assert tuple(node.gpus[0].shards_used for node in having) == shards

    hold(check, SAYINGS)


HOSTILE = "PSU \x1b[2J\udcff | Gres=gpu:9"


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first in PATH for a scontrol of the test."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "bin"


def scontrol(folder: Path, lines: str) -> None:
    """A scontrol that runs these lines of shell."""
    program = folder / "scontrol"
    program.write_bytes(f"#!/bin/sh\n{lines}\n".encode("utf-8", "surrogateescape"))
    program.chmod(0o755)


def test_hostile_reasons_change_no_screen(says: Path, command: Command) -> None:
    line = LINE.format(
        gres="gpu:a100:4", used="gpu:a100:0(IDX:N/A)", state="IDLE+DRAIN", rest=f"Reason={HOSTILE}"
    )
    scontrol(says, f"cat <<'END'\n{line}\nEND\n")
    for form in ((), ("--by-node",), ("--format", "json")):
        shown = command("gpus", *form)
        assert shown.status == 0
        assert "\x1b" not in shown.out + shown.err
    (node,) = json.loads(command("gpus", "--format", "json").out)["nodes"]
    assert command("gpus", "--json").out == command("gpus", "--format", "json").out
    assert (node["unavailable"], len(node["gpus"])) == ("drained", 4)
    assert "n1: drained: PSU \\x1b[2J" in command("gpus").out


def test_without_slurm(says: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(says))
    nothing = command("gpus")
    assert (nothing.status, nothing.out) == (5, "")
    assert nothing.err.startswith("error: there is no scontrol here\n")
    scontrol(says, "echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{says}:/bin:/usr/bin")
    down = command("gpus", "--for", "single", "--profile", "msu")
    assert (down.status, "Slurm's controller does not answer" in down.err) == (5, True)


def test_what_makes_no_sense_is_refused(says: Path, command: Command) -> None:
    scontrol(says, f"echo '{LINE.format(gres='(null)', used='', state='IDLE', rest='')}'")
    assert command("gpus").out == command("gpus", "--by-node").out == "no node has GPUs\n"
    for arguments, words in (
        (("--nodes", "2"), "--nodes is about a job, and no job is named"),
        (("--partition", "gpo"), "did you mean 'gpu'?"),
        (("--for", "single"), "profile 'local' is not of a cluster with Slurm"),
        (("--watch", "1"), "--watch"),
        (("--for", "single", "--by-node"), "--by-node shows the GPUs of all nodes"),
        (("--", "a100", "b c"), "leave out -- a100 'b c'"),
        (("--by-node", "--", "n1"), "no job is named"),
    ):
        result = command("gpus", *arguments)
        assert (result.status, words in result.err) == (2, True), result
    without = command("gpus", "--for", "ddp", "--profile", "torchrun")
    assert (without.status, "this cluster has no default partition" in without.err) == (4, True)
    gone = command("gpus", "--for", "single", "--profile", "msu")
    assert (gone.status, "this cluster has no partition 'batch'" in gone.err) == (4, True)


def test_a_job_that_names_no_partition_goes_to_the_default_one_of_the_cluster(
    says: Path, command: Command
) -> None:
    node = LINE.format(gres="(null)", used="", state="IDLE", rest="")
    scontrol(says, f"echo '{node}'; echo 'PartitionName=gpu Default=YES Nodes=n1 TotalNodes=1'")
    assert "in partition gpu: " in command("gpus", "--for", "ddp", "--profile", "torchrun").out


def test_watch_shows_it_again_until_ctrl_c(
    says: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = LINE.format(gres="gpu:a100:4", used="gpu:a100:1(IDX:0)", state="MIXED", rest="")
    scontrol(says, f"echo '{line}'")
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        if seconds < 5:  # of subprocess
            return
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    shown = command("gpus", "--watch", "7")
    assert (shown.status, shown.err, waited) == (130, "", [7, 7, 7])
    assert shown.out.count("a100  4 ") == 3
    waited.clear()
    assert command("gpus", "--watch", "--by-node").out.count("n1    mixed  a100:4  0       1-3") == 3
    assert waited == [30, 30, 30]


@pytest.fixture(scope="module")
def busy(slurm_root: Path | None) -> Iterator[Cluster]:
    """A cluster of its own, which others' jobs leave alone."""
    with Cluster(root=slurm_root) as running:
        yield running


@pytest.fixture
def asked(busy: Cluster, says: Path) -> Cluster:
    """The same, asked by the commands of this process."""
    busy.commands(says, "scontrol", "squeue")
    return busy


Held = dict[str, dict[str, Counter[int]]]


def held(printed: str) -> Held:
    """By node, GPUs and shards of jobs, by number, as `scontrol show job -d` prints them; their memory and ids.

    The number of a GPU counts how often it is given away. Jobs that are COMPLETING have given theirs back.
    """
    amounts_held: Held = {}
    for line in printed.splitlines():
        if not re.search(r"JobState=(RUNNING|SUSPENDED|CONFIGURING) ", line):
            continue
        for hosts, memory, said in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=(\d+) GRES=(\S*)", line):
            of_job = {"memory": Counter({0: int(memory)}), "gpu": Counter[int](), "shard": Counter[int]()}
            of_job["jobs"] = Counter([int(line.removeprefix("JobId=").split()[0])])
            for name, count, which in re.findall(r"(gpu|shard)(?::[a-z]\w*)?:(\d+)\(([^)]+)\)", said):
                of_job[name].update(of_gpus(int(count), which, each=name == "gpu"))
            for host in expand_hosts(hosts):
                for name, amounts in of_job.items():
                    amounts_held.setdefault(host, {}).setdefault(name, Counter()).update(amounts)
    return amounts_held


def of_gpus(count: int, which: str, *, each: bool) -> dict[int, int]:
    """How much of each GPU, from IDX:0-1, or, since 23.11, from 0/16,8/16."""
    if which.startswith("IDX:"):
        return dict.fromkeys(expand(which[4:]), 1 if each else count)
    used = [part.partition("/")[0] for part in which.split(",")]
    return {number: int(some) for number, some in enumerate(used) if some not in ("0", "-")}


def held_as_shown(nodes: list[dict[str, Any]]) -> Held:
    """The same, as gpus says it."""
    return {
        node["name"]: {
            "gpu": Counter(gpu["index"] for gpu in node["gpus"] if gpu["taken"]),
            "shard": Counter(
                {gpu["index"]: gpu["shards_used"] for gpu in node["gpus"] if gpu["shards_used"]}
            ),
        }
        for node in nodes
    }


def look(cluster: Cluster) -> tuple[str, Held] | None:
    """All that scontrol prints of jobs, and what they hold; None if what it prints of nodes is of another moment."""
    both = "scontrol -o -d show job; scontrol -o -d show node"
    printed = cluster.root(["sh", "-c", both]).stdout
    jobs = held(printed)
    shown = r"^NodeName=(\S+).* GresUsed=gpu:a100:\d+\(IDX:([^)]+)\).* AllocMem=(\d+)"
    for name, numbers, memory in re.findall(shown, printed, re.MULTILINE):
        here = jobs.get(name, {"memory": Counter(), "gpu": Counter()})
        gpus = set() if numbers == "N/A" else {*expand(numbers)}
        if int(memory) != here["memory"][0] or gpus != {*here["gpu"]}:
            return None
    return printed, jobs


def expand(numbers: str) -> list[int]:
    """The numbers in 0-2,5."""
    ranges = (part.split("-") for part in numbers.split(","))
    return [number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)]


def expand_hosts(hosts: str) -> list[str]:
    """The names in n[1-2,4]."""
    match = re.fullmatch(r"n\[(.+)\]", hosts)
    return [f"n{number}" for number in expand(match[1])] if match else [hosts]


def some_jobs(cluster: Cluster, drawn: random.Random) -> None:
    """A few arrays of short jobs that want GPUs or shards."""
    for _ in range(6):
        amount = drawn.choice(
            ["gpu:1", "gpu:a100:2", "gpu:3", *(f"shard:{drawn.randint(1, 16)}" for _ in range(4))]
        )
        nodes = drawn.choice([1, 1, 2])
        wait = 'sleep "$(( RANDOM % 4 + 2 )).$(( RANDOM % 9 + 1 ))"'
        cluster.sbatch(
            f"--gres={amount}", f"--nodes={nodes}", "--mem=100M", "--time=5", "--array=0-5", "--output=/dev/null",
            script=f"#!/bin/bash\n{wait}\n",
        )  # fmt: skip


@pytest.mark.proof
def test_gpus_says_what_jobs_have_at_each_moment(asked: Cluster, command: Command) -> None:
    """Counted are moments before and after which the jobs had the same, and scontrol said so of the nodes."""
    drawn = random.Random(22)  # noqa: S311
    states: set[str] = set()
    compared = 0
    for attempt in itertools.count():
        assert attempt < 200 * MOMENTS, (compared, len(states))
        before = look(asked)
        if before is None or before[0].count("JobState=PENDING") < 4:
            if before is not None:
                some_jobs(asked, drawn)
            continue
        said = held_as_shown(json.loads(command("gpus", "--format", "json").out)["nodes"])
        after = look(asked)
        jobs = before[1]
        if not jobs or after is None or after[1] != jobs:
            continue
        for name, amounts_of in said.items():
            for kind, amounts in amounts_of.items():
                assert amounts == jobs.get(name, {}).get(kind, Counter()), (name, kind, before[0])
        states.add(json.dumps(jobs, sort_keys=True))
        compared += 1
        if compared >= MOMENTS and len(states) >= DIFFERENT:
            break
    asked.run(["scancel", "--me"])
    asked.until(lambda: look(asked) is not None and not held(asked.root(JOBS).stdout), "end of all jobs")


def test_jobs_of_any_name_hold_what_they_hold(asked: Cluster, command: Command) -> None:
    """slurmctld takes line breaks and all else in names, comments, accounts and paths."""
    folder = asked.put(f"d\nJobId=99 JobName=x {FORGED}/x", "").parent
    texts = [
        ("-J", f"x {FORGED}"),
        ("-J", f"a\nJobId=99 JobName=x {FORGED}"),
        ("-J", "  b\x1fc\t"),
        ("--comment", f"x\nJobId=99 JobName=x {FORGED}"),
        ("--network", FORGED, "-A", "a b"),
        ("-D", str(folder)),
    ]
    fixed = ("--gres=shard:2", "--nodelist=n1", "--mem=100M", "--time=60", "--output=/dev/null")
    for options in texts:
        asked.wait(asked.sbatch(*fixed, *options, "--wrap", "sleep 3000"), {"RUNNING"})
    by_node = {
        node["name"]: node["gpus"] for node in json.loads(command("gpus", "--format", "json").out)["nodes"]
    }
    asked.run(["scancel", "--me"])
    asked.until(lambda: asked.root(["squeue", "-h"]).stdout == "", "end of all jobs")
    assert sum(gpu["shards_used"] for gpu in by_node["n1"]) == 2 * len(texts)
    others = [gpu for name, gpus in by_node.items() if name != "n1" for gpu in gpus]
    assert not any(gpu["taken"] or gpu["shards_used"] for gpu in others)


# What holds the cluster: n1 has one GPU left, n2 shards on three GPUs, n3 is full of CPUs, n4 is drained
HOLDING = [
    ("n1", "--gres=gpu:3"),
    ("n2", "--gres=shard:10"),
    ("n2", "--gres=shard:12"),
    ("n2", "--gres=shard:14"),
    ("n3", "--cpus-per-task=7", "--mem=15000M"),
]
STARTING = [
    "single --nodelist n2",
    "ddp --nodes 1 --gpus-per-node a100:4",
    "ddp --nodes 2 --gpus-per-node 1 --exclude n3",
    "ddp --nodes 3 --gpus-per-node 1",
    "cpu --cpus-per-task 7 --mem 15900M",
    "single --nodelist n3 --mem 1000M",
    # The last: in 22.05 a GPU with shards in use counts as free again, for whole jobs, once one that shares it ends
    "single --gres shard:6 --nodelist n2",
]
WAITING = {
    "single --nodelist n4": "drained: n4",
    "ddp --nodes 2 --gpus-per-node 2": "1 of 2 nodes with room (fewer than 2 free GPUs: n1, n2; drained: n4)",
    "ddp --nodes 4 --gpus-per-node 1": "3 of 4 nodes",
    "ddp --nodes 1 --gpus-per-node 4 --cpus-per-task 2": "fewer than 2 free CPUs: n3",
    "ddp --nodes 1 --gpus-per-node 1 --exclusive": "used by other jobs: n1, n2, n3",
    "single --gres shard:16 --nodelist n2 --mem 15900M": "less than 15900M of free memory: n2",
    "cpu --cpus-per-task 8": "fewer than 8 free CPUs: n1, n2, n3",
    "cpu --mem 15901M": "less than 15901M of free memory: n1, n2, n3; drained: n4",
    "cpu --mem 0": "less than 16000M of free memory: n1, n2, n3",
    "single --nodelist n3 --mem 1100M": "less than 1100M of free memory: n3",
    "single --exclude n[1-3]": "drained: n4",
}


@pytest.mark.proof
def test_what_starts_now_starts_and_what_lacks_something_waits(
    asked: Cluster, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "ours.yaml").write_text(PROFILE)
    for name, *options in HOLDING:
        job = asked.sbatch(
            "--mem=100M",
            f"--nodelist={name}",
            "--time=60",
            "--output=/dev/null",
            *options,
            "--wrap",
            "sleep 3000",
        )
        asked.wait(job, {"RUNNING"})
    asked.root(["scontrol", "update", "nodename=n4", "state=drain", "reason=fan"])
    of_job = ("--profile", str(tmp_path / "ours.yaml"), "--runtime", "host")

    def says_of(words: str) -> str:
        result = command("gpus", "--for", *words.split(), *of_job)
        assert result.status == 0, result.err
        return result.out

    def submit(words: str) -> int:
        script = command("render", *words.split(), *of_job).out
        header = [line for line in script.splitlines() if line.startswith("#")]
        return asked.sbatch("--output=/dev/null", script="\n".join([*header, "exec sleep 3000", ""]))

    def starts(words: str) -> None:
        said = says_of(words)
        assert said.startswith("starts now "), said
        job = submit(words)
        asked.until(
            lambda: asked.job(job)["Reason"] != "None" or asked.job(job)["JobState"] == "RUNNING", "verdict"
        )
        record = asked.job(job)
        asked.run(["scancel", str(job)])
        asked.wait(job)
        assert record["JobState"] == "RUNNING", (record, said)
        assert set(expand_hosts(record["NodeList"])) <= set(re.findall(r"n\d", said)), said

    jobs: dict[str, int] = {}

    def waits(words: str, why: str) -> None:
        said = says_of(words)
        assert said.startswith("waits "), said
        assert why in said
        jobs[words] = submit(words)

    hold(waits, WAITING.items())
    asked.until(lambda: all(asked.job(job)["Reason"] != "None" for job in jobs.values()), "verdicts")
    records = {words: asked.job(job) for words, job in jobs.items()}
    assert {words: record["JobState"] for words, record in records.items()} == dict.fromkeys(
        WAITING, "PENDING"
    )
    for job in jobs.values():
        asked.run(["scancel", str(job)])
    hold(starts, [(words,) for words in STARTING])
    asked.root(["scontrol", "update", "partitionname=cpu", "state=down"])
    waits("cpu --partition cpu --time 60", "no node with room (the partition is down: n1, n2, n3, n4)")
    asked.root(["scontrol", "update", "partitionname=cpu", "state=up"])
    asked.run(["scancel", "--me"])
    asked.root(["scontrol", "update", "nodename=n4", "state=resume"])
