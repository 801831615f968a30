"""Mistakes that Slurm accepts silently and a rule warns of: the rule's bad example, run as a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from sbatchgen.check.rules.rule_page import pages
from tests.cluster.slurm import Cluster

TRAINER = """#!/bin/bash
# In place of python and torchrun: says its job, works for a while, and ends as asked.
echo "trained in $SLURM_JOB_ID"
sleep "${TRAINS_FOR_S:-0}"
touch "done-$SLURM_JOB_ID"
exit "${ENDS_WITH:-0}"
"""


@dataclass(frozen=True)
class Field:
    """A cluster, and the folder where its user tries the examples."""

    cluster: Cluster

    def run(self, rule: str, number: int = 0, **said: str) -> tuple[dict[str, str], Path]:
        """The record of a job with a bad example of a rule once it has ended, and its folder."""
        job, folder = self.start(rule, number, **said)
        return self.cluster.wait(job), folder

    def start(self, rule: str, number: int = 0, **said: str) -> tuple[int, Path]:
        """Start the same job without waiting. `said` is for the trainer."""
        bad = [example.text for example in pages()[rule].examples if not example.is_good]
        folder = self.cluster.put(f"harm/{rule}/train.py", "").parent
        path = f"{self.cluster.home}/harm/bin:/usr/bin:/bin"
        job = self.cluster.sbatch(cwd=folder, env={"PATH": path, **said}, script=bad[number])
        return job, folder


@pytest.fixture(scope="module")
def field(cluster: Cluster) -> Field:
    for name in ("python", "torchrun"):
        cluster.put(f"harm/bin/{name}", TRAINER, mode=0o755)
    return Field(cluster)


@pytest.mark.parametrize("rule", ["SB104", "SB105"])
def test_a_directive_that_is_none_is_ignored(field: Field, rule: str) -> None:
    record, _ = field.run(rule)
    assert (record["JobState"], record["NumNodes"]) == ("COMPLETED", "1")  # two were meant


def test_the_next_directive_becomes_a_name(field: Field) -> None:
    record, _ = field.run("SB110")
    assert (record["JobState"], record["JobName"]) == ("COMPLETED", "-n1")


def test_of_two_values_the_last_counts(field: Field) -> None:
    record, _ = field.run("SB119")
    assert (record["JobState"], record["NumNodes"]) == ("COMPLETED", "4")


def test_a_day_is_24_minutes(field: Field) -> None:
    record, _ = field.run("SB127")
    assert record["TimeLimit"] == "00:24:00"


def test_nodes_are_taken_away(field: Field) -> None:
    record, _ = field.run("SB133")
    assert (record["JobState"], record["NumNodes"]) == ("COMPLETED", "2")  # four were meant


@pytest.mark.parametrize("rule", ["SB117", "SB701"])
def test_a_job_without_a_folder_for_its_log_dies_without_a_word(
    field: Field, rule: str, slurm_release: str
) -> None:
    """A later release makes the folder."""
    record, folder = field.run(rule)
    if slurm_release == "22.05":
        assert record["JobState"] == "FAILED"
        assert [path.name for path in folder.rglob("*")] == ["train.py"]
    else:
        assert record["JobState"] == "COMPLETED"
        assert Path(record["StdOut"]).is_file()


def test_a_background_training_is_killed(field: Field) -> None:
    record, folder = field.run("SB309", TRAINS_FOR_S="3")
    assert record["JobState"] == "COMPLETED"
    assert not list(folder.glob("done-*"))


@pytest.mark.parametrize("rule", ["SB311", "SB312"])
def test_a_failed_training_is_a_completed_job(field: Field, rule: str) -> None:
    record, folder = field.run(rule, ENDS_WITH="7")
    assert (record["JobState"], record["ExitCode"]) == ("COMPLETED", "0:0")
    assert list(folder.glob("done-*"))


def test_usr1_ends_a_script_without_a_trap(field: Field) -> None:
    job, folder = field.start("SB601", TRAINS_FOR_S="30")
    field.cluster.until(lambda: any("trained" in log.read_text() for log in folder.glob("*.out")), "a start")
    field.cluster.run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
    record = field.cluster.wait(job)
    assert (record["JobState"], record["ExitCode"]) == ("FAILED", "0:10")
    assert not list(folder.glob("done-*"))


@pytest.mark.proof
def test_a_requeue_erases_the_log(field: Field) -> None:
    job, folder = field.start("SB606", TRAINS_FOR_S="2")
    field.cluster.until(lambda: any("trained" in log.read_text() for log in folder.glob("*.out")), "a start")
    (log,) = folder.glob("*.out")
    log.write_text("what the first run said\n" + log.read_text())
    field.cluster.run(["scontrol", "requeue", str(job)], check=True)
    field.cluster.until(lambda: field.cluster.job(job)["Restarts"] == "1", "a restart")
    field.cluster.wait(job, {"COMPLETED"})
    assert "what the first run said" not in log.read_text()


def test_the_second_run_erases_the_log_of_the_first(field: Field) -> None:
    first, folder = field.run("SB702")
    second, _ = field.run("SB702")
    assert (folder / "train.log").read_text() == f"trained in {second['JobId']}\n"
    assert first["JobId"] != second["JobId"]


def test_an_array_index_where_there_is_no_array(field: Field) -> None:
    _, folder = field.run("SB704")
    assert len(list(folder.glob("*_4294967294.out"))) == 1, list(folder.iterdir())
