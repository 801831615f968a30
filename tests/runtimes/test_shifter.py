"""Shifter: a directive with the image, and a command before Python. tests/jobs/test_engines.py runs jobs with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command

FLAGS = ("--profile", "msu", "--runtime", "shifter", "--image", "nersc/pytorch:24.08.01")


def test_the_image_is_a_directive_and_a_volume_an_option(command: Command) -> None:
    text = command("render", "ddp", *FLAGS, "--bind", "/datasets:/data", "--bind", "/scratch").out
    assert "\n#SBATCH --image=nersc/pytorch:24.08.01\n" in text
    assert (
        '\n        shifter --volume="/datasets:/data" --volume="/scratch:/scratch" \\\n        env --chdir="$PWD" MASTER_ADDR='
        in text
    )


def test_an_extra_option_names_another_image_and_modules(command: Command, folder: Path) -> None:
    (folder / "p.yaml").write_text(
        "name: p\nurl: x\nchecked: 2026-01-01\nplugin_options: [image=, module=]\nruntime: shifter\n"
        "extra_options: {image: 'other:1', module: 'gpu,nccl-plugin'}\n"
    )
    text = command("render", "cpu", "--profile", "./p.yaml", "--image", "nersc/pytorch:1").out
    assert "#SBATCH --image=other:1\n#SBATCH --module=gpu,nccl-plugin\n" in text
    assert text.count("--image=") == 1


@pytest.mark.parametrize("image", ["/images/x.sif", "./x", "${HOME}/x"])
def test_an_image_is_a_name(command: Command, image: str) -> None:
    refused = command("render", "single", *FLAGS[:-1], image)
    assert refused.status == 3
    assert "is not the name of an image of Shifter" in refused.err


def test_an_old_script_is_adopted_and_its_container_known(command: Command, folder: Path) -> None:
    (folder / "train.py").touch()
    (folder / "old.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --time=1:00:00\n"
        "#SBATCH --image=nersc/pytorch:24.08.01\n#SBATCH --module=gpu,nccl-plugin\n"
        "srun shifter -V /scratch/data:/data python3 train.py\n"
    )
    adopted = command("adopt", "old.sh")
    assert (
        "runtime: shifter\nruntimes:\n  shifter:\n    image: nersc/pytorch:24.08.01\n    volumes:\n    - /scratch/data:/data\n"
        in adopted.out
    )
    assert "module: gpu,nccl-plugin" in adopted.out
    assert "image: nersc" in adopted.out
    assert "launcher: srun" in adopted.out
