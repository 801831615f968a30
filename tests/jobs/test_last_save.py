"""`sbatchgen cancel` and a stop file made by hand, on a real Slurm: what runs saves, ends, and does not start again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import VISIBLE, on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import Site, site_on
from tests.training.forks import QUICKLY

PACE = ("--", "--step-delay", "0.3", "--sync-every", "1", "--epochs", "9")
SAVING = "saving {} ..., Ctrl-C cancels at once"
# As the page on trainers of one's own says: it asks for a restart whenever it was stopped.
POLITE = """
import os, pathlib, time
run_dir = pathlib.Path(os.environ["RUN_DIR"])
(run_dir / "begun").touch()
while not os.path.exists(os.environ["SBATCHGEN_STOP_FILE"]):
    time.sleep(0.1)
(run_dir / "saved").touch()
pathlib.Path(os.environ["SBATCHGEN_AGAIN_FILE"]).touch()
"""
# Launchers and containers end after the trainer; here that takes as long on each machine, idle or busy.
SLOW_END = f"""
import atexit, time
exec(open({str(QUICKLY / "sitecustomize.py")!r}).read())
atexit.register(time.sleep, 4)
"""
DEAF = """
import os, pathlib, time
pathlib.Path(os.environ["RUN_DIR"], "begun").touch()
time.sleep(600)
"""


@pytest.fixture(scope="module")
def site(slurm_root: Path | None) -> Iterator[Site]:
    with Cluster(visible=VISIBLE, settings="KillWait=5", root=slurm_root) as cluster:
        cluster.put("work/polite.py", POLITE)
        cluster.put("work/deaf.py", DEAF)
        cluster.put("work/slow_end/sitecustomize.py", SLOW_END)
        yield site_on(cluster)


def own(site: Site, name: str, trainer: str, *flags: str) -> int:
    typed = (
        "submit",
        "single",
        "--trainer",
        trainer,
        "--job-name",
        name,
        "--resume",
        "auto",
        "--yes",
        *flags,
    )
    job = int(site.sbatchgen(*typed, check=True).stdout.split()[0])
    site.cluster.until((site.folder / "runs" / name / "begun").exists, f"its start\n{site.log(name)}")
    return job


def ends(site: Site, job: int) -> dict[str, str]:
    return site.cluster.wait(job, {"CANCELLED", "COMPLETED", "FAILED"})


def test_a_training_saves_before_it_is_cancelled(site: Site) -> None:
    slowly = ("--env", f"PYTHONPATH={site.folder / 'slow_end'}:{QUICKLY}")
    job = site.submit("trained", "ddp", "--nodes", "2", "--gpus-per-node", "1", *slowly, *PACE)
    site.reach_step("trained", 3)
    said = site.sbatchgen("cancel", "--yes", "trained", check=True).stderr
    assert SAVING.format("trained") in said
    assert "in time" not in said
    ended = ends(site, job)
    how = ended["JobState"], ended["ExitCode"], ended["Restarts"]
    assert how == ("FAILED", "75:0", "0"), "it has ended by itself"
    assert site.status("trained")["state"] == "preempted"
    (saved,) = re.findall(r"Stopped by cancelled at step (\d+); checkpoint (\S+) saved", site.log("trained"))
    assert (site.folder / "runs/trained" / saved[1]).exists()
    assert "SIGTERM" not in site.log("trained")


@pytest.mark.proof
@on_one_release
def test_what_has_nothing_to_save_is_cancelled_at_once(site: Site) -> None:
    waits = site.submit("waits", "single", "--begin", "now+1hour", *PACE)
    runs = site.submit("runs", "single", *PACE)
    site.reach_step("runs", 1)
    deaf = own(site, "deaf", "deaf.py")
    for words in (("waits",), ("deaf",), ("--now", "runs")):
        assert "saving" not in site.sbatchgen("cancel", "--yes", *words, check=True).stderr, words
    assert [ends(site, job)["JobState"] for job in (waits, deaf, runs)] == ["CANCELLED"] * 3


@pytest.mark.proof
@on_one_release
def test_a_chain_ends_with_the_job_that_saves(site: Site) -> None:
    """And not with the script of another chain, which runs outside a job."""
    own(site, "chained", "polite.py", "--chain", "2")
    rendered = site.sbatchgen("render", "single", "--trainer", "polite.py", "--chain", "2", check=True).stdout
    no_job = site.cluster.run(["bash", "-c", rendered], cwd=site.folder)
    assert no_job.stderr == "error: this script is a job: submit it with sbatch\n"
    assert site.cluster.run(["squeue", "--me", "--noheader", "--name=chained", "--states=PENDING"]).stdout
    assert SAVING.format("chained") in site.sbatchgen("cancel", "--yes", "chained", check=True).stderr
    assert (site.folder / "runs/chained/saved").exists()
    for job in site.cluster.run(
        ["squeue", "--me", "--noheader", "--name=chained", "--format=%A"]
    ).stdout.split():
        ends(site, int(job))
    shown = site.sbatchgen("status", "chained").stdout
    assert "PENDING" not in shown
    assert "RUNNING" not in shown
    assert site.log("chained").count("Job ") == 1, "the second has not started"


@pytest.mark.proof
@on_one_release
@pytest.mark.parametrize("how", ["cancel", "by hand"])
def test_a_trainer_that_asks_for_a_restart_gets_none_once_it_is_stopped(site: Site, how: str) -> None:
    name = f"polite-{how.replace(' ', '-')}"
    job = own(site, name, "polite.py")
    if how == "cancel":
        assert SAVING.format(name) in site.sbatchgen("cancel", "--yes", name, check=True).stderr
    else:
        (site.folder / "runs" / name / "stop").touch()
    ended = ends(site, job)
    assert (ended["Restarts"], "Requeueing" in site.log(name)) == ("0", False)
    assert (site.folder / "runs" / name / "saved").exists()
