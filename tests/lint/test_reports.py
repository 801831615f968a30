"""Public bug reports, as short scripts: lint or a dry run names the true cause of each that is said to be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan.planning import plan_of
from sbatchgen.lab.started.judge_started import check_started
from tests.conftest import REPOSITORY
from tests.plan.plans import needs_sandbox

REPORTS = yaml.safe_load((REPOSITORY / "tests/fixtures/reports.yaml").read_text())
FINDINGS = [(report, report.get("found") or report.get("since", "")) for report in REPORTS]
BY_LINT = [(report, said[5:]) for report, said in FINDINGS if said.startswith("lint ")]
BY_PLAN = [(report, said[5:]) for report, said in FINDINGS if said.startswith("plan ")]


def name(value: object) -> str:
    return value["from"].removeprefix("https://github.com/") if isinstance(value, dict) else str(value)


def script(report: dict[str, str], folder: Path) -> JobScript:
    assumed = {"is_release_assumed": True} if "slurm" not in report else {"slurm": report["slurm"]}
    return JobScript(file="job.slurm", text=report["script"], folder=folder, **assumed)


def shown(findings: list[Any]) -> list[str]:
    return [f"{finding.place.line}:{finding.rule}" for finding in findings]


@pytest.mark.parametrize(("report", "wanted"), BY_LINT, ids=name)
def test_lint_names_the_cause(report: dict[str, str], wanted: str, tmp_path: Path) -> None:
    assert wanted in shown(lint(script(report, tmp_path)))


@pytest.mark.sampled(2)
@needs_sandbox
@pytest.mark.parametrize(("report", "wanted"), BY_PLAN, ids=name)
def test_a_dry_run_names_the_cause(report: dict[str, str], wanted: str, tmp_path: Path) -> None:
    done = plan_of(script(report, tmp_path), {"HOME": "/home/somebody"}, tmp_path)
    assert wanted in shown(check_started(done))


def test_twelve_of_twenty_that_were_set_aside_are_found() -> None:
    aside = [report for report in REPORTS if report["set"] == "held out"]
    assert len(aside) == 20
    assert sum("found" in report for report in aside) >= 12


def test_sixteen_of_twenty_of_the_third_set_are_found() -> None:
    third = [report for report in REPORTS if report["set"] == "third"]
    assert len(third) == 20
    assert sum("found" in report for report in third) >= 16
    assert sum("found" in report or "since" in report for report in third) >= 19


def test_of_the_fourth_set_thirteen_of_twenty_were_found_at_once() -> None:
    fourth = [report for report in REPORTS if report["set"] == "fourth"]
    assert len(fourth) == 20
    assert sum("found" in report for report in fourth) >= 13
