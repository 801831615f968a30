"""What sacct says of jobs: recorded from real ones of 22.05 and 26.05 with a database, and a real one without."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from sbatchgen.base.errors import SlurmError
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.accounting import JobUsage, job_usages, sacct_jobs
from sbatchgen.jobs.slurm.queue import SlurmJob
from tests.cluster.slurm import Cluster
from tests.conftest import FIXTURES
from tests.slurm import fakes

SINCE = datetime(2026, 11, 22, tzinfo=timezone.utc)
REFUSED = "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db:6819: "


@pytest.fixture(params=["22.05", "26.05"])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def environment(release: str, tmp_path: Path) -> dict[str, str]:
    """The environment in which sacct gives the answers of this release."""
    fakes.sacct(tmp_path, FIXTURES / f"sacct_{release}.json")
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def keys(jobs: Iterable[object]) -> dict[str, str]:
    """The jobs with the key of their submission."""
    return dict.fromkeys(map(str, jobs), "0a")


def read_jobs(environment: dict[str, str]) -> list[SlurmJob]:
    jobs = sacct_jobs(keys(range(1, 16)), SINCE, environment)
    assert jobs is not None
    return jobs


def test_how_jobs_ended(release: str, environment: dict[str, str]) -> None:
    jobs = {job.id: job for job in read_jobs(environment)}
    exit_3, killed, late, array_2 = (jobs[number] for number in ("1", "2", "3", "6_2"))
    assert (exit_3.state.name, exit_3.exit_code, exit_3.signal) == ("FAILED", 3, 0)
    assert (killed.state.name, killed.exit_code, killed.signal) == ("FAILED", 0, 9)
    assert (late.state.name, late.limit_s, late.used_s > 60) == (
        "TIMEOUT" if release == "26.05" else "RUNNING",
        60,
        True,
    )
    assert (array_2.base_id, array_2.task, array_2.exit_code) == (6, "2", 1)
    assert exit_3.start
    assert exit_3.node_list == "n1"
    cancelled = next(job for job in jobs.values() if job.state.name == "CANCELLED")
    assert (cancelled.cancelled_by, cancelled.node_list) == (20001, "")
    assert jobs["7_[1-89:2%2]"].start is None


def test_the_last_run_of_a_requeued_job_counts(environment: dict[str, str]) -> None:
    assert [(job.state.name, job.used_s) for job in read_jobs(environment) if job.base_id == 4] == [
        ("COMPLETED", 40)
    ]


@pytest.mark.parametrize(
    "says",
    [
        "Slurm accounting storage is disabled",
        f"{REFUSED}Connection refused\nsacct: error: Problem talking to the database: Connection refused",
    ],
)
def test_without_a_database_nothing_is_known(tmp_path: Path, says: str) -> None:
    fakes.failing(tmp_path, "sacct", says)
    assert sacct_jobs(keys([1]), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) is None
    assert job_usages(keys([1]), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) is None


def test_what_jobs_have_used(tmp_path: Path) -> None:
    """As sacct 22.05 printed it with --noconvert and --duplicates, of jobs of which steps follow each start.

    Job 1 has four tasks on two nodes, job 2 was requeued, 3 is an array, 4 never ran, 6 still runs.
    """
    fakes.sacct(tmp_path, FIXTURES / "sacct_usage_22.05.json")
    one_node = JobUsage(job="2", used_s=6, limit_s=300, cpus=2, memory_mib=600, memory_bytes=5_001_216)
    task = JobUsage(job="3", task="1", used_s=5, limit_s=300, cpus=1, memory_mib=200, memory_bytes=64_237_568)
    both = 116_383_744 + 2 * 218_284_032
    assert job_usages(keys(range(1, 7)), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) == [
        JobUsage(
            job="1", used_s=21, limit_s=600, nodes=2, cpus=8, gpus=4, memory_mib=1024, cpu_s=1, memory_bytes=both
        ),
        one_node,
        task,
        replace(task, task="2", memory_bytes=64_184_320),
        replace(one_node, used_s=7, memory_bytes=169_107_456),
        JobUsage(job="6", used_s=8, limit_s=300, cpus=1, memory_mib=200),
    ]  # fmt: skip
    assert job_usages({}, SINCE, {}) == []


def test_odd_values_of_what_was_used_are_not_known(tmp_path: Path) -> None:
    recorded = json.loads((FIXTURES / "sacct_usage_22.05.json").read_text())
    recorded["runs"] = [
        ["6_2", "60", "UNLIMITED", "?", "mem=\x1b,cpu=-1,gres/gpu:a=2,gres/gpu:b=1", "", "", "1-00:00:03"],
        ["6_2.batch", "60", "", "1", "", "", "junk", ""],
    ]
    (tmp_path / "sacct.json").write_text(json.dumps(recorded))
    fakes.sacct(tmp_path, tmp_path / "sacct.json")
    jobs = job_usages(keys([6]), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert jobs == [JobUsage(job="6", task="2", used_s=60, gpus=3, cpu_s=86_403)]


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"submit_line": "sbatch --parsable /home/ann/tmp/sbatchgen-0a-x/job.slurm 7"}, 6),
        ({"submit_line": "sbatch --parsable /home/ann/tmp/sbatchgen-0ab-x/job.slurm"}, 0),
        ({"submit_line": "sbatch other.sh"}, 0),
        ({"release": "20.11"}, 6),
    ],
)
def test_a_job_of_another_submission_with_the_same_id_does_not_count(
    tmp_path: Path, more: dict[str, str], count: int
) -> None:
    recorded = json.loads((FIXTURES / "sacct_usage_22.05.json").read_text())
    (tmp_path / "sacct.json").write_text(json.dumps(recorded | more))
    fakes.sacct(tmp_path, tmp_path / "sacct.json")
    jobs = job_usages(keys(range(1, 7)), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert jobs is not None
    assert len(jobs) == count or (count and jobs)


def test_a_database_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "QUERY_TIMEOUT_S", 0.5)
    (tmp_path / "sacct").write_text("#!/bin/sh\nexec sleep 500\n")
    (tmp_path / "sacct").chmod(0o755)
    assert sacct_jobs(keys([1]), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) is None


def test_other_failures_are_told(tmp_path: Path) -> None:
    fakes.failing(tmp_path, "sacct", "sacct: fatal: Bad job/step specified: abc")
    with pytest.raises(SlurmError, match="Bad job/step specified: abc"):
        sacct_jobs(keys(["abc"]), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    with pytest.raises(SlurmError, match="there is no sacct here"):
        sacct_jobs(keys([1]), SINCE, {"PATH": str(tmp_path / "nowhere")})
    assert sacct_jobs({}, SINCE, {}) == []


def test_a_real_slurm_without_a_database(cluster: Cluster, tmp_path: Path) -> None:
    cluster.commands(tmp_path, "sacct")
    assert sacct_jobs(keys([1]), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) is None
    assert job_usages(keys([1]), SINCE, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) is None
