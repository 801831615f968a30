"""The plan in reviews, and submissions of what was reviewed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from sbatchgen.dryrun import sandbox
from tests.conftest import Command
from tests.dryrun.plans import needs_sandbox

JOB = ("ddp", "--profile", "torchrun")


def name_in(shown: str) -> str:
    """The name of the plan in a review."""
    match = re.search(r"^Plan (\w{8})$", shown, re.MULTILINE)
    return match[1] if match else ""


@needs_sandbox
def test_a_review_has_the_plan_in_a_few_lines(command: Command) -> None:
    shown = command("review", *JOB).out
    lines = shown.partition("\nPlan ")[2].partition("\n\n")[0].splitlines()
    assert name_in(shown) == lines[0]
    assert lines[1] == "  2 nodes, 8 GPUs on each; 1 step with 2 processes; ends with 0"
    assert 2 <= len(lines[1:]) <= 6
    assert "2 processes: .../python3 .../torchrun.py --nnodes=2 --nproc-per-node=8" in lines[2]


@needs_sandbox
def test_a_plan_keeps_its_name_until_it_starts_something_else(command: Command) -> None:
    names = [
        name_in(command("review", *words, "--", "--lr", rate).out)
        for rate in ("0.1", "0.2")
        for words in (JOB, (*JOB, "--time", "3:00:00"), JOB)
    ]
    assert names[0] == names[2]
    assert len({*names, ""}) == 5


@needs_sandbox
def test_what_was_reviewed_is_submitted_and_nothing_else(command: Command) -> None:
    name = name_in(command("review", *JOB, "--", "--lr", "0.1").out)
    assert command("submit", *JOB, "--reviewed", name, "--dry-run", "--", "--lr", "0.1").status == 0
    refused = command("submit", *JOB, "--reviewed", name, "--yes", "--", "--lr", "0.2")
    assert refused.status == 3
    assert f"now, not {name} as reviewed" in refused.err
    assert re.search(r"^  -.*--lr 0\.1", refused.err, re.MULTILINE)
    assert re.search(r"^  \+.*--lr 0\.2", refused.err, re.MULTILINE)
    assert re.search(r"fix: if that is right: --reviewed \w{8}", refused.err)


@needs_sandbox
def test_a_name_that_nobody_knows_is_refused_without_a_difference(command: Command) -> None:
    refused = command("submit", *JOB, "--reviewed", "../../x", "--yes")
    assert (refused.status, "not ../../x as reviewed\n" in refused.err) == (3, True)


@needs_sandbox
def test_a_finished_script_is_submitted_as_reviewed_too(command: Command, folder: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=1 --time=60\nsrun python train.py\n"
    (folder / "job.slurm").write_text(script)
    name = name_in(command("submit", "job.slurm", "--dry-run").err)
    assert command("submit", "job.slurm", "--dry-run", "--reviewed", name).status == 0
    (folder / "job.slurm").write_text(script.replace("train", "other"))
    assert command("submit", "job.slurm", "--dry-run", "--reviewed", name).status == 3


def test_a_job_without_slurm_has_no_plan(command: Command) -> None:
    assert "\nPlan" not in command("review", "ddp", "--profile", "local").out


def test_without_a_sandbox_a_review_has_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "kinds", lambda: iter([]))
    assert "\nPlan\n  not shown: this machine allows no sandbox for it\n\n" in command("review", *JOB).out
    refused = command("submit", *JOB, "--yes", "--reviewed", "12345678")
    assert (refused.status, "starts what was reviewed is not known" in refused.err) == (3, True)
    assert json.loads(command("review", *JOB, "--format", "json").out)["plan"] == ""


@needs_sandbox
def test_only_the_user_reads_the_plans_that_are_kept_and_they_are_few(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbatchgen.review.starts.MOST_KEPT", 2)
    for rate in "1234":
        command("review", *JOB, "--", "--lr", rate)
    kept = [*Path(os.environ["HOME"], ".local/state/sbatchgen/plans").iterdir()]
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600] * 2
