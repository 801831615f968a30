"""Nodes that are really bad: the job ends before its training and names the node, or starts again without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.fixtures import FIRST, LATER, VISIBLE, on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import PROFILE, Site, site_on

TWO_EACH = ("--profile", "./cpus.yaml", "--nproc-per-node", "2")
HANGS = """
import os, threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
if (os.environ["SLURMD_NODENAME"], os.environ["LOCAL_RANK"]) == ("n2", "1"):
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    thread.join()
dist.all_reduce(torch.ones(1))
os.write(1, b"the ranks have met\\n")
os._exit(0)  # torch's own end aborts at times
"""
EXPEDITES = "SlurmctldParameters=enable_expedited_requeue"


@pytest.fixture(scope="module")
def site(slurm_root: Path | None) -> Iterator[Site]:
    with Cluster(visible=VISIBLE, root=slurm_root) as cluster:
        cluster.put(
            "work/cpus.yaml", PROFILE.replace("gpus_per_node: 4, shards_per_gpu: 16", "gpus_per_node: 0")
        )
        yield site_on(cluster)


@contextmanager
def without_tmp(site: Site, node: str) -> Iterator[None]:
    """Keep the /tmp of a node from being written."""
    site.cluster.root(["mount", "-o", "remount,ro", "/tmp"], on=node)  # noqa: S108
    try:
        yield
    finally:
        site.cluster.root(["mount", "-o", "remount,rw", "/tmp"], on=node)  # noqa: S108


@on_one_release
def test_a_job_with_a_bad_node_ends_before_its_training(site: Site) -> None:
    with without_tmp(site, "n3"):
        job = site.submit("named", "cpu", "--preflight", "true", "--nodelist", "n3", check=True)
        ddp = site.submit("two", "ddp", *TWO_EACH, "--nodes", "4", "--preflight", "true")
        assert site.cluster.wait(job)["ExitCode"] == "69:0"
        assert site.cluster.wait(ddp)["ExitCode"] == "69:0"
    log = site.log("two")
    assert "error: preflight: n3: /tmp: can't be written: Read-only file system; fix: --exclude=n3" in log
    assert "Epoch" not in log
    assert "n3: /tmp: can't be written" in site.sbatchgen("status", "two", check=True).stdout
    assert "preflight: n3: /tmp" in site.sbatchgen("diagnose", "two").stdout


@on_one_release
def test_a_job_leaves_a_bad_node_out_and_trains_on_the_others(site: Site) -> None:
    with without_tmp(site, "n2"):
        said = (*TWO_EACH, "--nodes", "2", "--preflight", "exclude", "--exclude", "n4")
        job = site.submit("without", "ddp", *said)
        record = site.cluster.wait(job, timeout=300)
    assert (record["JobState"], record["NodeList"], record["Restarts"]) == ("COMPLETED", "n[1,3]", "1")
    assert record["ExcNodeList"] == "n4,n2"
    assert "Epoch 2" in site.log("without")
    record = json.loads((site.folder / "runs/without/preflight.json").read_text())
    assert (record["faults"], record["excluded"]) == ({}, [["n2"]])


@on_one_release
def test_healthy_nodes_train(site: Site) -> None:
    job = site.submit("healthy", "ddp", *TWO_EACH, "--nodes", "2", "--preflight", "true")
    assert site.cluster.wait(job, timeout=300)["JobState"] == "COMPLETED", site.log("healthy")
    assert "Preflight of 2 nodes" in site.log("healthy")
    assert "nodes ready" in site.sbatchgen("status", "healthy", check=True).stdout


@on_one_release
def test_a_job_that_only_checks(site: Site) -> None:
    done = site.sbatchgen("preflight", *TWO_EACH, "--nodes", "3", "--yes", check=True)
    assert site.cluster.wait(int(done.stdout))["JobState"] == "COMPLETED"
    assert "Preflight of 3 nodes" in site.log("preflight")


def test_a_job_that_a_node_hangs_twice_starts_again_without_it(site: Site, slurm_release: str) -> None:
    """With a launcher on each release: torchrun ends what hangs, and so does srun."""
    site.cluster.put("work/hangs.py", HANGS)
    launcher = {FIRST: "torchrun", LATER: "srun"}[slurm_release]
    shape = (
        "ddp",
        *TWO_EACH,
        "--nodes",
        "2",
        "--exclude",
        "n4",
        "--trainer",
        "hangs.py",
        "--launcher",
        launcher,
    )
    asked = ("--job-name", "hangs", "--hang", "requeue", "--resume", "auto", "--env", "HANG_AFTER=4")
    job = site.sbatchgen("submit", *shape, *asked, "--yes", check=True).stdout
    record = site.cluster.wait(int(job), timeout=300)
    log = site.log("hangs")
    assert (record["JobState"], record["NodeList"], record["Restarts"]) == ("COMPLETED", "n[1,3]", "2"), log
    assert record["ExcNodeList"] == "n4,n2"
    says = "3 of 4 ranks wait in all_reduce (hangs.py:8); rank 3 on n2 is in hangs.py:7 for "
    starts = log.split(f"Job {job.strip()} on ")[
        1:
    ]  # a busy machine may let the watcher say a hang twice in one start
    assert [f"hang: {says}" in start for start in starts] == [True, True, False], log
    assert log.count("Requeueing without n4,n2\n") == 1
    assert log.count("the ranks have met\n") == 4


def test_an_expedited_job_starts_again_at_once(later_root: Path) -> None:
    """After the death of a node, on others; and by its own script, which Slurm holds if it fails."""
    with Cluster(visible=VISIBLE, root=later_root, settings=EXPEDITES) as cluster:
        begins = "#!/bin/bash\n[[ ${SLURM_RESTART_COUNT:-0} == 0 ]] || exit 0\n"
        sleeps = cluster.put("sleeps.sh", f"{begins}sleep 600\n", mode=0o755)
        fails = cluster.put("fails.sh", f"{begins}exit 5\n", mode=0o755)
        asks = cluster.put("asks.sh", f"{begins}scontrol requeue $SLURM_JOB_ID && exit 0\n", mode=0o755)
        expedite = ("--requeue=expedite", "--output=/dev/null")
        asking = cluster.wait(cluster.sbatch(*expedite, "--nodes=1", asks))
        assert (asking["JobState"], asking["Restarts"], asking["ExpeditedRequeue"]) == (
            "COMPLETED",
            "1",
            "Yes",
        )
        failed = cluster.wait(cluster.sbatch(*expedite, "--nodes=1", fails), {"REQUEUE_HOLD"})
        assert (failed["ExitCode"], failed["Priority"]) == ("5:0", "0")
        job = cluster.sbatch(*expedite, "--nodes=2", sleeps)
        cluster.wait(job, {"RUNNING"})
        cluster.stop_node("n2", declare=True)
        again = cluster.wait(job)
        assert (again["JobState"], again["Restarts"]) == ("COMPLETED", "1")
        assert "n2" not in cluster.run(["scontrol", "show", "hostnames", again["NodeList"]]).stdout.split()
