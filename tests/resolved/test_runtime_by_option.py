"""A runtime that no --runtime names follows from the option that it requires."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.jobs.inputs.job_file import KEYS_CHOOSING_RUNTIME, RUNTIME_KEYS
from sbatchgen.jobs.runtimes import RUNTIMES
from tests.conftest import Command


def runtime(command: Command, *words: str) -> str:
    """The runtime of a job, as explain shows it; the rest of its line says what has chosen it."""
    done = command("explain", *words)
    return next(
        (" ".join(line.split()[1:]) for line in done.out.splitlines() if line.startswith("runtime ")),
        done.err,
    )


@pytest.mark.parametrize("key", [key for key in KEYS_CHOOSING_RUNTIME if key != "image"])
def test_the_option_that_one_runtime_requires_chooses_it(key: str, command: Command) -> None:
    flag = RUNTIME_KEYS[key].field.metadata.get("flag", f"--{key.replace('_', '-')}")
    (name,) = (name for name, each in RUNTIMES.items() if each.requires and each.requires.key == key)
    assert runtime(command, "single", "--profile", "msu", flag, "./x").startswith(f"{name} {flag}")


@pytest.mark.parametrize(
    ("profile", "image", "chosen"),
    [
        ("local", "x.sif", "apptainer"),
        ("msu", "x.sif", "apptainer"),
        ("msu", "/images/x.sqsh", "enroot"),
        ("msu", "docker://a/b", "enroot"),
    ],
)
def test_an_image_chooses_by_its_file_and_the_profile(
    command: Command, profile: str, image: str, chosen: str
) -> None:
    assert runtime(command, "single", "--profile", profile, "--image", image).startswith(chosen)


def test_an_image_for_several_runtimes_is_an_error_that_names_them(command: Command) -> None:
    done = command("render", "single", "--profile", "local", "--image", "docker://a/b")
    assert done.status == 3
    *able, last = [name for name, each in RUNTIMES.items() if "image" in {key.name for key in each.keys}]
    assert f"add --runtime {', '.join(able)} or {last}" in done.err


def test_a_higher_layer_chooses_again(folder: Path, command: Command) -> None:
    (folder / "sbatchgen.yaml").write_text("venv: ./venv\n")
    (folder / "job.yaml").write_text("mode: single\nprofile: local\nruntime: conda\nconda_env: torch\n")
    assert runtime(command, "single", "--profile", "local").startswith("venv sbatchgen.yaml:1")
    assert runtime(command, "job.yaml").startswith("conda job.yaml:3")
    assert runtime(command, "job.yaml", "--uv-project", ".").startswith("uv --uv-project")
    assert runtime(command, "job.yaml", "--runtime", "host").startswith("host --runtime")


def test_a_contradiction_in_one_layer_is_an_error(folder: Path, command: Command) -> None:
    (folder / "job.yaml").write_text("mode: single\nruntime: host\nvenv: ./venv\n")
    done = command("render", "job.yaml", "--profile", "local")
    assert done.status == 3
    assert "SB043" in command("review", "job.yaml", "--profile", "local").out
    assert "keep one of job.yaml:3 and job.yaml:2" in done.err
