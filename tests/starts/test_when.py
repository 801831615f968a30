"""When a job would start, on a real Slurm: each row is typed as it is printed, and Slurm does what the row says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fixtures import FIRST, LATER, VISIBLE, on_one_release
from tests.cluster.job import TERMINAL
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.slurm.test_gpus import PROFILE

SLEEPS = "#!/bin/bash\nsleep 900\n"
WORDS = ["-m", "sbatchgen"]
LIMITS = (
    "add account lab",
    "add qos small",
    "add qos short",
    "modify qos short set MaxWall=00:30:00",
    "add user alice account=lab",
    "modify qos small set MaxTRESPerUser=gres/gpu=4",
    "modify user alice set qos=normal,small,short",
    "modify account lab set GrpTRES=gres/gpu=6",
    "modify user alice set MaxWall=02:00:00",
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


@pytest.mark.proof
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
    shown = sbatchgen(slurm, "status", str(number)).stdout
    assert f"Slurm plans its start on {slurm.job(number)['SchedNodeList']} " in shown
    output = when(slurm, "single", "--time", "1:00:00", "--partition", "gpu")
    (plan,) = (row for row in output["rows"] if row["kind"] == "plan")
    assert datetime.fromisoformat(plan["start"]).strftime("%FT%T") == planned(slurm, number)
    assert "ahead of it wait 1 job" in plan["says"]


@pytest.mark.proof
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


@pytest.mark.proof
def test_a_training_beyond_the_longest_limit_is_cut_into_pieces(slurm: Cluster) -> None:
    words = ("ddp", "--nodes", "1", "--time", "2:00:00", "--partition", "gpu", "--needs", "60h")
    (whole,) = when(slurm, *words)["rows"]
    assert (whole["options"], whole["time_s"], whole["starts"]) == (["--time", "1-00:00:00"], 86400, 1)
    assert "a piece: 40% of what the training needs" in whole["says"]
    (pieces,) = when(slurm, *words, "--fit")["rows"]
    assert (pieces["options"], pieces["starts"]) == (["--time", "1-00:00:00"], 3)
    assert started(slurm, pieces)["TimeLimit"] == "1-00:00:00"


@pytest.mark.proof
def test_a_job_that_lets_slurm_choose_its_limit_gets_that_of_the_hole(slurm: Cluster) -> None:
    busy(slurm)
    words = ("single", "--time", "2:00:00", "--time-min", "1:00:00", "--partition", "gpu")
    hole, *_ = when(slurm, *words)["rows"]
    assert (hole["kind"], hole["options"][::2]) == ("hole", ["--time-min"])
    record = started(slurm, hole)
    assert record["NodeList"] == "n4"
    limit = timedelta(minutes=int(record["TimeLimit"].split(":")[1]))
    assert limit >= timedelta(seconds=hole["time_s"])


@pytest.mark.proof
def test_what_keeps_a_job_waiting_whatever_is_free_has_no_start(slurm: Cluster) -> None:
    runs = job(slurm, "--nodes=4", "--exclusive", "--time=20")
    slurm.wait(runs, {"RUNNING"})
    for option, more, reason in (
        ("dependency", ("--dependency", f"afterok:{runs}"), "Dependency"),
        ("hold", ("--sbatch", "hold"), "JobHeldUser"),
    ):
        words = ("single", "--time", "0:10:00", "--partition", "gpu", "--job-name", option, *more)
        output = when(slurm, *words)
        (row,) = output["rows"]
        says = f"its start is not known: --{option} keeps it waiting"
        assert (row["kind"], row["start"], row["end"], row["says"]) == ("bound", None, None, says)
        done = sbatchgen(slurm, *row["argv"][1:], "--yes")
        waits = done.stdout.strip()
        slurm.until(lambda waits=waits, reason=reason: slurm.job(waits)["Reason"] == reason, reason)  # type: ignore[misc]


def test_an_empty_cluster_takes_the_job_as_it_is(slurm: Cluster) -> None:
    output = when(slurm, "ddp", "--nodes", "4", "--time", "1:00:00")
    assert [(row["kind"], row["partition"], row["options"]) for row in output["rows"]] == [
        ("hole", "gpu", [])
    ]
    shown = sbatchgen(slurm, "when", "ddp", "--profile", "./ours.yaml", "--nodes", "4").stdout
    assert "now " in shown
    assert "for the first: sbatchgen submit ddp --profile ./ours.yaml --nodes 4\n" in shown


@pytest.mark.proof
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


@pytest.mark.proof
def test_closed_partitions_and_long_limits_are_out(slurm: Cluster) -> None:
    slurm.root(["scontrol", "update", "partitionname=cpu", "state=down"])
    assert when(slurm, "single", "--time", "1:00:00")["out"] == {"cpu": "the partition is down"}
    slurm.root(["scontrol", "update", "partitionname=cpu", "state=up"])
    assert "time limit 0-02:00:00" in when(slurm, "single", "--time", "3:00:00")["out"]["cpu"]


def test_what_it_asks_of_slurm_and_that_it_submits_nothing(slurm: Cluster, tmp_path: Path) -> None:
    busy(slurm)
    calls = slurm.home / "calls"
    for name in ("squeue", "scontrol", "sinfo", "sbatch", "sdiag"):
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
    assert [words for words in asked if words[0] in ("sdiag", "sinfo")] == [["sdiag"]]
    assert slurm.run(["squeue", "--noheader", "--format=%i"]).stdout == before


@pytest.mark.proof
def test_limits_of_accounts_and_qos_and_hidden_jobs(slurm_root: Path | None) -> None:
    settings = "PrivateData=none\nPriorityType=priority/multifactor\nPriorityWeightJobSize=500\n"
    with Cluster(visible=VISIBLE, root=slurm_root, accounts=LIMITS, settings=settings) as limited:
        limited.put("ours.yaml", PROFILE)
        runs = job(limited, "--nodes=1", "--gpus-per-node=3", "--qos=small", "--time=30")
        limited.wait(runs, {"RUNNING"})
        two = ("ddp", "--nodes", "1", "--gpus-per-node", "2", "--partition", "gpu", "--time", "0:10:00")
        small = when(limited, *two, "--qos", "small")
        said = "your share of QOS small has 3 of 4 GPUs in use, and the job needs 2 (MaxTRESPU)"
        (other,) = small["rows"]
        assert (other["kind"], other["options"], small["out"]) == ("hole", ["--qos", "normal"], {"gpu": said})
        held = sbatchgen(limited, "submit", *two, "--qos", "small", "--profile", "./ours.yaml", "--yes")
        number = int(held.stdout.strip())
        limited.until(lambda: "QOS" in limited.job(number)["Reason"], "a job that a limit holds back")
        (plan, *_) = (row for row in when(limited, *two)["rows"] if row["kind"] == "plan")
        assert "; its priority is of size " in plan["says"]
        for more, said in (
            (
                ("--qos", "short", "--time", "1:00:00"),
                "QOS short allows 0-00:30:00, and the job asks for 0-01:00:00",
            ),
            (("--time", "3:00:00"), "account lab allows 0-02:00:00, and the job asks for 0-03:00:00"),
        ):
            assert said in when(limited, *two, *more)["out"]["gpu"]
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


@pytest.mark.proof
def test_what_was_shown_is_kept_and_compared_with_what_came(slurm: Cluster) -> None:
    words: tuple[str, ...] = ()
    for number in range(5):
        words = ("single", "--time", "0:10:00", "--partition", "gpu", "--job-name", f"t{number}")
        (hole,) = (row for row in when(slurm, *words)["rows"] if row["kind"] == "hole")
        started(slurm, hole)
        assert sbatchgen(slurm, "status", f"t{number}").returncode == 0
    said = "5 of your last 5 starts of this kind came within 20 minutes of what was shown"
    assert f"hole: {said}" in when(slurm, *words)["notes"]
    words = (*words[:-1], "later", "--begin", "now+15", "--profile", "./ours.yaml", "--yes")
    later = sbatchgen(slurm, "submit", *words).stdout.strip()
    slurm.wait(later, {"RUNNING", *TERMINAL})
    assert sbatchgen(slurm, "status", later).returncode == 0
    kept = json.loads((slurm.home / ".local/state/sbatchgen/starts.json").read_text())["starts"]
    (last,) = (each for each in kept if each["job"] == later)
    assert last["eligible"] - last["submitted"] > 10  # which does not count
    assert last["started"] >= last["eligible"]


@pytest.mark.proof
def test_a_piece_starts_at_once_with_the_limit_of_its_hole(slurm: Cluster) -> None:
    waits = busy(slurm)
    before = planned(slurm, waits)
    words = ("ddp", "--nodes", "1", "--time", "20:00:00", "--partition", "gpu", "--run-dir", "pieces")
    first, *_ = when(slurm, *words, "--fit", "--needs", "5h")["rows"]
    assert (first["kind"], first["needs_s"]) == ("hole", 5 * 3600)
    pieces = first["starts"]  # 17 of a hole of 20 minutes, more if this machine has taken minutes to look
    assert 17 <= pieces <= 60
    assert (pieces - 1) * first["time_s"] < 1.15 * 5 * 3600 + pieces * 300
    assert first["options"][0::2] == ["--time", "--time-min", "--max-restarts"]
    assert f"which ends after {pieces} starts at the soonest" in first["says"]
    record = started(slurm, first)
    limit = timedelta(minutes=int(record["TimeLimit"].split(":")[1]))
    assert limit >= timedelta(seconds=first["time_s"])  # 22.05 gives --time-min, a later one all of the hole
    assert datetime.fromisoformat(record["StartTime"]) + limit <= datetime.fromisoformat(before)
    slurm.root(["scancel", "--user", slurm.user, "--name=ddp"])
    slurm.until(lambda: "ddp" not in slurm.run(["squeue", "--format=%j"]).stdout, "the end of ddp")
    done = sbatchgen(slurm, "submit", *words, "--profile", "./ours.yaml", "--fit", "--yes")
    assert "note: hole: 1 node of gpu is free until" in done.stderr
    assert slurm.wait(done.stdout.strip(), {"RUNNING", *TERMINAL})["TimeMin"] != "N/A"
    assert planned(slurm, waits) == before


def test_pieces_are_of_a_job_that_continues(slurm: Cluster) -> None:
    slurm.put("mine.py", "print(1)\n")
    words = ("single", "--trainer", "mine.py", "--resume", "off", "--profile", "./ours.yaml")
    done = sbatchgen(slurm, "when", *words, "--fit")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the job does not continue after its time limit" in done.stderr
    assert sbatchgen(slurm, "submit", "single", "ddp", *words[-2:], "--fit", "--yes").returncode == 2


@pytest.mark.proof
def test_two_pieces_at_once_share_a_hole_and_delay_nobody(slurm: Cluster) -> None:
    waits = busy(slurm)
    before = planned(slurm, waits)
    words = ("ddp", "--nodes", "1", "--time", "20:00:00", "--partition", "gpu", "--profile", "./ours.yaml")
    more = ("--fit", "--needs", "5h", "--yes")
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(
            lambda name: sbatchgen(slurm, "submit", *words, "--job-name", name, *more), ("first", "second")
        )
    ids = [done.stdout.strip() for done in both]
    assert all(ids)
    slurm.until(lambda: any(slurm.job(each)["StartTime"] != "Unknown" for each in ids), "a start in the hole")
    assert all(slurm.job(each)["TimeMin"] != "N/A" for each in ids)
    assert planned(slurm, waits) == before
    alone = sbatchgen(slurm, "submit", *words, "--needs", "5h", "--yes")
    assert (alone.returncode, "--needs works only with --fit" in alone.stderr) == (2, True)


@pytest.mark.proof
def test_pieces_of_a_chain_and_of_tasks_are_as_many_as_the_training_needs(slurm: Cluster) -> None:
    busy(slurm)
    words = ("ddp", "--nodes", "1", "--time", "20:00:00", "--partition", "gpu", "--fit", "--needs", "2h")
    for more, option in ((("--chain", "3"), "--chain"), (("--array", "0-1%1"), "--array")):
        first, *_ = when(slurm, *words, *more)["rows"]
        value = dict(zip(first["options"][::2], first["options"][1::2], strict=True))[option]
        assert value == (str(first["starts"]) if option == "--chain" else f"1-{first['starts']}%1")
        assert "--max-restarts" not in first["options"]
    done = sbatchgen(slurm, *first["argv"][1:], "--yes")
    tasks = slurm.jobs(done.stdout.strip())
    assert tasks[0]["ArrayTaskThrottle"] == "1"


@pytest.mark.proof
def test_a_piece_ends_before_a_maintenance_and_the_rest_begins_after_it(slurm: Cluster) -> None:
    made = "starttime=now+2hours duration=60 flags=maint,ignore_jobs nodes=ALL users=root".split()
    slurm.root(["scontrol", "create", "reservation", "reservationname=maint", *made])
    words = ("ddp", "--nodes", "1", "--time", "20:00:00", "--partition", "gpu", "--needs", "3h", "--fit")
    first, bound = when(slurm, *words)["rows"]
    assert (first["kind"], first["starts"], bound["kind"]) == ("hole", 2, "bound")
    start, end = (datetime.fromisoformat(first[name]) for name in ("start", "end"))
    piece = timedelta(seconds=first["time_s"])
    again = start + timedelta(hours=3) - (timedelta(hours=3) - piece)  # without the hour in between
    assert end - again >= timedelta(hours=3) - piece + timedelta(minutes=59)
    assert first["end"] < bound["end"]
    record = started(slurm, first)
    begins = datetime.fromisoformat(record["StartTime"])
    limit = timedelta(hours=int(record["TimeLimit"][:2]), minutes=int(record["TimeLimit"][3:5]))
    shown = slurm.run(["scontrol", "-o", "show", "reservation", "maint"]).stdout
    assert begins + limit <= datetime.fromisoformat(shown.partition("StartTime=")[2].split()[0])


BUSY = PROFILE.replace("  cpu:", "  low: {gpus_per_node: 4}\n  high: {gpus_per_node: 4}\n  cpu:")


@pytest.mark.proof
def test_a_partition_that_preempts_others_and_one_that_is_preempted(slurm: Cluster) -> None:
    slurm.put("ours.yaml", BUSY)
    ten = ("ddp", "--nodes", "4", "--time", "0:10:00", "--gpus-per-node", "4")
    (low,) = (row for row in when(slurm, *ten, "--partition", "low")["rows"] if row["kind"] == "hole")
    said = "partition high may preempt it (REQUEUE): no time is left to save, and Slurm starts it again"
    assert said in low["says"]
    never = when(slurm, *ten, "--partition", "low", "--resume", "off", "--no-requeue")["rows"]
    assert "no time is left to save, and it ends then" in never[0]["says"]
    assert "preempt" not in when(slurm, *ten, "--partition", "high")["rows"][0]["says"]
    runs = job(slurm, "--partition=low", "--nodes=4", "--exclusive", "--time=60", "--requeue")
    slurm.wait(runs, {"RUNNING"})
    output = when(slurm, *ten, "--partition", "high")
    (bound,) = output["rows"]
    assert (bound["kind"], bound["options"]) == ("bound", [])
    assert "reempts" in bound["says"]
    assert started(slurm, bound)["NodeList"] == "n[1-4]"
    slurm.until(lambda: slurm.job(runs)["Restarts"] == "1", "the requeue of the job that was preempted")


@pytest.mark.proof
def test_a_bound_that_leaves_out_jobs_of_other_partitions_is_no_start(slurm: Cluster) -> None:
    slurm.put("ours.yaml", BUSY)
    waits = busy(slurm)
    words = ("single", "--time", "2:00:00", "--time-min", "1:00:00", "--partition")
    first, bound = when(slurm, *words[:3], *words[-1:], "low")["rows"]
    assert (first["kind"], bound["kind"], bound["start"]) == ("hole", "bound", None)
    assert (
        bound["says"]
        == f"its start is not known: Slurm's answer leaves out that job {waits} is planned there"
    )
    assert started(slurm, first)["NodeList"] == "n4"
    slurm.root(["scancel", "--user", slurm.user, "--name=single"])
    slurm.until(lambda: "single" not in slurm.run(["squeue", "--format=%j"]).stdout, "the end of single")
    (higher,) = when(slurm, *words[:3], *words[-1:], "high")["rows"]  # it goes before what waits in gpu
    assert (higher["kind"], higher["options"]) == ("hole", [])
    assert started(slurm, higher)["NodeList"] == "n4"


@pytest.mark.proof
def test_a_bound_of_full_nodes_leaves_out_jobs_of_other_partitions_too(slurm: Cluster) -> None:
    """It would be the first row, and in a partition whose jobs come later."""
    slurm.put("ours.yaml", BUSY)
    waits = busy(slurm)
    words = ("ddp", "--nodes", "2", "--time", "2:00:00", "--job-name", "late", "--partition")
    bounds = [row for row in when(slurm, *words, "gpu,low")["rows"] if row["kind"] == "bound"]
    starts = {row["partition"]: row["start"] for row in bounds}
    assert starts["low"] is None
    assert f"leaves out that job {waits} is planned there" in bounds[-1]["says"]
    assert datetime.fromisoformat(str(starts["gpu"])).strftime("%FT%T") >= slurm.job(waits)["EndTime"][:16]
    done = sbatchgen(slurm, *bounds[-1]["argv"][1:], "--yes")
    minute = slurm.job(waits)["EndTime"][:16]  # Slurm plans in whole minutes
    assert planned(slurm, int(done.stdout.strip())) >= minute


def test_what_is_not_looked_at_is_no_hole(slurm: Cluster) -> None:
    words = ("single", "--time", "0:10:00", "--partition", "gpu")
    output = when(slurm, *words, "--constraint", "[big*1]")
    assert not any(row["kind"] == "hole" for row in output["rows"])


@pytest.mark.proof
def test_of_each_user_slurm_looks_at_so_many_jobs(slurm_root: Path | None) -> None:
    settings = "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_max_job_user=1\n"
    with Cluster(visible=VISIBLE, root=slurm_root, settings=settings) as few:
        few.put("ours.yaml", PROFILE)
        words = ("single", "--time", "0:10:00", "--partition", "gpu")
        assert when(few, *words)["rows"][0]["kind"] == "hole"
        busy(few)
        output = when(few, *words)
        assert [row["kind"] for row in output["rows"]] == ["bound"]
        said = "your waiting jobs are 1, and Slurm looks at 1 of each user (bf_max_job_user)"
        assert output["out"] == {"gpu": said}
        waits = sbatchgen(few, "submit", *words, "--profile", "./ours.yaml", "--yes").stdout.strip()
        before = rounds(few)
        few.until(lambda: rounds(few) > before + 2, "three more rounds of backfill")
        assert few.job(waits)["JobState"] == "PENDING"


def rounds(cluster: Cluster) -> int:
    """How often backfill has looked at the queue."""
    printed = cluster.root(["sdiag"]).stdout.partition("Backfilling stats")[2]
    return int(printed.partition("Total cycles:")[2].split()[0])


SIX = "".join(f"PartitionName=p{number} Nodes=ALL MaxTime=1-00:00:00\n" for number in range(6))


@pytest.mark.proof
@on_one_release
def test_at_most_four_bounds_are_asked_for(slurm_root: Path | None) -> None:
    with Cluster(visible=VISIBLE, root=slurm_root, settings=SIX) as wide:
        wide.put(
            "ours.yaml",
            PROFILE[: PROFILE.index("partitions:")].replace("gpu", "p0")
            + ("partitions:\n" + "".join(f"  p{number}: {{gpus_per_node: 4}}\n" for number in range(6)))
            + PROFILE[PROFILE.index("options:") :],
        )
        wide.put(
            "bin/sbatch",
            f'#!/bin/sh\necho "$1" >> {wide.home}/calls\nexec /usr/bin/sbatch "$@"\n',
            mode=0o755,
        )
        runs = job(wide, "--partition=p0", "--nodes=4", "--exclusive", "--time=10")
        wide.wait(runs, {"RUNNING"})
        output = when(wide, "single", "--time", "0:30:00", env={"PATH": f"{wide.home}/bin:/usr/bin:/bin"})
        assert (wide.home / "calls").read_text().splitlines() == ["--test-only"] * 4
        assert "Slurm was asked 4 times, so no bound is known for p4, p5" in output["notes"]


@pytest.mark.proof
def test_nodes_of_a_feature(slurm: Cluster) -> None:
    slurm.root(["scontrol", "update", "nodename=n2", "availablefeatures=big", "activefeatures=big"])
    words = ("ddp", "--time", "0:10:00", "--partition", "gpu", "--constraint", "big", "--nodes")
    (hole,) = when(slurm, *words, "1")["rows"]
    assert started(slurm, hole)["NodeList"] == "n2"
    two = when(slurm, *words, "2")
    slurm.root(["scontrol", "update", "nodename=n2", "availablefeatures=", "activefeatures="])
    assert two["out"]["gpu"].startswith("no node of the partition has all of this at once, or it has fewer")


@pytest.mark.proof
def test_nodes_that_are_off_are_free_and_take_their_time(slurm_root: Path | None) -> None:
    settings = "SuspendProgram=/bin/true\nResumeProgram=/bin/true\nSuspendTimeout=1\nResumeTimeout=90\nSuspendTime=3600\n"
    with Cluster(visible=VISIBLE, root=slurm_root, settings=settings) as saving:
        saving.put("ours.yaml", PROFILE)
        saving.root(["scontrol", "update", "nodename=n[2-4]", "state=power_down"])
        shown = ["scontrol", "-o", "show", "node", "n4"]
        saving.until(lambda: "POWERED_DOWN" in saving.run(shown).stdout, "a node that is off")
        words = ("ddp", "--time", "0:10:00", "--partition", "gpu", "--nodes")
        (on,) = when(saving, *words, "1")["rows"]
        assert "switched on" not in on["says"]
        assert started(saving, on)["NodeList"] == "n1"
        saving.root(["scancel", "--user", saving.user])
        (off,) = when(saving, *words, "2")["rows"]
        assert "nodes that are off take up to 90 s to be switched on" in off["says"]
        waits = datetime.fromisoformat(off["start"]) - datetime.now().astimezone()
        assert timedelta(seconds=30) < waits <= timedelta(seconds=90)
        done = sbatchgen(saving, *off["argv"][1:], "--yes", "--again")
        assert saving.wait(done.stdout.strip(), {"CONFIGURING", "RUNNING"})["NodeList"]


TYPES = "Sockets=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=16000"
MIXED = f"""\
NodeName=n[1-3] {TYPES} Gres=gpu:a100:4,shard:64
NodeName=n4 {TYPES} Gres=gpu:h100:4,shard:64
PreemptMode=REQUEUE
{{signal}}
JobRequeue=0
PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-00:00:00 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=ALL MaxTime=1-00:00:00 PriorityTier=10 PreemptMode=OFF
"""
SIGNAL = {FIRST: "SlurmctldParameters=preempt_send_user_signal", LATER: "PreemptParameters=send_user_signal"}
MIXED_GRES = """\
NodeName=n[1-3] Name=gpu Type=a100 File={site}/dev/gpu[0-3]
NodeName=n4 Name=gpu Type=h100 File={site}/dev/gpu[0-3]
NodeName={nodes} Name=shard Count=64
"""


@pytest.mark.proof
def test_types_of_gpus_shards_and_preemption_with_a_grace_time(
    slurm_root: Path | None, slurm_release: str
) -> None:
    settings = MIXED.replace("{signal}", SIGNAL[slurm_release])
    with Cluster(visible=VISIBLE, root=slurm_root, settings=settings, gres=MIXED_GRES) as mixed:
        mixed.put("ours.yaml", PROFILE.replace("gpu_type: a100, ", ""))
        words = ("ddp", "--nodes", "1", "--time", "0:10:00", "--partition", "gpu")
        (typed,) = when(mixed, *words, "--gpus-per-node", "h100:2")["rows"]
        says = "partition high may preempt it (REQUEUE): 60 s are left to save, after its signal"
        assert f"{says}, and Slurm starts it again" in typed["says"]
        once = when(mixed, *words, "--gpus-per-node", "h100:2", "--resume", "off", "--max-restarts", "0")
        assert f"{says}, and it ends then" in once["rows"][0]["says"]
        assert started(mixed, typed)["NodeList"] == "n4"
        for _ in range(2):
            mixed.wait(job(mixed, "--nodelist=n4", "--gres=gpu:h100:2", "--time=20"), {"RUNNING"})
        out = when(mixed, *words, "--gpus-per-node", "h100:2", "--job-name", "late")["out"]
        assert "4 nodes: fewer than 2 free GPUs of type h100" in out["gpu"]
        shards = (
            "single",
            "--time",
            "0:10:00",
            "--partition",
            "gpu",
            "--gres",
            "shard:8",
            "--job-name",
            "part",
        )
        (shard,) = when(mixed, *shards)["rows"]
        assert started(mixed, shard)["NodeList"]


@pytest.mark.proof
@on_one_release
def test_a_slow_controller_is_asked_once_and_a_dead_one_not_for_ever(slurm: Cluster) -> None:
    for name in ("squeue", "scontrol"):
        slurm.put(f"bin/{name}", f'#!/bin/sh\nsleep 12\nexec /usr/bin/{name} "$@"\n', mode=0o755)
    for name in ("sbatch", "sprio", "sacctmgr"):
        slurm.put(f"bin/{name}", f"#!/bin/sh\necho {name} >> {slurm.home}/later\nsleep 600\n", mode=0o755)
    path = {"PATH": f"{slurm.home}/bin:/usr/bin:/bin"}
    slurm.put("ours.yaml", PROFILE.replace("default_partition", "answer_within: 00:00:50\ndefault_partition"))
    output = when(
        slurm, "single", "--time", "1:00:00", "--partition", "gpu", "--begin", "now+1hour", env=path
    )
    assert output["rows"] == []
    assert any("so it was asked for no further bound" in note for note in output["notes"])
    assert not (slurm.home / "later").exists()
    slurm.put("ours.yaml", PROFILE.replace("default_partition", "answer_within: 00:00:02\ndefault_partition"))
    done = sbatchgen(slurm, "when", "single", "--profile", "./ours.yaml", env=path)
    assert done.returncode == 5
    assert "Slurm's controller does not answer" in done.stderr
    assert "did not end within 2 s" in done.stderr


@pytest.mark.proof
def test_partitions_without_a_hole_are_taken_together(slurm: Cluster) -> None:
    runs = job(slurm, "--nodes=4", "--exclusive", "--time=10")
    slurm.wait(runs, {"RUNNING"})
    output = when(slurm, "single", "--time", "0:30:00", "--partition", "gpu,cpu")
    assert [row["partition"] for row in output["rows"]] == ["gpu", "cpu", "gpu,cpu"]
    row = output["rows"][-1]
    assert "in the first of gpu,cpu that has room" in row["says"]
    number = sbatchgen(slurm, *row["argv"][1:], "--yes").stdout.strip()
    assert slurm.job(number)["Partition"] == "gpu,cpu"


@pytest.mark.proof
def test_what_no_node_has_is_out(slurm: Cluster) -> None:
    words = ("ddp", "--nodes", "1", "--time", "0:10:00", "--partition", "gpu")
    outs = [when(slurm, *words, *more)["out"]["gpu"] for more in (("--gpus-per-node", "h100:1"),)]
    assert outs == ["GPUs of type a100"]
    job(slurm, "--nodes=4", "--gpus-per-node=3", "--time=10")
    slurm.until(lambda: states(slurm) == {"mixed"}, "jobs on all nodes")
    two = when(slurm, *words, "--gpus-per-node", "2")
    assert "fewer than 2 free GPUs" in two["out"]["gpu"]
    (single,) = when(slurm, *words, "--gpus-per-node", "1", "--array", "0-3")["rows"]
    assert (single["kind"], single["says"].endswith("for one task of the array")) == ("hole", True)
    started(slurm, {"argv": [*single["argv"], "--job-name", "tasks"]})
