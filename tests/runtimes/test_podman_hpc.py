"""podman-hpc, with a stand-in that does what the real one was seen to do, in version 1.1.4 with podman 4.3.1.

It removes the first -- of its command line, gives a container no variable but those of --env, and starts what
follows the image.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Command

STAND_IN = f"""#!{sys.executable}
import fnmatch, json, os, sys
words = sys.argv[1:]
if words[:2] == ["image", "exists"]:
    sys.exit(words[2] != "localhost/torch:2")
words.remove("--")
assert words[0] == "run"
image = words.index("localhost/torch:2")
options, command = words[1:image], words[image + 1 :]
names = [word.partition("=")[2] for word in options if word.startswith("--env=")]
inside = {{name: value for name, value in os.environ.items() if any(fnmatch.fnmatch(name, one) for one in names)}}
with open("options.json", "w") as file:
    json.dump(options, file)
os.execvpe(command[0], command, {{"PATH": os.environ["PATH"], **inside}})
"""
TRAINER = "import os, sys\nprint(*sys.argv[1:], sorted(name for name in os.environ if name != 'PATH'))\n"
FLAGS = ("--profile", "local", "--runtime", "podman-hpc", "--image", "localhost/torch:2")


@pytest.fixture
def installed(folder: Path) -> Path:
    """The folder of the stand-in."""
    program = folder / "bin/podman-hpc"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    return program.parent


def run(script: str, folder: Path, installed: Path, **more: str) -> subprocess.CompletedProcess[str]:
    path = f"{installed}:{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_trainer_gets_the_jobs_variables_and_no_others(
    folder: Path, installed: Path, command: Command
) -> None:
    (folder / "train.py").write_text(TRAINER)
    words = ("--trainer", "train.py", "--env", "MINE=a b", "--bind", "/scratch:/data", "--", "--", "x")
    done = run(
        command("render", "single", *FLAGS, *words).out, folder, installed, OTHER="1", SLURM_JOB_ID="7"
    )
    assert done.returncode == 0, done.stderr
    assert "-- x" in done.stdout
    assert "'MINE'" in done.stdout
    assert "'SLURM_JOB_ID'" in done.stdout
    assert "'OTHER'" not in done.stdout
    options = (folder / "options.json").read_text()
    assert "--gpu" in options
    assert "--volume=/scratch:/data" in options
    assert f"--workdir={folder}" in options


def test_cpu_jobs_ask_for_no_gpu(folder: Path, command: Command) -> None:
    assert "--gpu" not in command("render", "cpu", *FLAGS).out


def test_an_image_that_is_not_there_ends_the_job(folder: Path, installed: Path, command: Command) -> None:
    text = command("render", "single", *FLAGS[:-1], "docker.io/absent:1").out
    done = run(text, folder, installed)
    assert done.returncode == 1
    assert "podman-hpc pull docker.io/absent:1" in done.stderr


def test_a_path_with_a_comma_is_refused(command: Command) -> None:
    refused = command("render", "single", *FLAGS, "--bind", "/a,b")
    assert refused.status == 3
    assert "can't be mounted" in refused.err


def test_an_old_script_with_it_is_adopted_and_linted(folder: Path, command: Command) -> None:
    options = "--rm --gpu --nccl -v $SCRATCH:$SCRATCH -w /work"
    (folder / "old.slurm").write_text(
        "#!/bin/bash\n#SBATCH --ntasks-per-node=2 --gpus-per-node=2\n"
        f"srun podman-hpc run {options} docker.io/pytorch/pytorch:2.4 torchrun --nproc-per-node=2 train.py\n"
    )
    (folder / "train.py").touch()
    adopted = command("adopt", "old.slurm").out
    assert "image: docker.io/pytorch/pytorch:2.4" in adopted
    assert "- ${SCRATCH}:${SCRATCH}\n    gpu_flags:\n    - --gpu\n    - --nccl\n" in adopted
    assert "launcher: torchrun" in adopted
    assert "SB302" in command("lint", "--no-shellcheck", "old.slurm").out  # two torchruns on each node


def test_no_option_of_an_old_script_is_dropped_without_a_word(folder: Path, command: Command) -> None:
    options = "--rm --gpu --privileged --env=OMP_NUM_THREADS=4 -e HF_HOME=/s/hf -e 'SLURM_*' -e A -e MASTER_ADDR -w /elsewhere"
    (folder / "old.slurm").write_text(
        "#!/bin/bash\n#SBATCH --ntasks-per-node=1 --gpus-per-node=4\nexport A=1 MASTER_ADDR=$(hostname)\n"
        f"srun podman-hpc run {options} img:1 torchrun --nproc-per-node=4 train.py\n"
    )
    (folder / "train.py").touch()
    adopted = command("adopt", "old.slurm")
    assert "HF_HOME: /s/hf\n" in adopted.out
    assert "OMP_NUM_THREADS: '4'\n" in adopted.out
    assert "gpu_flags:\n    - --gpu\n" in adopted.out
    assert "    flags:\n    - --privileged\n" in adopted.out
    assert "--workdir of podman-hpc run is dropped: the trainer starts in the job's folder" in adopted.err
