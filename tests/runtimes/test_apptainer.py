"""Apptainer under its other names, its verbs and options of mounts; what an AMD profile makes of it."""

from __future__ import annotations

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
runtime: apptainer
"""


def rendered(
    command: Command, folder: Path, facts: str, *words: str, more: str = "", mode: str = "single"
) -> str:
    (folder / "site.yaml").write_text(f"{PROFILE}{more}runtimes: {{apptainer: {{{facts}}}}}\n")
    done = command("render", mode, "--profile", "./site.yaml", *words)
    assert done.status == 0, done.err
    return done.out


def test_singularity_gets_variables_of_both_names(command: Command, folder: Path) -> None:
    text = rendered(command, folder, "command: singularity, verb: run, image: /i.sif")
    assert 'singularity run --nv --pwd "$PWD"' in text
    assert 'export "APPTAINERENV_$name=${!name}" "SINGULARITYENV_$name=${!name}"\n' in text
    assert " SINGULARITY_NO_EVAL=1\n" in text
    own = rendered(command, folder, "image: /i.sif")
    assert "SINGULARITY" not in own


@pytest.mark.parametrize(
    ("facts", "words", "image"),
    [
        ("command: apptainer_wrapper", (), "IMAGE=$SING_IMAGE # of a module\n"),
        ("command: singularity_wrapper, image: /i.sif", (), 'IMAGE="/i.sif"\n'),
        ("command: singularity_wrapper", ("--image", "./i.sif"), 'IMAGE="${SLURM_SUBMIT_DIR}/i.sif"\n'),
    ],
)
def test_a_wrapper_reads_image_and_flags_in_variables(
    command: Command, folder: Path, facts: str, words: tuple[str, ...], image: str
) -> None:
    text = rendered(command, folder, facts, *words)
    assert image in text
    assert 'env SING_IMAGE="$IMAGE" SING_FLAGS="$SING_FLAGS --nv --pwd $PWD --bind $PWD,' in text
    assert f"{facts.partition(',')[0].removeprefix('command: ')} exec \\\n" in text
    assert " or a blank in its name" in text


def test_a_wrapper_without_any_image_ends_the_job(command: Command, folder: Path) -> None:
    text = rendered(command, folder, "command: apptainer_wrapper")
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(folder)},
    )
    assert done.returncode == 1
    assert "no image in SING_IMAGE" in done.stderr


def test_without_a_wrapper_an_image_is_needed(command: Command, folder: Path) -> None:
    (folder / "site.yaml").write_text(f"{PROFILE}runtimes: {{apptainer: {{command: singularity}}}}\n")
    assert "needs an image" in command("render", "single", "--profile", "./site.yaml").err


@pytest.mark.parametrize(
    ("runtime", "bind"),
    [
        ("apptainer", "/a:/b:ro"),
        ("apptainer", "/data.sqfs:/data:image-src=/"),
        ("apptainer", "/data.img:/data:id=2"),
        ("enroot", "/a:/b:ro+rprivate"),
        ("podman-hpc", "/a:/b:ro"),
        ("shifter", "/a:/b:perNodeCache=size=200G"),
    ],
)
def test_options_of_a_mount_follow_the_second_path(
    command: Command, folder: Path, runtime: str, bind: str
) -> None:
    text = rendered(
        command,
        folder,
        "image: /i.sif",
        "--runtime",
        runtime,
        "--image",
        "/i.img" if runtime != "shifter" else "i:1",
        "--bind",
        bind,
    )
    assert bind in text.partition("\ntrain() {")[2].partition("\n}\n")[0]


@pytest.mark.parametrize(
    ("runtime", "bind"),
    [
        ("apptainer", "/a:/b:/c"),
        ("apptainer", "/a:/b:rprivate"),
        ("apptainer", "/a:/b:ro,id=1"),
        ("enroot", "/a:/b:image-src=/"),
        ("enroot", "/a:/b:ro+/c"),
        ("podman-hpc", "/a:/b:c"),
        ("shifter", "/a;/b:/c"),
    ],
)
def test_what_would_be_split_is_refused(command: Command, folder: Path, runtime: str, bind: str) -> None:
    image = "/i.img" if runtime != "shifter" else "i:1"
    done = command(
        "render", "single", "--profile", "msu", "--runtime", runtime, "--image", image, "--bind", bind
    )
    assert done.status == 3
    assert "can't be mounted" in done.err


def test_a_wrapper_takes_no_mount_with_a_blank(command: Command, folder: Path) -> None:
    (folder / "site.yaml").write_text(f"{PROFILE}runtimes: {{apptainer: {{command: apptainer_wrapper}}}}\n")
    done = command("render", "single", "--profile", "./site.yaml", "--bind", "/a b")
    assert "splits its flags at blanks" in done.err


AMD = "gpu_vendor: amd\n"
UNSET = "env -u HIP_VISIBLE_DEVICES -u CUDA_VISIBLE_DEVICES -u GPU_DEVICE_ORDINAL"


def test_amd_gpus_are_given_by_rocm_with_one_mask(command: Command, folder: Path) -> None:
    text = rendered(command, folder, "image: /i.sif", more=AMD, mode="ddp")
    assert "apptainer exec --rocm " in text
    assert f'"$IMAGE" \\\n        {UNSET} \\\n        python3 ' in text
    kept = rendered(command, folder, "image: /i.sif", "--env", "HIP_VISIBLE_DEVICES=0", more=AMD)
    assert "-u HIP_VISIBLE_DEVICES" not in kept
    assert "-u " not in rendered(command, folder, "image: /i.sif")
    own = rendered(command, folder, "image: /i.sif, gpu_flag: --contain", more=AMD)
    assert "apptainer exec --contain " in own


def test_amd_gpus_are_hidden_from_a_trainer_on_cpus(command: Command, folder: Path) -> None:
    text = rendered(command, folder, "image: /i.sif", "--trainer", "train.py", more=AMD, mode="cpu")
    assert "env ROCR_VISIBLE_DEVICES= python3 " in text


@pytest.mark.parametrize(
    ("runtime", "has", "lacks"),
    [
        ("enroot", "NVIDIA_VISIBLE_DEVICES=void", "compute,utility"),
        ("podman-hpc", "--env=ROCR_VISIBLE_DEVICES", "--env=CUDA_VISIBLE_DEVICES"),
    ],
)
def test_other_containers_know_amd_too(
    command: Command, folder: Path, runtime: str, has: str, lacks: str
) -> None:
    text = rendered(command, folder, "", "--runtime", runtime, "--image", "/i.sqsh", more=AMD)
    assert has in text
    assert lacks not in text


@pytest.mark.parametrize(
    ("start", "keys"),
    [
        ("singularity exec --nv i.sif", ["command: singularity", "image: i.sif"]),
        (
            "singularity run --rocm -B /d.sqfs:/d:image-src=/ i.sif",
            ["command: singularity", "verb: run", "/d.sqfs:/d:image-src=/", "gpu_flag: --rocm"],
        ),
        ("apptainer_wrapper exec", ["command: apptainer_wrapper"]),
        ("singularity_wrapper run", ["command: singularity_wrapper", "verb: run"]),
    ],
)
def test_adopt_keeps_program_and_verb(command: Command, folder: Path, start: str, keys: list[str]) -> None:
    (folder / "train.py").touch()
    (folder / "old.sh").write_text(
        f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --time=1:00:00\nsrun {start} python3 train.py\n"
    )
    adopted = command("adopt", "old.sh")
    assert adopted.status == 0, adopted.out + adopted.err
    assert all(key in adopted.out for key in keys), adopted.out
