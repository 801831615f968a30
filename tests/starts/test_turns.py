"""Slurm plans in turns: a node that became free since its last turn goes to the job that waits longest, on a real Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.slurm.test_gpus import PROFILE
from tests.starts.test_when import job, planned, sbatchgen, states, when

# The main scheduler looks at the queue each second, and sets LastSchedEval of jobs that it leaves out.
SETTINGS = "SchedulerParameters=batch_sched_delay=0,bf_interval=20,sched_interval=1\n"


@pytest.mark.proof
def test_a_node_that_just_became_free_is_no_hole_for_a_later_job(slurm_root: Path | None) -> None:
    with Cluster(visible=VISIBLE, root=slurm_root, settings=SETTINGS) as slow:
        slow.put("ours.yaml", PROFILE)
        ends = job(slow, "--nodelist=n4", "--exclusive", "--time=10")
        for number in (ends, job(slow, "--nodes=3", "--exclusive", "--time=20")):
            slow.wait(number, {"RUNNING"})
        job(slow, "--nodes=4", "--exclusive", "--time=20")
        waits = job(slow, "--nodes=1", "--exclusive", "--time=5")
        planned(slow, waits)
        slow.root(["scancel", str(ends)])
        slow.until(lambda: "completing" not in states(slow) and len(states(slow)) > 1, "a free node")
        slow.until(lambda: main_scheduler_looked(slow, waits), "the main scheduler")
        words = ("single", "--time", "0:05:00", "--partition", "gpu")
        output = when(slow, *words)
        assert [row for row in output["rows"] if row["kind"] == "hole"] == []
        if slow.job(waits)["JobState"] == "PENDING":  # else Slurm took its turn meanwhile
            assert output["out"]["gpu"] == f"nodes are free, and job {waits}, which waits longer, fits there"
        late = sbatchgen(slow, "submit", *words, "--profile", "./ours.yaml", "--yes").stdout.strip()
        assert slow.wait(waits, {"RUNNING"})["NodeList"] == "n4"
        assert slow.job(late)["JobState"] == "PENDING"


def main_scheduler_looked(cluster: Cluster, number: str | int) -> bool:
    """Whether Slurm has looked at a job since node n4 became free; the job may run since."""
    freed = re.search(r"LastBusyTime=(\S+)", cluster.run(["scontrol", "show", "node", "n4"]).stdout)
    format_ = ["squeue", "--noheader", f"--job={number}", "--Format=LastSchedEval:30,State"]
    looked, _, state = cluster.run(format_).stdout.partition(" ")
    assert freed
    return state.strip() != "PENDING" or looked > freed[1]
