"""A training that may do a part of its steps in a job ends by itself: by requeues, in a chain, in an array's tasks.

It may do two fifths: three starts resume twice.

That is so whatever the speed of the machine: when it has done so many steps, the trainer sends the script the signal
of the time limit, and waits until the script has asked it to stop.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.cluster.slurm import Cluster
from tests.jobs.jobs import PROFILE, TRAINING, Site, site_on
from tests.training.forks import QUICKLY
from tests.training.states import equal

STEPS, PART = 50, 20  # of the training, and of a job
DELAY = 0.001  # seconds: for nothing else is slept so long
LIMIT = f"""
import os, signal, time

exec(open({str(QUICKLY / "sitecustomize.py")!r}).read())
steps, most, sleep = 0, int(os.environ.get("STEPS_OF_A_JOB", "0")), time.sleep

def limited(seconds):
    global steps
    sleep(seconds)
    steps += seconds == {DELAY}
    if seconds == {DELAY} and steps == most:
        if "FAILS" in os.environ:
            os._exit(7)
        os.kill(int(os.environ["SCRIPT"]), signal.SIGUSR1)
        while not os.path.exists(os.environ["SBATCHGEN_AGAIN_FILE"].removesuffix("again") + "stop"):
            sleep(0.05)
        sleep(0.6)  # the trainer looks for the file twice a second

if "SBATCHGEN_AGAIN_FILE" in os.environ:
    time.sleep = limited
"""
WAYS = {  # with more jobs than are needed
    "long-requeued": ("--max-restarts", "5"),
    "long-chained": ("--chain", "5", "--no-requeue"),
    "long-tasks": ("--array", "1-5%1", "--no-requeue"),
}


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Site:
    site = site_on(cluster)
    cluster.put("work/limit/sitecustomize.py", LIMIT)
    cluster.put("work/limited.yaml", PROFILE.replace("setup: [", "setup: [export SCRIPT=$$, "))
    return site


def start(site: Site, name: str, *flags: str, delay: float = DELAY) -> list[str]:
    """The ids of the jobs of a run."""
    path = f"PYTHONPATH={site.folder / 'limit'}:{QUICKLY}"
    shape = (
        "single",
        "--profile",
        "./limited.yaml",
        "--job-name",
        name,
        "--cpus-per-task",
        "1",
        "--env",
        path,
        *flags,
    )
    pace = ("--step-delay", str(delay), "--sync-every", "1", "--save-every", "0", "--deadline", "off")
    return site.sbatchgen("submit", "--yes", *shape, "--", *TRAINING, *pace, check=True).stdout.split()


@pytest.fixture(scope="module")
def jobs(site: Site) -> dict[str, list[str]]:
    """All that only have to be waited for: submitted together, so that they run side by side."""
    ids = {}
    for name, flags in WAYS.items():
        ids[name] = start(site, name, *flags, "--env", f"STEPS_OF_A_JOB={PART}")
    ids["chain-cancelled"] = start(site, "chain-cancelled", "--chain", "4", delay=1.0)
    ids["long-alone"] = start(site, "long-alone", "--resume", "off")
    gate = str(site.cluster.sbatch("--hold", "--wrap=true"))  # until all are submitted
    for name, how in {
        "chain-failed": ("--env", "FAILS=1", "--env", "STEPS_OF_A_JOB=5"),
        "chain-unprepared": ("--venv", "/nowhere"),
    }.items():
        ids[name] = start(site, name, "--chain", "4", *how, "--dependency", f"afterany:{gate}")
    site.cluster.run(["scancel", gate], check=True)
    return ids


def test_a_cancelled_job_is_not_the_end_of_a_chain_but_a_cancelled_run_is(
    site: Site, jobs: dict[str, list[str]]
) -> None:
    first, second, *_ = jobs["chain-cancelled"]
    site.reach_step("chain-cancelled", 3)
    site.cluster.run(["scancel", first], check=True)
    site.cluster.wait(second, {"RUNNING"})
    site.cluster.until(lambda: len(site.events("chain-cancelled", "start")) == 2, "start of the second job")
    site.sbatchgen("cancel", "--yes", "chain-cancelled", check=True)
    started, rest = of_run(site, jobs["chain-cancelled"])
    assert [record["JobId"] for record in started] == [first, second]
    cancelled, saved = started
    assert {record["JobState"] for record in [cancelled, *rest]} == {"CANCELLED"}
    # It saves and ends by itself; it is cancelled if the end of its processes takes longer than a minute.
    assert (saved["JobState"], saved["ExitCode"]) == ("FAILED", "75:0") or saved["JobState"] == "CANCELLED"
    assert site.status("chain-cancelled")["state"] == "preempted"


@pytest.mark.parametrize(("name", "status"), [("chain-failed", "7:0"), ("chain-unprepared", "1:0")])
def test_a_failure_ends_the_chain(site: Site, jobs: dict[str, list[str]], name: str, status: str) -> None:
    started, rest = of_run(site, jobs[name])
    assert [(record["JobState"], record["ExitCode"]) for record in started] == [("FAILED", status)]
    assert [record["JobState"] for record in rest] == ["CANCELLED"] * (len(jobs[name]) - 1)


@pytest.mark.parametrize("name", WAYS)
def test_a_training_ends_by_itself(site: Site, jobs: dict[str, list[str]], name: str) -> None:
    started, rest = of_run(site, jobs[name])
    assert site.log(name).count("Training completed") == 1
    starts = len(site.events(name, "start"))
    assert starts == sum(1 + int(record["Restarts"]) for record in started) >= STEPS // PART
    assert all(int(str(event["step"])) % PART == 0 for event in site.events(name, "resume"))
    of_run(site, jobs["long-alone"])
    assert equal(weights(site, name), weights(site, "long-alone"))
    assert [record["JobState"] for record in started] == [*["FAILED"] * (len(started) - 1), "COMPLETED"]
    assert {record["ExitCode"] for record in started[:-1]} <= {"75:0"}
    assert {record["JobState"] for record in rest} == ({"CANCELLED"} if name != "long-requeued" else set())
    last = started[-1]["JobId"] if name == "long-chained" else jobs[name][0]
    shown = site.sbatchgen("status", name, "long-alone", check=True).stdout
    assert re.search(rf"^{name} +{last} +completed", shown, re.MULTILINE)
    assert (
        "Training completed" in site.sbatchgen("logs", name, "--follow", "--lines", "99", check=True).stdout
    )


def of_run(site: Site, jobs: list[str]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The records of the jobs of a run that has ended: of those that have started, in their order; of the others."""
    for job in jobs:
        site.cluster.wait(job)
    records = [record for job in jobs for record in site.cluster.jobs(job)]
    records.sort(key=lambda record: (record["StartTime"], int(record["JobId"])))
    return tuple([record for record in records if bool(record["NodeList"]) is has] for has in (True, False))  # type: ignore[return-value]


def weights(site: Site, name: str) -> Any:
    """The weights, and the state of the optimizer, at the end."""
    path = site.folder / "runs" / name / "checkpoints" / f"step-{STEPS:08}.pt"
    state = torch.load(path, weights_only=True)
    return {part: state[part] for part in ("model", "optimizer")}
