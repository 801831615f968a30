"""A file that is open in an editor whose server runs in another folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbatchgen.base.errors import CommandLineError
from sbatchgen.check.lint.lint_settings import Settings
from sbatchgen.check.script.job import DEFAULT_SLURM
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.resolved.request import read_request
from sbatchgen.lab.editor.open_file import OpenFile

JOB = "mode: single\noptions: {nodes: 1}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a folder below the working folder, which has an sbatchgen.yaml of its own."""
    (tmp_path / "sbatchgen.yaml").write_text("profile: local\noptions: {comment: from above}\n")
    project = tmp_path / "project"
    (project / "clusters").mkdir(parents=True)
    (project / "sbatchgen.yaml").write_text("profile: clusters/lab.yaml\noptions: {time: 00:20:00}\n")
    profile = "name: lab\nurl: https://example.org\nchecked: 2026-01-01\npartitions: {night: {time_max: 08:00:00}}\n"
    (project / "clusters" / "lab.yaml").write_text(profile)
    (project / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return project


def opened(path: Path) -> OpenFile:
    """The job file at a path, in an editor."""
    settings = Settings(profile=None, slurm=DEFAULT_SLURM, folder=path.parent, is_release_assumed=True)
    text = "# yaml-language-server: $schema=job.json\n" + JOB
    return OpenFile(path=path, text=text, settings=settings, environment=dict(os.environ))


def test_a_job_has_the_settings_and_the_profile_of_its_own_folder(project: Path) -> None:
    """Both files are named relative to the folder of the job."""
    file = opened(project / "job.yaml")
    assert [finding.problem for finding in file.findings(is_saved=True)] == []
    shown = {setting.name: (setting.value, setting.at) for setting in file._yaml.settings}  # type: ignore[union-attr]
    assert shown["--time"] == ("0-00:20:00", "sbatchgen.yaml:2")
    assert shown["profile"][0] == "lab"
    assert "--comment" not in shown


def test_the_job_file_is_searched_for_in_the_folder_of_the_request(project: Path) -> None:
    def resolved_name(job: str) -> str:
        return str(
            read_request(job, (), {}, environment=dict(os.environ), folder=project, check=check).resolved.name
        )

    assert resolved_name("job.yaml") == "job"
    with pytest.raises(CommandLineError) as caught:
        resolved_name("jobs.yaml")
    assert caught.value.problems[0].fix == "did you mean 'job.yaml'?"


@pytest.mark.parametrize("job", ["job.*", "job.[", "job.?", "none/job.**"])
def test_a_missing_file_may_have_the_signs_of_a_pattern(project: Path, job: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        read_request(job, (), {}, environment=dict(os.environ), folder=project, check=check)
    assert caught.value.problems[0].what == f"no job '{job}': it is neither a mode nor a file"
