"""The end of a step of several tasks: a failure ends it in each case, and a task that ends well waits for the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import Site, site_on

# SlurmdTimeout: only the script ends the step of a dead node in the time of this test.
SETTINGS = "KillWait=5\nSlurmdTimeout=600\nWaitTime=2"
SHAPE = ("ddp", "--gpus-per-node", "1", "--nodes", "2", "--yes")
TASKS = (*SHAPE, "--launcher", "srun", "--mem", "100M")
FAILS = """
import os, pathlib, time
run_dir, rank = pathlib.Path(os.environ["RUN_DIR"]), int(os.environ.get("RANK", os.environ["SLURM_PROCID"]))
(run_dir / f"begun-{rank}").touch()
while not rank and not (run_dir / "fail").exists():
    time.sleep(0.1)
time.sleep(600 if rank else 0)
raise SystemExit(5)
"""
UPLOADS = """
import os, pathlib, time
run_dir = pathlib.Path(os.environ["RUN_DIR"])
(run_dir / f"trained-{os.environ['RANK']}").touch()
while os.environ["RANK"] == "0" and not (run_dir / "uploaded").exists():
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def site(slurm_root: Path | None) -> Iterator[Site]:
    with Cluster(visible=VISIBLE, settings=SETTINGS, root=slurm_root) as cluster:
        cluster.put("work/fails.py", FAILS)
        cluster.put("work/uploads.py", UPLOADS)
        yield site_on(cluster)


def submit(site: Site, name: str, *flags: str) -> int:
    typed = ("submit", *TASKS, "--job-name", name, "--resume", "auto", *flags)
    return int(site.sbatchgen(*typed, check=True).stdout)


def file_of(site: Site, name: str, file: str) -> Path:
    return site.folder / "runs" / name / file


@pytest.mark.proof
def test_a_failure_ends_the_step_where_a_node_has_lost_the_signals(site: Site) -> None:
    """Its slurmd is so late that it hears of the end before it has started the task."""
    with site.cluster.held("n2"):
        job = submit(site, "late", "--trainer", "fails.py", "--nodelist", "n1,n2")
        site.cluster.until(file_of(site, "late", "begun-0").exists, "rank 0")
        file_of(site, "late", "fail").touch()
        site.cluster.until(lambda: "Terminating StepId" in site.log("late"), "srun ends the step")
    site.cluster.until(file_of(site, "late", "begun-1").exists, f"rank 1 alone\n{site.log('late')}")
    ended = site.cluster.wait(job, {"FAILED"})
    assert ended["ExitCode"] == "5:0", site.log("late")


@pytest.mark.proof
def test_a_failure_ends_the_step_where_a_node_is_dead(site: Site) -> None:
    job = submit(site, "dead", "--trainer", "fails.py", "--nodelist", "n3,n4")
    site.cluster.until(file_of(site, "dead", "begun-1").exists, "rank 1")
    site.cluster.until(file_of(site, "dead", "begun-0").exists, "rank 0")
    site.cluster.stop_node("n4")
    file_of(site, "dead", "fail").touch()
    ended = {"COMPLETING", "FAILED"}  # Slurm waits for the node that is dead
    assert site.cluster.wait(job, ended)["ExitCode"] == "5:0", site.log("dead")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_a_job_ends_with_the_status_of_the_rank_that_failed(site: Site, launcher: str) -> None:
    """Slurm ends the other by SIGTERM, and srun reports the highest status: nothing else in this job knows the cause."""
    asked = ("--job-name", launcher, "--launcher", launcher, "--trainer", "fails.py", "--nodelist", "n1,n2")
    job = int(site.sbatchgen("submit", *SHAPE, *asked, check=True).stdout)
    for rank in range(2):
        site.cluster.until(
            file_of(site, launcher, f"begun-{rank}").exists, f"rank {rank}\n{site.log(launcher)}"
        )
    file_of(site, launcher, "fail").touch()
    assert site.cluster.wait(job)["ExitCode"] == "5:0", site.log(launcher)


@pytest.mark.proof
def test_a_task_that_has_ended_well_waits_for_one_that_uploads(site: Site) -> None:
    """There is no limit to it: srun's is off, also where slurm.conf has one (WaitTime)."""
    job = submit(site, "uploads", "--trainer", "uploads.py", "--nodelist", "n1,n2")
    site.cluster.until(file_of(site, "uploads", "trained-1").exists, "rank 1")
    time.sleep(6)  # more than WaitTime
    file_of(site, "uploads", "uploaded").touch()
    assert site.cluster.wait(job, {"COMPLETED"})["ExitCode"] == "0:0", site.log("uploads")
