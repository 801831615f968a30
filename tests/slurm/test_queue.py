"""What squeue says of jobs: of a real Slurm 22.05 with running jobs, and of real controllers of both releases."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from sbatchgen.base.errors import SlurmError
from sbatchgen.jobs.slurm import fields
from sbatchgen.jobs.slurm.queue import (
    SlurmJob,
    find_job,
    folder_prefix,
    key_of,
    private_script,
    squeue_jobs,
)
from tests.cluster.controller import Controller
from tests.cluster.slurm import Cluster
from tests.slurm import fakes

HOSTILE = "a|b\nc\x1fd\x1ee\x1b[31m,%i 4711 \udcff"  # the last one: a byte that is not UTF-8
MISLEADING = {
    "SQUEUE_FORMAT": "%i",
    "SQUEUE_STATES": "CD",
    "SLURM_TIME_FORMAT": "relative",
    "SLURM_JSON": "1",
}
NODES = "NodeName=n[1-4] CPUs=64 RealMemory=256000"
PARTITIONS = "PartitionName=gpu Nodes=n[1-4] Default=YES MaxTime=1-00:00:00 MaxNodes=3\nPartitionName=hidden Nodes=n1 Hidden=YES"


@pytest.fixture(scope="module", params=["22.05", "26.05"])
def controller(request: pytest.FixtureRequest, controller_factory: Callable[..., Controller]) -> Controller:
    """A Slurm on which jobs wait."""
    root = request.getfixturevalue("later_root") if request.param == "26.05" else None
    return controller_factory(nodes=NODES, partitions=PARTITIONS, root=root)


@pytest.fixture
def environment(controller: Controller, tmp_path: Path) -> dict[str, str]:
    """The environment in which squeue asks it."""
    controller.commands(tmp_path / "bin", "squeue")
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **MISLEADING}


@pytest.fixture
def running(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """The environment in which squeue asks the cluster."""
    cluster.commands(tmp_path / "bin", "squeue")
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **MISLEADING}


def submit(controller: Controller, *options: str) -> int:
    return int(controller.run(["sbatch", "--parsable", *options]))


def only(environment: dict[str, str], job: int | str) -> SlurmJob:
    (row,) = squeue_jobs(environment, [job])
    return row


def test_a_job_that_waits(controller: Controller, environment: dict[str, str]) -> None:
    first = submit(controller, "--hold", "--time=90", "--wrap=true")
    held = only(environment, first)
    assert (held.id, held.base_id, held.task) == (str(first), first, "")
    assert (held.state.name, held.reason) == ("PENDING", "JobHeldUser")
    assert (held.limit_s, held.used_s, held.nodes, held.node_list) == (5400, 0, 1, "")
    assert (held.exit_code, held.signal, held.restarts, held.command) == (0, 0, 0, "")
    assert (held.start, held.end) == (None, None)
    later = only(environment, submit(controller, "--begin=2099-01-02T03:04:05", "--wrap=true"))
    assert later.reason == "BeginTime"
    assert later.start
    assert later.start.replace(tzinfo=None) == datetime(2099, 1, 2, 3, 4, 5)  # noqa: DTZ001
    after = only(environment, submit(controller, f"--dependency=afterok:{first}", "--wrap=true"))
    assert after.reason in ("Dependency", "None")
    assert after.dependency == f"afterok:{first}(unfulfilled)"
    assert held.dependency == ""


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("/scratch/tmp/sbatchgen-c0ffee-1a2b3c4d-x7k2_p0q/job.slurm", "c0ffee"),
        ("/scratch/tmp/sbatchgen-c0ffee-1a2b3c4d-x7k2_p0q/old job.sh", "c0ffee"),
        ("/scratch/tmp/sbatchgen-c0ffee-0-x7k2_p0q/job.sh data/train --to=/scratch/me", "c0ffee"),
        (
            "/scratch/tmp/sbatchgen-c0ffee-0-x7k2_p0q/job.sh /scratch/tmp/sbatchgen-f00d-0-x7k2_p0q/x",
            "c0ffee",
        ),
        ("/scratch/tmp/sbatchgen-c0ffee-0-x7k2_p0q/ job.sh a/", "c0ffee"),
        ("/home/me/copy.sh /scratch/tmp/sbatchgen-c0ffee-0-x7k2_p0q/job.sh", ""),
        ("/home/me/copy.sh --script=/scratch/tmp/sbatchgen-c0ffee-0-x7k2_p0q/job.sh", ""),
        ("/home/me/sbatchgen-tests/job.sh", ""),
        ("/home/me/sbatchgen-c0ffee/job.sh", ""),
        ("", ""),
    ],
)
def test_the_key_is_in_the_path_of_the_script_alone(command: str, key: str) -> None:
    assert key_of(command) == key


def test_the_key_is_found_in_a_folder_with_a_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my files").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my files"))
    with private_script(b"#!/bin/sh\n", "job.sh", "c0ffee") as script:
        assert key_of(str(script)) == key_of(f"{script} data/x y/") == "c0ffee"


def test_a_path_that_looks_like_something_else(controller: Controller, environment: dict[str, str]) -> None:
    folder = controller.home / f"{folder_prefix('c0ffee')}x"
    folder.mkdir()
    folder.chmod(0o755)
    script = folder / "run|1\n4711\x1f\x1e\udcff.slurm"
    script.write_text("#!/bin/bash\n")
    script.chmod(0o644)
    asked = ("--hold", f"--job-name={HOSTILE}", f"--comment={HOSTILE}")
    job = submit(controller, *asked, str(script))
    other = submit(controller, *asked, "--wrap=true")
    assert [row.base_id for row in squeue_jobs(environment, [job, other])] == [job, other]
    row = find_job("c0ffee", environment)
    assert row
    assert (row.base_id, row.state.name) == (job, "PENDING")
    assert row.command == str(script).replace("\udcff", "\ufffd")
    assert find_job("c0ff", environment) is None


def test_an_array_that_waits_is_one_record_with_all_its_tasks(
    controller: Controller, environment: dict[str, str]
) -> None:
    tasks = ",".join(str(number * number) for number in range(1, 31))  # more than the 64 characters of squeue
    array = submit(controller, "--hold", f"--array={tasks}%7", "--wrap=true")
    row = only(environment, array)
    assert (row.id, row.base_id, row.task) == (f"{array}_[{tasks}%7]", array, f"[{tasks}%7]")


def test_parts_of_a_heterogeneous_job(controller: Controller, environment: dict[str, str]) -> None:
    job = submit(controller, "--hold", ":", "--wrap=true")
    assert {(row.id, row.base_id, row.task) for row in squeue_jobs(environment, [job])} == {
        (f"{job}+0", job, ""),
        (f"{job}+1", job, ""),
    }


def test_ended_jobs_and_jobs_of_hidden_partitions_are_told(
    controller: Controller, environment: dict[str, str]
) -> None:
    job = submit(controller, "--hold", "--partition=hidden", "--wrap=true")
    controller.run(["scancel", str(job)])
    assert only(environment, job).state.name == "CANCELLED"
    mine = {row.base_id: row for row in squeue_jobs(environment)}
    assert mine[job].state.ended


def test_jobs_that_slurm_does_not_know_are_left_out(
    controller: Controller, environment: dict[str, str]
) -> None:
    job = submit(controller, "--hold", "--wrap=true")
    assert [row.base_id for row in squeue_jobs(environment, [999_998, job, "999999_3"])] == [job]
    assert squeue_jobs(environment, [999_999]) == []
    assert squeue_jobs(environment, ["999999_3"]) == []
    assert squeue_jobs(environment, [999_998, 999_999]) == []
    assert squeue_jobs({}, []) == []
    with pytest.raises(SlurmError, match="Invalid job id: abc"):
        squeue_jobs(environment, [job, "abc"])


@pytest.mark.slow
@pytest.mark.parametrize("release", ["22.05", "26.05"])
def test_a_controller_that_is_down_ends_the_question(
    release: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue("real_slurm")
    root = request.getfixturevalue("later_root") if release == "26.05" else None
    with Controller(nodes=NODES, partitions=PARTITIONS, extra="MessageTimeout=2", root=root) as controller:
        controller.commands(tmp_path, "squeue")
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        assert squeue_jobs(environment) == []
        controller.crash()
        with pytest.raises(SlurmError, match=r"does not answer: .*Unable to contact slurm controller"):
            squeue_jobs(environment)


def test_a_job_that_runs_and_is_requeued(cluster: Cluster, running: dict[str, str]) -> None:
    script = cluster.put(f"{folder_prefix('c0ffee')}x/requeued.slurm", "#!/bin/bash\nsleep 600\n")
    job = cluster.sbatch("--requeue", "--nodes=2", "--time=1:00:00", f"--job-name={HOSTILE}", script)
    cluster.wait(job, {"RUNNING"})
    row = only(running, job)
    assert (row.state.name, row.reason, row.restarts) == ("RUNNING", "None", 0)
    assert (row.nodes, row.node_list[:2], row.command) == (2, "n[", str(script))
    assert row.start
    assert row.end == row.start + timedelta(hours=1)
    cluster.run(["scontrol", "requeue", str(job)], check=True)
    cluster.until(lambda: only(running, job).restarts == 1, "a requeued job")
    cluster.until(lambda: only(running, job).state.name == "RUNNING", "a second run")
    known = find_job("c0ffee", running)
    assert known
    assert known.base_id == job
    cluster.run(["scontrol", "requeuehold", str(job)], check=True)
    cluster.until(lambda: only(running, job).reason == "job requeued in held state", "a held job")
    cluster.run(["scancel", str(job)], check=True)
    cluster.wait(job)
    assert only(running, job).state.name == "CANCELLED"


@pytest.mark.parametrize(
    ("body", "state", "reason", "exit_code", "signal"),
    [
        ("true", "COMPLETED", "None", 0, 0),
        ("exit 3", "FAILED", "NonZeroExitCode", 3, 0),
        ("exit 137", "FAILED", "NonZeroExitCode", 137, 0),
        ("kill -9 $$", "FAILED", "killed", 0, 9),
    ],
)
def test_how_a_job_ended(
    cluster: Cluster,
    running: dict[str, str],
    slurm_release: str,
    body: str,
    state: str,
    reason: str,
    exit_code: int,
    signal: int,
) -> None:
    if reason == "killed":
        reason = {"22.05": "JobLaunchFailure", "26.05": "RaisedSignal:9(Killed)"}[slurm_release]
    job = cluster.sbatch(script=f"#!/bin/bash\n{body}\n")
    cluster.wait(job)
    row = only(running, job)
    assert (row.state.name, row.reason, row.exit_code, row.signal) == (state, reason, exit_code, signal)
    assert row.state.ended


def test_a_job_without_its_log_folder_ends_with_signal_53(cluster: Cluster, running: dict[str, str]) -> None:
    job = cluster.sbatch("--output=/nowhere/log", "--wrap=true")
    cluster.wait(job, {"FAILED"})
    assert (only(running, job).exit_code, only(running, job).signal) == (0, 53)


def test_tasks_of_an_array_that_run_and_wait(cluster: Cluster, running: dict[str, str]) -> None:
    array = cluster.sbatch("--array=1-9%2", "--wrap=sleep 600")
    cluster.until(lambda: len(squeue_jobs(running, [array])) == 3, "two running tasks")
    states = {row.task: row.state.name for row in squeue_jobs(running, [array])}
    assert states == {"1": "RUNNING", "2": "RUNNING", "[3-9%2]": "PENDING"}
    assert only(running, f"{array}_2").id == f"{array}_2"
    waits = next(row for row in squeue_jobs(running, [array]) if row.state.name == "PENDING")
    assert waits.reason in ("JobArrayTaskLimit", "None")
    cluster.run(["scancel", str(array)], check=True)
    cluster.wait(array)


def test_nodes_that_are_out_of_service(cluster: Cluster, running: dict[str, str], slurm_release: str) -> None:
    """A later release does not say which nodes."""
    said = {"22.05": "UnavailableNodes:n3", "26.05": "May be reserved for other job"}[slurm_release]
    cluster.root(["scontrol", "update", "nodename=n3", "state=drain", "reason=test"])
    try:
        job = cluster.sbatch("--nodelist=n3", "--wrap=true")
        all_nodes = cluster.sbatch("--nodes=4", "--wrap=true")
        cluster.until(lambda: only(running, job).reason == f"ReqNodeNotAvail, {said}", "an unavailable node")
        cluster.until(lambda: "DRAINED or reserved" in only(running, all_nodes).reason, "a drained node")
    finally:
        cluster.root(["scontrol", "update", "nodename=n3", "state=resume"])
    for number in (job, all_nodes):
        cluster.wait(number, {"COMPLETED"})
        assert only(running, number).reason == "None"


def test_a_wrapper_that_talks_and_values_that_are_new(tmp_path: Path) -> None:
    fakes.squeue(tmp_path, [{"JobArrayID": "12", "State": "NEW_STATE", "TimeLimit": "UNLIMITED"}])
    text = (tmp_path / "squeue").read_text()
    (tmp_path / "squeue").write_text(
        f"{text}print('Goodbye')\n".replace("table =", "print('Welcome')\ntable =")
    )
    (row,) = squeue_jobs({"PATH": str(tmp_path)}, [12])
    assert (row.base_id, row.state.name, row.limit_s, row.used_s, row.start) == (
        12,
        "NEW_STATE",
        None,
        0,
        None,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:00", 0), ("1:30", 90), ("2:00:00", 7200), ("1-00:00:01", 86401), ("UNLIMITED", None), ("", None)],
)
def test_durations(text: str, expected: int | None) -> None:
    assert fields.read_seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "status"),
    [("3:0", (3, 0)), ("0:9", (0, 9)), ("768", (3, 0)), ("9", (0, 9)), ("4021", (0, 53)), ("N/A", (0, 0))],
)
def test_exit_statuses_of_both_releases(text: str, status: tuple[int, int]) -> None:
    assert fields.read_exit_status(text) == status
