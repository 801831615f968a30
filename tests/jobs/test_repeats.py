"""On a real Slurm: a trainer that saves nothing is started again once, not ten times."""

from __future__ import annotations

from functools import partial

import pytest

from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import Site, site_on

FORGETS = """
import pathlib, time
for step in range(6000):
    print("step", step, "loss", 0.5, flush=True)
    time.sleep(0.02)
    if pathlib.Path("end").exists():
        break
"""


@pytest.mark.proof
@on_one_release
def test_a_trainer_that_begins_at_step_0_again_has_no_second_restart(cluster: Cluster) -> None:
    site = site_on(cluster)
    cluster.put("work/forgets.py", FORGETS)
    words = (
        "submit",
        "single",
        "--yes",
        "--job-name",
        "forgets",
        "--trainer",
        "forgets.py",
        "--requeue-on-timeout",
    )
    done = site.sbatchgen(*words, check=True)
    assert "saves nothing: each restart begins at the first step" in done.stderr
    job = int(done.stdout)
    for starts, step in ((1, 150), (2, 60)):  # one that trains for much longer may have saved
        wait_for_steps = partial(_trained, site, starts, step)
        cluster.until(wait_for_steps, f"steps of start {starts}")
        cluster.run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
    cluster.until(lambda: "there is no further restart" in site.log("forgets"), "the error", timeout=60)
    status = site.sbatchgen("status", "forgets", check=True).stdout
    assert "forgets.py saves nothing: it begins at the first step" in status
    cluster.put("work/end", "")
    record = cluster.wait(job, {"COMPLETED"})
    assert record["Restarts"] == "1"
    assert site.log("forgets").count("Requeueing: ") == 1


def _trained(site: Site, starts: int, step: int) -> bool:
    return site.log("forgets").count(f"step {step} ") == starts
