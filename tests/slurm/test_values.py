"""Answers of Slurm that hold nonsense: numbers without an end, empty fields, control characters."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

import pytest

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.slurm import accounting, accounts, client, queue
from sbatchgen.jobs.slurm.config import array_limits, settings_in
from sbatchgen.jobs.slurm.fields import (
    gpus_in_tres,
    read_count,
    read_exit_status,
    read_limit,
    read_pairs,
    read_seconds,
    read_time,
)
from sbatchgen.jobs.slurm.gpu_nodes import count_gpus, gpu_nodes
from sbatchgen.jobs.slurm.node import node_gres, nodes_in
from sbatchgen.jobs.slurm.partition import partitions_in
from sbatchgen.lab.discover import facts
from sbatchgen.lab.discover.slurm_answers import LiveCluster
from tests.conftest import FIXTURES

ANSWERS = int(os.environ.get("ANSWERS", "500"))
HUGE = "9" * 5000
NONSENSE: tuple[str, ...] = (
    HUGE,
    f"-{HUGE}",
    "9" * 17,
    "9" * 30,
    "",
    "\n",
    "\x1f",
    "\x00",
    "\udcff",
    "-1",
    "0",
    "٣",
    "1e999",
    "=",
    ",",
)
NONSENSE += (
    "0001-01-01T00:00:00",
    "9999-12-31T23:59:59",
    f"{HUGE}-00:00:00",
    f"0-{HUGE}",
    "[",
    "]",
    "(",
    "/",
    ":",
    "*",
)
QUEUED = (
    "4711_3",
    "RUNNING",
    "None",
    "2026-11-22T09:08:27",
    "N/A",
    "1-00:00:00",
    "10:00",
    "2",
    "n[1-2]",
    "768",
    "0",
    "/x",
)
OF_GPUS = ("7", "job", "RUNNING", "n[1-2]", "N/A", "(null)", "*")
RECORD = (
    "JobId=7 JobName=job UserId=a(1) MCS_label=N/A Account=(null) JobState=RUNNING Reason=None JOB_GRES=shard:5   "
    "Nodes=n[1-2] CPU_IDs=0 Mem=1 GRES=shard:a100:5(IDX:0) MinCPUsNode=1 "
)
SHARDS = "NodeName=n1 CPUTot=64 Gres=gpu:a100:4,shard:64 GresUsed=gpu:a100:1(IDX:1),shard:5(IDX:0) RealMemory=1000 State=MIXED "
SINCE = datetime(2026, 11, 22, tzinfo=timezone.utc)


def test_a_number_of_more_digits_than_slurm_has_is_a_missing_one() -> None:
    assert (
        read_limit(HUGE),
        read_count(HUGE),
        read_seconds(f"{HUGE}:00"),
        read_seconds(f"{HUGE}-00:00:00"),
    ) == (
        None,
        0,
        None,
        None,
    )
    assert (read_exit_status(HUGE), read_exit_status(f"{HUGE}:9")) == ((0, 0), (0, 9))
    assert (read_count("9" * 18), read_seconds("2982616-04:14:00")) == (10**18 - 1, 257698037640)
    row = dict.fromkeys(("state", "reason", "start", "end", "node_list"), "N/A")
    assert (
        queue.job_of_row(
            {**row, "id": HUGE, "nodes": "1", "exit_status": "0:0"}, used_s=0, limit_s=None
        ).base_id
        == 0
    )
    assert read_time("0001-01-01T00:00:00") is None
    (gpus,) = node_gres(f"gpu:4(IDX:0-{HUGE},3)")
    assert gpus.indexes == (3,)
    (shards,) = node_gres(f"shard:4(1/{HUGE},{HUGE}/4)")
    assert shards.per_gpu == ((1, 0), (0, 4))
    assert indices(f"1-{HUGE}") == (range(1, 10**18 + 1),)


class Answers:
    """What Slurm prints, changed at a few places."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)  # noqa: S311

    def spoilt(self, text: str) -> str:
        for _ in range(self.drawn.randint(1, 4)):
            start = self.drawn.randint(0, len(text))
            numbers = [at for at, char in enumerate(text) if char.isdecimal()]
            if numbers and self.drawn.random() < 0.8:
                start = self.drawn.choice(numbers)
            end = start + self.drawn.choice((0, 1, 1, 2, 5))
            text = text[:start] + self.drawn.choice(NONSENSE) + text[end:]
        return text

    def spoilt_row(self, row: Sequence[str]) -> list[str]:
        return [self.spoilt(value) if self.drawn.random() < 0.3 else value for value in row]

    def __call__(self, arguments: Sequence[str], _: Mapping[str, str]) -> client.Output:
        """As query: rows of squeue, sacct and sacctmgr, and records of jobs."""
        if arguments[0] == "scontrol":
            return client.Output("scontrol", 0, self.spoilt(RECORD), "", 30)
        if arguments[0] == "sacctmgr":
            said = self.drawn.choice(
                [*json.loads((FIXTURES / "sacctmgr.json").read_text())["22.05"].values()]
            )
            return client.Output("sacctmgr", 0, self.spoilt(said), "", 30)
        if arguments[0] == "squeue":
            between = arguments[-1].rpartition(":")[2]
            table: list[Sequence[str]] = [OF_GPUS if "MCSLabel" in arguments[-1] else QUEUED]
        else:
            between = next(word for word in arguments if word.startswith("--delimiter=")).partition("=")[2]
            recorded = json.loads((FIXTURES / "sacct_usage_22.05.json").read_text())
            asked = arguments[-1].partition("=")[2].split(",")
            table = [
                [dict(zip(recorded["fields"], row, strict=True)).get(name, "") for name in asked]
                for row in recorded["runs"]
            ]
        lines = ("".join(value + between for value in self.spoilt_row(row)) for row in table)
        return client.Output(arguments[0], 0, "".join(f"{line}\n" for line in lines), "", 30)


