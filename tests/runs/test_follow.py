"""submit --follow and cancel --yes on a real Slurm."""

from __future__ import annotations

import pytest

from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import site_on

SAYS = "import sys\nprint('said', sys.argv[1], flush=True)\n"


@pytest.mark.proof
@pytest.mark.slow
@on_one_release
def test_following_a_job_in_a_used_run_folder_shows_its_own_log(cluster: Cluster) -> None:
    site = site_on(cluster)
    cluster.put("work/says.py", SAYS)
    words = ("submit", "cpu", "--yes", "--follow", "--job-name", "says", "--trainer", "says.py", "--")
    for word in ("first", "second"):
        done = site.sbatchgen(*words, word)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if "said" in line] == [f"said {word}"]
    assert site.sbatchgen("logs", "says", check=True).stdout.count("said") == 1  # of the newest job
    assert site.sbatchgen("cancel", "says", "--yes").returncode == 0


TRAINS = """
import sys
lr = float(sys.argv[1].partition("=")[2])
for step in range(3):
    print(f"iter {step}: loss {lr / (step + 1):.4f}, time 5ms", flush=True)
"""
PATTERN = r"iter (?P<step>\d+): loss (?P<loss>[\d.]+)"


@pytest.mark.proof
@pytest.mark.slow
@on_one_release
def test_a_sweep_of_a_trainer_of_ones_own_has_a_best_point_and_curves(cluster: Cluster) -> None:
    site = site_on(cluster)
    cluster.put("work/trains.py", TRAINS)
    words = ("sweep", "cpu", "--yes", "--job-name", "own", "--trainer", "trains.py", "--metrics", PATTERN)
    done = site.sbatchgen(*words, "--param", "lr=0.3,0.1", check=True)
    cluster.wait(int(done.stdout.split()[0]), {"COMPLETED"})
    cluster.until(lambda: "2 done" in site.sbatchgen("status", "own").stdout, "both points")
    table = site.sbatchgen("status", "own", check=True).stdout
    assert "step 2, loss 0.0333  best" in table, table
    assert "step 2, loss 0.1\n" in table, table
    drawn = site.sbatchgen("plot", "runs/own/0", "runs/own/1", "--text", check=True).stdout
    assert drawn.startswith("Loss\n      0.3 |a")
