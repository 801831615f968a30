"""When a job would start, on a real Slurm: each row is typed as it is printed, and Slurm does what the row says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fixtures import VISIBLE
from tests.cluster.job import TERMINAL
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.slurm.test_gpus import PROFILE

SLEEPS = "#!/bin/bash\nsleep 900\n"
WORDS = ["-m", "sbatchgen"]
LIMITS = (
    "add account lab",
    "add qos small",
    "add user alice account=lab",
    "modify qos small set MaxTRESPerUser=gres/gpu=4",
    "modify user alice set qos=normal,small",
    "modify account lab set GrpTRES=gres/gpu=6",
)


@pytest.fixture
def slurm(cluster: Cluster) -> Iterator[Cluster]:
    """Four idle nodes, and a profile of them."""
    cluster.put("ours.yaml", PROFILE)
    yield cluster
    empty(cluster)


def empty(cluster: Cluster) -> None:
    cluster.root(["scancel", "--signal=KILL", "--user", cluster.user], check=False)
    cluster.root(["scancel", "--user", cluster.user], check=False)
    for name in ("maint", "class"):
        cluster.root(["scontrol", "delete", f"reservationname={name}"], check=False)
    cluster.root(["scontrol", "update", "partitionname=cpu", "state=up"])
    cluster.until(lambda: not cluster.run(["squeue", "--noheader"]).stdout.strip(), "an empty queue")
    cluster.until(lambda: states(cluster) == {"idle"}, "idle nodes")  # a node completes after its job


def states(cluster: Cluster) -> set[str]:
    return {*cluster.run(["sinfo", "--noheader", "--Node", "--format=%T"]).stdout.split()}


def sbatchgen(cluster: Cluster, *arguments: str, env: dict[str, str] | None = None) -> Any:
    paths = {"PYTHONPATH": str(REPOSITORY), **(env or {})}
    return cluster.run([sys.executable, *WORDS, *arguments], env=paths)


def when(cluster: Cluster, *arguments: str, env: dict[str, str] | None = None) -> Any:
    words = ("when", *arguments, "--profile", "./ours.yaml", "--format", "json")
    done = sbatchgen(cluster, *words, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def job(cluster: Cluster, *options: str) -> int:
    return cluster.sbatch(*options, "--output=/dev/null", script=SLEEPS)


def started(cluster: Cluster, row: dict[str, Any]) -> dict[str, str]:
    """The record of the job that a row submits as it is typed, once it has started; its trainer lacks torch, and fails."""
    done = sbatchgen(cluster, *row["argv"][1:], "--yes")
    assert done.returncode == 0, done.stderr
    return cluster.wait(done.stdout.strip(), {"RUNNING", *TERMINAL})


def planned(cluster: Cluster, number: int) -> str:
    """The start that Slurm plans for a job that waits, once it does."""
    what = f"a planned start of {number}"
    cluster.until(lambda: cluster.job(number)["StartTime"] != "Unknown", what)
    return cluster.job(number)["StartTime"]


def busy(cluster: Cluster) -> int:
    """A job on three nodes for twenty minutes, and one that waits for all four."""
    runs = job(cluster, "--nodes=3", "--exclusive", "--time=20")
    cluster.wait(runs, {"RUNNING"})
    waits = job(cluster, "--nodes=4", "--exclusive", "--time=20", "--job-name=big")
    planned(cluster, waits)
    return waits


def test_each_hole_starts_at_once_as_it_is_typed_and_delays_nobody(slurm: Cluster) -> None:
    waits = busy(slurm)
    output = when(slurm, "ddp", "--nodes", "2", "--time", "1:00:00", "--partition", "gpu")
    (hole,) = (row for row in output["rows"] if row["kind"] == "hole")
    assert hole["options"][:2] == ["--nodes", "1"]
    assert f"until {planned(slurm, waits)[11:16]}, when job {waits} is planned there" in hole["says"]
    before = planned(slurm, waits)
    record = started(slurm, hole)
    assert record["NodeList"] == "n4"
    limit = timedelta(seconds=hole["time_s"])
    assert datetime.fromisoformat(record["StartTime"]) + limit <= datetime.fromisoformat(before)
    assert planned(slurm, waits) == before


def test_a_limit_beyond_the_hole_is_no_hole_and_waits(slurm: Cluster) -> None:
    busy(slurm)
    output = when(slurm, "single", "--time", "1:00:00", "--partition", "gpu")
    kinds = {row["kind"]: row for row in output["rows"]}
    assert kinds["hole"]["time_s"] < 20 * 60
    assert (kinds["bound"]["time_s"], kinds["bound"]["options"]) == (3600, [])
    assert "ignores holes" in kinds["bound"]["says"]
    done = sbatchgen(slurm, *kinds["bound"]["argv"][1:], "--yes")
    number = int(done.stdout.strip())
    planned(slurm, number)
    assert slurm.job(number)["JobState"] == "PENDING"
    shown = sbatchgen(slurm, "status", "single").stdout
    assert f"Slurm plans its start on {slurm.job(number)['SchedNodeList']} " in shown
    output = when(slurm, "single", "--time", "1:00:00", "--partition", "gpu")
    (plan,) = (row for row in output["rows"] if row["kind"] == "plan")
    assert datetime.fromisoformat(plan["start"]).strftime("%FT%T") == planned(slurm, number)
    assert "ahead of it wait 1 job" in plan["says"]


def test_what_the_training_needs_decides_the_limit_and_the_order(slurm: Cluster) -> None:
    busy(slurm)
    ten = ("ddp", "--nodes", "1", "--time", "20:00:00", "--partition", "gpu", "--needs", "10min")
    first, *_ = when(slurm, *ten)["rows"]
    assert (first["kind"], first["options"], first["needs_s"]) == ("hole", ["--time", "0-00:12:00"], 600)
    ends = datetime.fromisoformat(first["end"]) - datetime.fromisoformat(first["start"])
    assert ends == timedelta(minutes=10)
    assert started(slurm, first)["TimeLimit"] == "00:12:00"
    slurm.root(["scancel", "--user", slurm.user, "--name=ddp"])
    slurm.until(lambda: "ddp" not in slurm.run(["squeue", "--format=%j"]).stdout, "the end of ddp")
    rows = when(slurm, *ten[:-1], "2h")["rows"]
    kinds = {row["kind"]: row for row in rows}
    assert [row["kind"] for row in rows] == ["bound", "hole"]  # a piece comes after what ends the training
    assert (kinds["bound"]["time_s"], "of what the training needs" in kinds["hole"]["says"]) == (8280, True)


def test_an_empty_cluster_takes_the_job_as_it_is(slurm: Cluster) -> None:
    output = when(slurm, "ddp", "--nodes", "4", "--time", "1:00:00")
    assert [(row["kind"], row["partition"], row["options"]) for row in output["rows"]] == [
        ("hole", "gpu", [])
    ]
    shown = sbatchgen(slurm, "when", "ddp", "--profile", "./ours.yaml", "--nodes", "4").stdout
    assert "now " in shown
    assert "for the first: sbatchgen submit ddp --profile ./ours.yaml --nodes 4\n" in shown


def test_a_maintenance_bounds_holes_and_a_reservation_takes_its_nodes(slurm: Cluster) -> None:
    made = "starttime=now+1hours duration=60 flags=maint,ignore_jobs nodes=ALL users=root".split()
    slurm.root(["scontrol", "create", "reservation", "reservationname=maint", *made])
    made = "starttime=now duration=60 flags=ignore_jobs nodes=n[1-3] users=root".split()
    slurm.root(["scontrol", "create", "reservation", "reservationname=class", *made])
    output = when(slurm, "single", "--time", "2:00:00", "--partition", "gpu")
    (hole,) = (row for row in output["rows"] if row["kind"] == "hole")
    assert "when reservation maint begins there" in hole["says"]
    assert started(slurm, hole)["NodeList"] == "n4"
    slurm.root(["scontrol", "update", "nodename=n4", "state=drain", "reason=test"])
    none = when(slurm, "ddp", "--nodes", "4", "--time", "0:10:00", "--partition", "gpu")
    slurm.root(["scontrol", "update", "nodename=n4", "state=resume"])
    assert [row for row in none["rows"] if row["kind"] == "hole"] == []


def test_closed_partitions_and_long_limits_are_out(slurm: Cluster) -> None:
    slurm.root(["scontrol", "update", "partitionname=cpu", "state=down"])
    assert when(slurm, "single", "--time", "1:00:00")["out"] == {"cpu": "the partition is down"}
    slurm.root(["scontrol", "update", "partitionname=cpu", "state=up"])
    assert "time limit 0-02:00:00" in when(slurm, "single", "--time", "3:00:00")["out"]["cpu"]


def test_what_it_asks_of_slurm_and_that_it_submits_nothing(slurm: Cluster, tmp_path: Path) -> None:
    busy(slurm)
    calls = slurm.home / "calls"
    for name in ("squeue", "scontrol", "sinfo", "sbatch"):
        text = f'#!/bin/sh\necho {name} "$@" >> {calls}\nexec /usr/bin/{name} "$@"\n'
        slurm.put(f"bin/{name}", text, mode=0o755)
    before = slurm.run(["squeue", "--noheader", "--format=%i"]).stdout
    path = {"PATH": f"{slurm.home}/bin:/usr/bin:/bin"}
    when(slurm, "single", "--time", "2:00:00", env=path)
    asked = [line.split() for line in calls.read_text().splitlines()]
    calls.unlink()
    assert [words[1] for words in asked if words[0] == "sbatch"] == ["--test-only"] * 2
    shown = [" ".join(words[words.index("show") :]) for words in asked if words[0] == "scontrol"]
    of_shards = [
        name for name in shown if name == "show job"
    ]  # of nodes before 23.11, which do not show them
    assert sorted(set(shown) - {"show job"}) == [
        "show config",
        "show node",
        "show partition",
        "show reservation",
    ]
    assert len(shown) - len(of_shards) == 4
    assert len([words for words in asked if words[0] == "squeue"]) == 1 + len(of_shards)
    assert slurm.run(["squeue", "--noheader", "--format=%i"]).stdout == before


def test_limits_of_accounts_and_qos_and_hidden_jobs(slurm_root: Path | None) -> None:
    settings = "PrivateData=none\n"
    with Cluster(visible=VISIBLE, root=slurm_root, accounts=LIMITS, settings=settings) as limited:
        limited.put("ours.yaml", PROFILE)
        runs = job(limited, "--nodes=1", "--gpus-per-node=3", "--qos=small", "--time=30")
        limited.wait(runs, {"RUNNING"})
        two = ("ddp", "--nodes", "1", "--gpus-per-node", "2", "--partition", "gpu", "--time", "0:10:00")
        small = when(limited, *two, "--qos", "small")
        said = "your share of QOS small has 3 of 4 GPUs in use, and the job needs 2 (MaxTRESPU)"
        assert (small["rows"], small["out"]) == ([], {"gpu": said})
        held = sbatchgen(limited, "submit", *two, "--qos", "small", "--profile", "./ours.yaml", "--yes")
        number = int(held.stdout.strip())
        limited.until(lambda: "QOS" in limited.job(number)["Reason"], "a job that a limit holds back")
        free = when(limited, *two, "--qos", "normal", "--job-name", "other", "--run-dir", "other")
        (hole,) = (row for row in free["rows"] if row["kind"] == "hole")
        assert started(limited, hole)["NodeList"]
        four = ("ddp", "--nodes", "1", "--gpus-per-node", "4", "--qos", "normal", "--partition", "gpu")
        assert when(limited, *four)["out"]["gpu"].startswith("account lab has 3 of 6 GPUs in use")


def test_where_others_are_hidden_only_bounds_are_shown(slurm_root: Path | None) -> None:
    with Cluster(visible=VISIBLE, root=slurm_root, settings="PrivateData=jobs\n") as private:
        private.put("ours.yaml", PROFILE)
        output = when(private, "single", "--time", "0:10:00", "--partition", "gpu")
        assert [row["kind"] for row in output["rows"]] == ["bound"]
        assert any("PrivateData" in note for note in output["notes"])