def read_all(answers: Answers) -> Iterator[object]:
    """Everything that reads what Slurm says."""
    ours = {str(number): "0a" for number in range(1, 16)}
    yield queue.squeue_jobs({})
    yield accounting.sacct_jobs(ours, SINCE, {})
    yield accounting.job_usages(ours, SINCE, {})
    settings = settings_in(answers.spoilt((FIXTURES / "scontrol_config_22.05.txt").read_text()))
    yield array_limits(settings)
    recorded = answers.spoilt((FIXTURES / "scontrol_nodes.txt").read_text())
    nodes = [*nodes_in(f"{recorded}\n{answers.spoilt(SHARDS)}")]
    yield count_gpus(gpu_nodes(nodes, {}))
    partitions = [*partitions_in(answers.spoilt((FIXTURES / "scontrol_partitions_22.05.txt").read_text()))]
    cluster = LiveCluster(
        settings=settings, partitions=partitions, nodes=nodes, qos=accounts.qos({}), user="me",
        accounts=accounts.accounts("me", "test", {}), plugin_options=(), host="x", groups=(), licenses=None, topology={}, reservations=None,
    )  # fmt: skip
    yield facts.profile_text(cluster, {}, name="x", today="2026-01-31")


@pytest.mark.proof
def test_answers_with_nonsense_are_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """ANSWERS=5000 for more of them."""
    raised = []
    for seed in range(ANSWERS // 7):
        answers = Answers(seed)
        for module in (queue, accounting, client):
            monkeypatch.setattr(module, "query", answers)
        reading = read_all(answers)
        try:
            for _ in reading:
                pass
        except SbatchgenError:
            pass
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            raised.append(f"{seed}: {error!r}")
    assert not raised, raised[:5]


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=4,gres/gpu=2,gres/gpu:a100=2", 2),
        ("cpu=4,gres/gpu:a100=1,gres/gpu:h100=3", 4),
        ("cpu=4", 0),
        ("", 0),
    ],
)
def test_gpus_of_all_types_are_counted_once(tres: str, gpus: int) -> None:
    assert gpus_in_tres(read_pairs(tres.split(","))) == gpus
