"""The profile of a job that names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.errors import DocumentError
from sbatchgen.jobs.inputs.search import Places
from tests.conftest import Command
from tools import trial

PROFILE = "name: {}\nurl: https://example.org\nchecked: 2026-01-01\npartitions: {{p: {{gpus_per_node: 4}}}}\n"


@pytest.fixture
def login_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with sbatch; the folder of the user's profiles, which does not exist."""
    for module in ("jobs.resolved.request", "jobs.judge.read_settings"):
        monkeypatch.setattr(f"sbatchgen.{module}.in_shell", lambda *_: "/usr/bin/sbatch")
    return Path.home() / ".config/sbatchgen/profiles"


def add(profiles: Path, *names: str) -> None:
    """Make profiles."""
    profiles.mkdir(parents=True, exist_ok=True)
    for name in names:
        (profiles / f"{name}.yaml").write_text(PROFILE.format(name))


def test_no_job_runs_on_a_login_node_because_no_profile_is_named(login_node: Path, command: Command) -> None:
    for words in (("submit", "single", "--yes"), ("review", "single"), ("render", "single")):
        done = command(*words)
        assert (done.status, done.out) == (2, "")
        assert "no profile is named" in done.err
        written = login_node / "mycluster.yaml"
        assert f"sbatchgen profile discover --name mycluster --write {written}" in done.err
        assert "--profile local" in done.err
    assert command("render", "single", "--profile", "local").status == 0


def test_the_only_profile_of_the_user_is_taken(login_node: Path, command: Command) -> None:
    add(login_node, "here")
    done = command("render", "single")
    assert "--profile here\n" in done.out
    assert done.err == f"profile: here, it is your only profile ({login_node}/here.yaml)\n"
    assert command("render", "single", "--profile", "msu").err == ""


@pytest.mark.parametrize(("names", "is_warned"), [(["here"], False), (["here", "there"], True), ([], True)])
def test_a_script_that_runs_here_is_read_for_the_release_of_the_only_profile(
    login_node: Path,
    folder: Path,
    command: Command,
    names: list[str],
    is_warned: bool,  # noqa: FBT001
) -> None:
    add(login_node, *names)
    for name in names:
        with (login_node / f"{name}.yaml").open("a") as file:
            file.write("slurm: 22.05.8\n")
    text = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --gpus-per-task=2 --time=5\n"
    text += "srun torchrun --standalone --nproc_per_node=$SLURM_GPUS_PER_TASK train.py\n"
    (folder / "job.sh").write_text(text)
    done = command("plan", "job.sh")
    assert done.status == 0
    assert ("SLURM_GPUS_PER_TASK is empty, because Slurm 26.05" in done.err + done.out) == is_warned
    (folder / "new.sh").write_text("#!/bin/bash\n#SBATCH --time=5 --requeue=expedite\nhostname\n")
    assert (command("review", "new.sh").status == 0) == is_warned  # Slurm 22.05 refuses this option


def test_of_several_profiles_one_must_be_named(login_node: Path, command: Command) -> None:
    add(login_node, "here", "there")
    done = command("submit", "single", "--yes")
    assert done.status == 2
    assert "you have several: here, there" in done.err
    assert "add --profile here" in done.err


def test_a_folder_named_profiles_is_one_of_the_users(
    login_node: Path, folder: Path, command: Command
) -> None:
    add(folder / "profiles", "here")
    assert "--profile profiles/here.yaml\n" in command("render", "single").out


def test_without_slurm_the_job_runs_here(
    login_node: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    add(login_node, "here")
    monkeypatch.setattr("sbatchgen.jobs.resolved.request.in_shell", lambda *_: "")
    assert "--profile local\n" in command("render", "single").out


def test_a_template_lies_beside_the_folder_of_a_named_profile(folder: Path, command: Command) -> None:
    add(folder / "site/profiles", "here")
    file = folder / "site/profiles/here.yaml"
    file.write_text(f"{file.read_text()}template: own.sh.j2\n")
    (folder / "site/templates").mkdir()
    (folder / "site/templates/own.sh.j2").write_text("{% extends 'job.sh.j2' %}\n")
    assert command("render", "single", "--profile", "site/profiles/here.yaml").status == 0
    assert command("profile", "check", "site/profiles/here.yaml").status == 0
    assert command("site/profiles/here.yaml", program=trial.cli).status == 0


def test_the_name_of_a_profile_is_quoted_in_the_fix(login_node: Path, command: Command) -> None:
    add(login_node, "a b", "c")
    done = command("render", "single")
    assert "fix: add --profile 'a b', or export SBATCHGEN_PROFILE='a b'\n" in done.err


def test_a_file_that_is_no_profile_is_read_in_the_folder_of_the_job(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the same name, in the folder of the process, is another file."""
    job_folder, process_folder = tmp_path / "jobs", tmp_path / "elsewhere"
    for path, text in ((job_folder, "mode: ddp\n"), (process_folder, PROFILE.format("x"))):
        path.mkdir()
        (path / "x.yaml").write_text(text)
    monkeypatch.chdir(process_folder)
    with pytest.raises(DocumentError, match=r"x\.yaml is a job YAML, not a profile"):
        Places(job_folder, {}).profile("x.yaml")
    monkeypatch.chdir(job_folder)
    assert Places(process_folder, {}).profile("x.yaml") == Path("x.yaml")
