"""A training that hangs on the real Slurm: the rank is named with its node, its line and what it waits for."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import Site, site_on
from tests.tables import hold

EVENT = """
import threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 2:
    threading.Event().wait()
dist.all_reduce(torch.ones(1))
"""
JOIN = """
import threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    thread.join()
dist.all_reduce(torch.ones(1))
"""
ASKS = """
import sys, torch, torch.distributed as dist, urllib.request
dist.init_process_group("gloo")
for step in range(9):
    if step == 5 and dist.get_rank() == 0:
        urllib.request.urlopen(sys.argv[1])
    dist.all_reduce(torch.ones(1))
    print("step", step, flush=True)
"""
NEVER_ANSWERS = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
known = [server.accept() for _ in range(1 << 20)]
"""
PROGRAMS = """
hang: HANG
env: {HANG_AFTER: 3}
programs:
  server:
    command: [python3, never.py, "{port}"]
    nodes: 1
    gpus: 1
    ready: {port: "{port}"}
    grace: 5s
  trainer:
    mode: ddp
    trainer: TRAINER
    args: ["http://{server.host}:{server.port}/"]
    nodes: 2
    gpus: 1
    needs: [server]
    main: true
    grace: 5s
"""
TWO_OF_TWO = ("ddp", "--nodes", "2", "--gpus-per-node", "2", "--env", "HANG_AFTER=5")


class Hang(NamedTuple):
    """A job that hangs, and what is said of its rank."""

    arguments: tuple[str, ...]
    says: str  # %s is the node
    node: int = 1  # of those of the job
    status: str = ""  # of a job that ends itself


KINDS = {
    "torchrun": Hang(
        (*TWO_OF_TWO, "--trainer", "event.py", "--launcher", "torchrun"),
        r"3 of 4 ranks wait in all_reduce \(event\.py:6\); rank 2 on %s is in event\.py:5 for ",
    ),
    "srun": Hang(
        (*TWO_OF_TWO, "--trainer", "event.py", "--launcher", "srun"),
        r"3 of 4 ranks wait in all_reduce \(event\.py:6\); rank 2 on %s is in event\.py:5 for ",
    ),
    "stopped": Hang(  # the bundled trainer
        (*TWO_OF_TWO, "--launcher", "spawn", "--", "--step-delay", "0.2", "--epochs", "99"),
        r"3 of 4 ranks wait in .*; rank 3 on %s is stopped by a signal for ",
    ),
    "join": Hang(
        ("join.yaml",),
        r"1 of 2 ranks waits in all_reduce \(join\.py:8\); rank 1 on %s is in join\.py:7 for ",
        status="68:0",
    ),
    "answer": Hang(
        ("answer.yaml",),
        r"1 of 2 ranks waits in all_reduce \(asks\.py:7\); "
        r"rank 0 on %s waits for an answer of [\d.]+:\d+ \(asks\.py:6\) for ",
        node=0,
    ),
}


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Site:
    return site_on(cluster)


@pytest.fixture(scope="module")
def jobs(site: Site) -> dict[str, int]:
    """The job of each kind; they run side by side."""
    files = {"event.py": EVENT, "join.py": JOIN, "asks.py": ASKS, "never.py": NEVER_ANSWERS}
    files["join.yaml"] = PROGRAMS.replace("TRAINER", "join.py").replace("HANG\n", "stop\n")
    files["answer.yaml"] = PROGRAMS.replace("TRAINER", "asks.py").replace("HANG\n", "report\n")
    for name, text in files.items():
        site.cluster.put(f"work/{name}", text)
    ids = {}
    for kind, hang in KINDS.items():
        if kind == "stopped":
            ids[kind] = site.submit(kind, *hang.arguments)
        else:
            call = ("submit", *hang.arguments, "--yes", "--job-name", kind)
            ids[kind] = int(site.sbatchgen(*call, check=True).stdout)
    return ids


@pytest.mark.proof
@on_one_release  # test_bad_nodes has a hang on each
def test_the_rank_that_hangs_is_named_with_its_node(site: Site, jobs: dict[str, int]) -> None:
    """By the watchers of both nodes; by the commands too, also after the job."""
    hold(is_named, [(site, jobs[kind], kind, hang) for kind, hang in KINDS.items()])


def is_named(site: Site, job: int, kind: str, hang: Hang) -> None:
    folder = site.folder / "runs" / kind
    site.cluster.until((folder / f"{kind}-{job}.out").exists, f"log of {kind}")
    nodes = site.cluster.job(job)["NodeList"]
    node = site.cluster.run(["scontrol", "show", "hostnames", nodes]).stdout.split()[hang.node]
    if kind == "stopped":
        stop_the_last_rank(site, node)
    site.cluster.until((folder / "hang.json").exists, f"report of {kind}")

    says = re.compile(hang.says % node)
    assert says.search(site.sbatchgen("status", kind).stdout), (folder / "hang.json").read_text()
    assert says.search(site.log(kind))
    assert re.match(f"{kind}: hangs: {says.pattern}", site.sbatchgen("diagnose", kind).stdout)
    if hang.status:
        assert site.cluster.wait(job, {"FAILED"})["ExitCode"] == hang.status
    else:
        assert says.search(site.sbatchgen("status", "--format", "json").stdout)
        site.cluster.run(["scancel", str(job)], check=True)
        site.cluster.wait(job, {"CANCELLED"})


def stop_the_last_rank(site: Site, node: str) -> None:
    """Once it has trained for some steps."""
    site.reach_step("stopped", 5)
    of_rank_3 = (
        "grep -slzx RANK=3 /proc/[0-9]*/environ | cut -d/ -f3 | sort -n | head -1"  # before its loaders
    )
    pid = site.cluster.root(["sh", "-c", of_rank_3], on=node).stdout.strip()
    site.cluster.root(["kill", "-STOP", pid], on=node)
