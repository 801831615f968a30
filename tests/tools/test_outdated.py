"""The monthly report on the lines that profiles cite: clones of made-up repositories, and the steps of the workflow."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY, Command
from tests.runs.test_snapshot import git as run_git
from tests.tools.test_sources import PAGE, cited, commit, profile
from tools.outdated import cli

WORKFLOW = REPOSITORY / ".github/workflows/profiles.yml"
NEWER = [*PAGE[:2], "| gpu   | 1 day | 16 nodes |", *PAGE[3:]]
GH = """#!/bin/sh
if [ "$2" = list ]; then cat open; else echo "$@" >>asked; cat >body; fi
"""


@pytest.fixture
def forge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of repositories that git finds in place of GitHub's."""
    (folder / "gitconfig").write_text(
        f'[url "file://{folder}/forge/"]\n    insteadOf = https://github.com/\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")
    return folder / "forge"


def test_changed_lines_are_reported_and_others_are_not(command: Command, forge: Path) -> None:
    profile(cited(forge / "example/docs"))
    commit(forge / "example/docs", ["A new page.", *PAGE])  # moved: no report
    done = command("clones", "./lab.yaml", program=cli)
    assert (done.status, done.out) == (0, ""), done.err
    commit(forge / "example/docs", NEWER)
    done = command("later", "./lab.yaml", program=cli)
    assert done.status == 3
    assert done.out.startswith("## lab\n\n- partitions.gpu.time_max: gpu.md:3 changed")
    assert (
        "'| gpu | 1 day | 16 nodes |' (lab.yaml:7): correct the values, then write at: example/docs@"
        in done.out
    )


def test_lines_of_another_branch_are_found_in_a_clone_without_a_past(command: Command, forge: Path) -> None:
    """As NREL's, whose pages are on gh-pages alone."""
    docs = forge / "example/docs"
    profile(cited(docs))
    commit(docs, [*PAGE, "More."])
    run_git(docs, "branch", "pages")
    run_git(docs, "rm", "-q", "gpu.md")
    run_git(docs, "commit", "-q", "-m", "code alone", "--allow-empty")
    done = command("clones", "./lab.yaml", program=cli)
    assert (done.status, done.out) == (0, ""), done.err


def test_a_repository_that_is_gone_is_reported(command: Command, forge: Path) -> None:
    profile("example/gone@0123abc gpu.md:3 01234567")
    done = command("clones", "./lab.yaml", program=cli)
    assert (done.status, done.out) == (3, "- example/gone can't be cloned: is it gone?\n")


@pytest.mark.parametrize(
    ("report", "number", "asked"),
    [
        ("", "", None),
        ("## lab\n", "", "issue create --title Sources of profiles have changed --body-file -\n"),
        ("## lab\n", "7", "issue edit 7 --body-file -\n"),
    ],
    ids=["no report", "the first report", "a later report"],
)
def test_the_workflow_keeps_one_issue_with_the_newest_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch, report: str, number: str, asked: str | None
) -> None:
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["sources"]
    *_, step = job["steps"]
    (folder / "bin").mkdir()
    (folder / "bin/gh").write_text(GH)
    (folder / "bin/gh").chmod(0o755)
    (folder / "open").write_text(number)
    (folder / "report.md").write_text(report)
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    monkeypatch.setenv("TITLE", job["env"]["TITLE"])
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", step["run"]], check=True)
    there = folder / "asked"
    assert (there.read_text() if there.exists() else None) == asked
    assert not asked or (folder / "body").read_text() == report


@pytest.mark.parametrize("status", [0, 3, 1])
def test_a_report_is_no_failure_of_the_workflow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    steps = [step.get("run", "") for step in yaml.safe_load(WORKFLOW.read_text())["jobs"]["sources"]["steps"]]
    (run,) = [step for step in steps if "tools.outdated" in step]
    (folder / "bin").mkdir()
    (folder / "bin/python3").write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    (folder / "bin/python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    assert (subprocess.run(["bash", "-e", "-c", run], check=False).returncode != 0) == (status == 1)
    assert (folder / "report.md").read_text() == f"{' '.join(str(cli.name).split()[1:])} ../sources\n"
