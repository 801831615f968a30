"""However Slurm ends a job before its time, it resumes, and ends with the weights of one left alone, bit for bit.

The jobs run side by side, on a cluster of their own: one of its nodes dies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import EPOCH, Site, site_on, split
from tests.training.forks import QUICKLY
from tests.training.states import equal

# Slurm asks its nodes for a sign of life three times in SlurmdTimeout; what is silent for so long is down. The script is
# to notice a dead node in between: srun gives it 60 s (--wait), and KillWait and 2 s to end. Real sites' 300 are too long.
SETTINGS = "SlurmdTimeout=180\nKillWait=30"
SILENT = "A node of n[2-3] does not answer: waiting for Slurm to start the job again"
STEPS, SAVE_EVERY = 50, 7  # which does not divide an epoch's 25
DELAY = 0.3  # seconds: for nothing else is slept so long
PACE = ("--step-delay", str(DELAY), "--sync-every", "1", "--save-every", str(SAVE_EVERY))
# The processors of a node are 8: a job of one leaves room for all the others, and one of 5 for no second.
SMALL, WIDE = ("--cpus-per-task", "1"), ("--cpus-per-task", "5")
# From the 12th step on, a step takes ten seconds until the job has been interrupted: no machine is too busy for that,
# and Slurm, which looks at time limits each half minute, is in time.
SLOWLY = f"""
import os, time

exec(open({str(QUICKLY / "sitecustomize.py")!r}).read())
steps, sleep, until = 0, time.sleep, os.environ.get("UNTIL", "")

def wait(seconds):
    global steps
    sleep(seconds)
    steps += seconds == {DELAY}
    end = time.monotonic() + 10 if seconds == {DELAY} and steps >= 12 and until else 0
    while time.monotonic() < end and not os.path.exists(until):
        sleep(0.1)

time.sleep = wait
"""
# Half as many processes as with torchrun, which the others have; test_surviving_programs reaches a time limit with that.
TASKS = ("--launcher", "srun")


@pytest.fixture(scope="module")
def site(slurm_root: Path | None) -> Iterator[Site]:
    with Cluster(visible=VISIBLE, settings=SETTINGS, root=slurm_root) as cluster:
        cluster.put("work/slowly/sitecustomize.py", SLOWLY)
        yield site_on(cluster)


def start(site: Site, name: str, *arguments: str) -> int:
    flags, trainer = split(arguments)
    env = [
        f"PYTHONPATH={site.folder / 'slowly'}:{QUICKLY}",
        *([] if name == "alone" else [f"UNTIL={interrupted(site, name)}"]),
    ]
    variables = [word for variable in env for word in ("--env", variable)]
    shape = ("ddp", "--nodes", "2", "--gpus-per-node", "1")
    return site.submit(name, *shape, *variables, *flags, "--", *PACE, *trainer)


def interrupted(site: Site, name: str) -> Path:
    """The file that is there from the interruption of a job on."""
    return site.folder / f"interrupted-{name}"


@pytest.fixture(scope="module", autouse=True)
def jobs(site: Site) -> dict[str, int]:
    """All jobs, each interrupted once; slow things first, for Slurm looks at limits and nodes now and then."""
    cluster = site.cluster
    ids = {
        "limited": start(
            site, "limited", *SMALL, *TASKS, *"--nodelist n1,n2 --signal B:USR1@120 -- --deadline off".split()
        ),
        "worker-lost": start(site, "worker-lost", *SMALL, "--exclude", "n1", "--requeue-on-node-fail"),
        "host-lost": start(site, "host-lost", *SMALL, *TASKS, "--nodelist", "n3,n4"),
    }
    for name, nodes in {"worker-lost": "n[2-3]", "host-lost": "n[3-4]"}.items():
        site.reach_step(name, 10)
        cluster.until(lambda name=name: any(site.events(name, "save")), "a first checkpoint")  # type: ignore[misc]
        record = cluster.job(ids[name])
        assert (record["NodeList"], record["BatchHost"]) == (nodes, nodes[:3].replace("[", ""))
    cluster.stop_node("n3")
    for name in ("worker-lost", "host-lost"):
        interrupted(site, name).touch()
    ids |= {
        "alone": start(site, "alone", *SMALL, *TASKS, "--nodelist", "n1,n2"),
        "requeued": start(site, "requeued", *SMALL, "--nodelist", "n1,n2"),
        "cancelled": start(site, "cancelled", *SMALL, *TASKS, "--nodelist", "n2,n4"),
        "preempted": start(site, "preempted", *WIDE, *TASKS, "--nodelist", "n1,n4", "--partition", "low"),
    }

    def trains(name: str) -> bool:
        return any(int(str(event["step"])) >= 10 for event in site.events(name, "train"))

    def moved() -> bool:
        record = cluster.job(ids["worker-lost"])
        return record["Restarts"] == "1" and record["JobState"] in {"RUNNING", "COMPLETED"}

    def limit() -> None:
        """End it in one to two minutes: with its --signal that is near enough to be warned at once."""
        hours, minutes, _ = map(int, cluster.job(limited)["RunTime"].split(":"))
        cluster.root(["scontrol", "update", f"jobid={limited}", f"timelimit={60 * hours + minutes + 2}"])

    def unlimit() -> None:
        """For its second start, which is not to be warned."""
        interrupted(site, "limited").touch()
        cluster.root(["scontrol", "update", f"jobid={limited}", "timelimit=60"])

    def again() -> None:
        ids["cancelled"] = start(site, "cancelled", *SMALL, *TASKS, "--nodelist", "n2,n4")

    def interrupt(name: str, how: Callable[[], object]) -> Callable[[], None]:
        def do() -> None:
            interrupted(site, name).touch()
            how()

        return do

    limited, requeued, cancelled = (str(ids[name]) for name in ("limited", "requeued", "cancelled"))
    as_soon_as_possible(cluster, {
        lambda: trains("limited"): limit,
        lambda: "Stopped by time limit" in site.log("limited"): unlimit,
        lambda: SILENT in site.log("worker-lost"): lambda: cluster.declare_down("n3"),
        moved: lambda: cluster.start_node("n3"),
        lambda: trains("requeued"): interrupt(
            "requeued", lambda: cluster.run(["scontrol", "requeue", requeued], check=True)
        ),
        lambda: trains("cancelled"): interrupt("cancelled", lambda: cluster.run(["scancel", cancelled], check=True)),
        lambda: cluster.job(cancelled)["JobState"] == "CANCELLED": again,
        lambda: trains("preempted"): interrupt(
            "preempted", lambda: cluster.sbatch("--partition=high", "--nodelist=n4", *WIDE, "--wrap=true")
        ),
    })  # fmt: skip
    return ids


def as_soon_as_possible(cluster: Cluster, steps: dict[Callable[[], bool], Callable[[], object]]) -> None:
    """Do each thing once its condition holds, in whatever order that happens."""
    waiting = dict(steps)

    def nothing_left() -> bool:
        for ready in [ready for ready in waiting if ready()]:
            waiting.pop(ready)()
        return not waiting

    cluster.until(nothing_left, "end of what is to happen to the jobs")


def test_stopped_by_the_signal_before_its_time_limit(site: Site, jobs: dict[str, int]) -> None:
    record = finished(site, jobs, "limited")
    assert record["Restarts"] == "1"
    log = site.log("limited")
    assert re.search(r"Stopped by time limit at step \d+; checkpoint \S+ saved", log)
    assert "Requeueing: restart 1 of at most 10" in log
    assert set(lost(site, "limited")) == {0}


@pytest.mark.parametrize("name", ["requeued", "preempted"])
def test_requeued_by_hand_or_for_the_sake_of_another_job(site: Site, jobs: dict[str, int], name: str) -> None:
    """Slurm sends SIGTERM to all processes, and starts the job again by itself."""
    assert finished(site, jobs, name)["Restarts"] == "1"
    assert re.search(r"Stopped by (cancelled|SIGTERM) at step \d+; checkpoint \S+ saved", site.log(name))
    assert "Requeueing" not in site.log(name)
    assert lost(site, name) == [0]


def test_cancelled_and_submitted_again(site: Site, jobs: dict[str, int]) -> None:
    assert finished(site, jobs, "cancelled")["Restarts"] == "0"
    assert lost(site, "cancelled") == [0]


def test_a_node_dies_before_slurm_knows(site: Site, jobs: dict[str, int]) -> None:
    """The script of the node that is left sees its training fail, and may not take that for the job's fault."""
    record = finished(site, jobs, "worker-lost")
    assert (record["Restarts"], record["NodeList"]) == ("1", "n[2,4]")
    assert site.log("worker-lost").count(SILENT) == 1
    assert max(lost(site, "worker-lost")) <= SAVE_EVERY


