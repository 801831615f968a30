"""The container engine of CSCS: an option of srun, never a directive. tests/jobs/test_engines.py runs jobs with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sbatchgen.jobs.runtimes.edf import mounted_folders
from tests.conftest import Command

FLAGS = ("--profile", "msu", "--runtime", "edf")


def test_only_the_step_runs_in_the_container(command: Command) -> None:
    text = command("render", "ddp", *FLAGS, "--edf", "./train.toml", "--env", "A=b", "--env", "API_KEY").out
    head, _, body = text.partition("\n\n")
    assert "environment" not in head.partition("#SBATCH")[2]
    assert 'EDF="${SLURM_SUBMIT_DIR}/train.toml"\n' in body
    step = body.partition("exec srun ")[2].partition("\n}\n")[0]
    assert '--environment="$EDF" \\\n        env --chdir="$PWD" MASTER_ADDR="$MASTER_ADDR" ' in step
    assert 'A="$A"' in step
    assert "API_KEY=" not in step, "a secret is not for the command line"


def test_a_name_stays_a_name_and_a_file_has_a_slash(command: Command) -> None:
    assert "\nEDF=train\n" in command("render", "single", *FLAGS, "--edf", "train").out
    refused = command("render", "single", *FLAGS, "--edf", "train.toml")
    assert refused.status == 3
    assert "fix: write ./train.toml" in refused.err


def test_it_needs_slurm(command: Command) -> None:
    refused = command("render", "single", "--profile", "local", "--runtime", "edf", "--edf", "x")
    assert "there is no Slurm here" in refused.err


def test_the_directive_is_a_finding_of_the_plan(command: Command, folder: Path) -> None:
    profile = "name: c\nurl: x\nchecked: 2026-01-01\nplugin_options: [environment=]\n"
    (folder / "c.yaml").write_text(profile + "extra_options: {environment: ./train.toml}\n")
    review = command("review", "cpu", "--profile", "./c.yaml")
    assert "--environment puts the whole script into the container" in review.out + review.err
    assert "runtime: edf" in review.out + review.err


@pytest.mark.parametrize(
    ("given", "kept"),
    [("./train.toml", "./train.toml"), ("train", "train"), ("$HOME/e/x.toml", "${HOME}/e/x.toml")],
)
def test_adopt_reads_the_option_of_srun(command: Command, folder: Path, given: str, kept: str) -> None:
    (folder / "train.py").touch()
    (folder / "old.sh").write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --time=1:00:00\nsrun --environment={given} python3 train.py\n"
    )
    adopted = command("adopt", "old.sh")
    assert f"runtime: edf\nruntimes:\n  edf:\n    environment: {kept}\n" in adopted.out, (
        adopted.out + adopted.err
    )
    assert "none lost" in adopted.err


@pytest.mark.parametrize("runtime", [("edf", "--edf", "x"), ("shifter", "--image", "x:1")])
def test_folders_that_are_not_mounted_may_have_any_name(command: Command, runtime: tuple[str, ...]) -> None:
    assert (
        command(
            "render", "single", "--profile", "msu", "--runtime", *runtime, "--run-dir", "/scratch/a,b"
        ).status
        == 0
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="it reads no TOML")
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ('mounts = ["/a:/b:ro", "/c", "${TOP}/d:${TOP}/e"]', ["/b", "/c", "/top/e"]),
        ('base_environment = "other"\nmounts = ["./x:./y"]', ["/of-other", "HERE/y"]),
        ('mounts = ["${UNKNOWN}:${UNKNOWN}"]', None),
        ('mounts = ["${TOP:-}:/x"]', None),
        ('base_environment = "itself"', None),
        ('base_environment = "nowhere"', None),
        ("mounts = 3", []),
        ("mounts = [", None),
    ],
)
def test_what_an_edf_mounts(text: str, seen: list[str] | None, tmp_path: Path) -> None:
    (tmp_path / "itself.toml").write_text(text)
    (tmp_path / "other.toml").write_text('mounts = ["/z:/of-other"]')
    environment = {"EDF_PATH": str(tmp_path), "TOP": "/top"}
    wanted = seen and [each.replace("HERE", str(tmp_path)) for each in seen]
    assert mounted_folders("itself", tmp_path, environment) == wanted
    assert mounted_folders("./itself.toml", tmp_path, environment) == wanted


def test_an_image_is_no_environment_and_the_fix_names_the_flag_that_is(command: Command) -> None:
    done = command("render", "ddp", *FLAGS, "--image", "./a.toml")
    assert "fix: keep one of --image and --runtime; runtime edf takes --edf ./FILE.toml" in done.err
