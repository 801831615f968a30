"""Enroot through pyxis: what its script keeps of the image and of the shell, and what is refused before."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Command

PROFILE = """
name: site
url: https://example.org
checked: 2026-01-01
default_partition: g
partitions: {g: {gpus_per_node: 4, cpus_per_node: 8}}
runtime: enroot
runtimes: {enroot: {image: /images/train.sqsh}}
"""


@pytest.fixture(autouse=True)
def profile(folder: Path) -> None:
    (folder / "site.yaml").write_text(PROFILE)


def rendered(command: Command, *words: str, mode: str = "single") -> str:
    done = command("render", mode, "--profile", "./site.yaml", *words)
    assert done.status == 0, done.err
    return done.out


def test_the_image_says_which_libraries_of_the_driver_it_wants(command: Command, folder: Path) -> None:
    """Enroot gives an image without the variable no CUDA; of an address it is not known before the job."""
    lines = rendered(command).splitlines()
    place = next(number for number, line in enumerate(lines) if "unsquashfs" in line)
    script = "\n".join([*lines[place : place + 4], 'echo "$NVIDIA_DRIVER_CAPABILITIES"'])
    tool = folder / "unsquashfs"
    tool.write_text('#!/bin/sh\n[ "$1 $3" = "-cat etc/environment" ] && cat image\n')
    tool.chmod(0o755)
    for image, expected in (("NVIDIA_DRIVER_CAPABILITIES=video\n", "\n"), ("A=b\n", "compute,utility\n")):
        (folder / "image").write_text(image)
        environment = {"PATH": f"{folder}:/usr/bin:/bin"}
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == expected
    own = rendered(command, "--env", "NVIDIA_DRIVER_CAPABILITIES=all")
    assert "unsquashfs" not in own
    assert "export NVIDIA_DRIVER_CAPABILITIES=all" in own
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in rendered(command, "--image", "docker://a/b:1")
    assert "NVIDIA_DRIVER_CAPABILITIES" not in rendered(command, mode="cpu")


def test_a_cache_stays_where_the_folder_is_mounted_or_the_job_asks_for_it(command: Command) -> None:
    text = rendered(command, "--bind", "/hf:/models", "--bind", "/scratch", "--env", "HF_HOME")
    (names,) = (
        line for line in text.splitlines() if line.startswith("    for name in MPL") or "TORCH_HOME" in line
    )
    assert "HF_HOME" not in names
    assert "TORCH_HOME" in names
    functions = re.search(r"(?ms)^is_mounted\(\) {.*?^}\n", text)
    assert functions
    for folder, there in (("/models/hub", 0), ("/scratch", 0), ("/hf", 1), ("/scratchy", 1), ("", 1)):
        call = [*("is_mounted", folder), "/hf:/models", "/scratch:/scratch:ro", "/data"]
        done = subprocess.run(["bash", "-c", functions[0] + shlex.join(call)], check=False)
        assert done.returncode == there, folder


def test_a_job_gives_srun_options_of_its_own(command: Command) -> None:
    own = ("mpi=pmix", "container-name=mine", "no-container-remap-root")
    text = rendered(command, *(word for option in own for word in ("--step", option)))
    assert "--mpi=pmix --container-name=mine --no-container-remap-root" in " ".join(text.split())


def test_a_folder_that_can_not_be_mounted_is_found_before_the_job(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, why in (("a:b", "split at the comma or colon"), ("a$b", "where $ is special")):
        odd = folder / name
        odd.mkdir()
        monkeypatch.chdir(odd)
        done = command("review", "single", "--profile", str(folder / "site.yaml"))
        assert f"{odd} can't be mounted: " in done.out
        assert why in done.out


@pytest.mark.parametrize("file", ["./x.tar", "x.tar.gz", "/images/x.tar"])
def test_a_file_is_nothing_that_enroot_imports(command: Command, file: str) -> None:
    done = command("image", "import", file, "--to", "x.sqsh")
    assert done.status == 2
    assert f"'{file}' is a file: Enroot imports from registries, Docker and Podman" in done.err


def test_the_image_may_say_where_the_training_starts(command: Command, folder: Path) -> None:
    assert '--container-workdir="$PWD" --no-container' in rendered(command)
    for workdir, option in (("/w", '--container-workdir="/w" '), ("image", "")):
        (folder / "site.yaml").write_text(PROFILE.replace("{image: /", f"{{workdir: {workdir}, image: /"))
        text = rendered(command)
        assert f'--container-image="$IMAGE" {option}--no-container-mount-home' in text
        assert ",PWD" not in text