def test_the_node_of_the_script_dies(site: Site, jobs: dict[str, int]) -> None:
    """Nothing is left to clear up: Slurm finds out, and the next start finds the lock of a dead process."""
    record = finished(site, jobs, "host-lost")
    assert (record["Restarts"], record["NodeList"]) == ("1", "n[3-4]")
    taken_over = (
        r"Taking over the run folder from process \d+ on n3, job \d+: it is an earlier start of this job"
    )
    assert len(re.findall(taken_over, site.log("host-lost"))) == 1
    assert max(lost(site, "host-lost")) <= SAVE_EVERY


def finished(site: Site, jobs: dict[str, int], name: str) -> dict[str, str]:
    """The record of a job that has ended as the one left alone did."""
    for run in ("alone", name):
        record = site.cluster.wait(jobs[run], {"COMPLETED"})
    log = site.log(name)
    assert log.count("Training completed") == 1
    assert [int(epoch) for epoch, _, _ in EPOCH.findall(log)] == [1, 2]
    assert site.status(name)["state"] == "done"
    assert equal(at_the_end(site, name), at_the_end(site, "alone"))
    assert not lost(site, "alone")
    return record


def at_the_end(site: Site, name: str) -> Any:
    """The weights, and the state of the optimizer."""
    path = site.folder / "runs" / name / "checkpoints" / f"step-{STEPS:08}.pt"
    state = torch.load(path, weights_only=True)
    return {part: state[part] for part in ("model", "optimizer")}


def lost(site: Site, name: str) -> list[int]:
    """For each time that a run resumed: how many of its steps had to be done again."""
    path = site.folder / "runs" / name / "events.jsonl"
    done, again = 0, []
    for event in map(json.loads, path.read_text().splitlines()):
        if event["event"] == "train":
            done = int(event["step"])
        elif event["event"] == "resume":
            again.append(max(0, done - int(event["step"])))
    return again
