"""What a job says is what starts: its distribution, variables in its values, and what it takes away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command

PROFILE = """
name: site
url: https://example.org
checked: 2026-11-28
default_partition: gpu
partitions: {gpu: {gpus_per_node: 4, cpus_per_node: 8, nodes_max: 9}}
network: {nccl_socket_ifname: hsn0}
env: {APPTAINERENV_LD_LIBRARY_PATH: /opt/lib, KEPT: "1"}
runtimes: {apptainer: {flags: [--cleanenv, "--env=A=${HOME}"], binds: [/site]}}
launchers: {torchrun: {args: ["--log-dir=${HOME}/logs"]}}
"""


def rendered(command: Command, folder: Path, *words: str, job: str = "") -> str:
    (folder / "site.yaml").write_text(PROFILE)
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(f"mode: ddp\ntrainer: train.py\n{job}")
    done = command("render", "job.yaml", "--profile", "./site.yaml", *words)
    assert done.status == 0, done.err
    return done.out


@pytest.mark.parametrize("given", ["block:block", "cyclic", "plane=4"])
def test_the_distribution_of_a_job_holds(command: Command, folder: Path, given: str) -> None:
    text = rendered(command, folder, "--launcher", "srun", "--distribution", given)
    assert f"#SBATCH --distribution={given}\n" in text
    assert "srun --cpus-per-task" in text
    assert text.count("--distribution") == 1 + 1  # the directive, and the command line in the head
    assert "--distribution=block " in rendered(command, folder, "--launcher", "srun")


def test_variables_are_expanded_wherever_a_launcher_reads_them(command: Command, folder: Path) -> None:
    said = ["--set", 'launcher_args=["--role=${USER}"]', "--step", "gres=gpu:${SLURM_GPUS_ON_NODE}"]
    text = rendered(command, folder, *said)
    for word in ('"--log-dir=${HOME}/logs"', '"--role=${USER}"', '--gres="gpu:${SLURM_GPUS_ON_NODE}"'):
        assert word in text


def test_a_job_takes_a_variable_of_the_profile_away(command: Command, folder: Path) -> None:
    job = "env: {APPTAINERENV_LD_LIBRARY_PATH: null, NCCL_SOCKET_IFNAME: null, TOKEN: null}\n"
    text = rendered(command, folder, job=job)
    assert "APPTAINERENV_LD_LIBRARY_PATH" not in text
    assert "NCCL_SOCKET_IFNAME" not in text
    assert "KEPT=1" in text
    assert "TOKEN" in text  # the profile has none: that of the shell that submits
    again = rendered(command, folder, "--env", "APPTAINERENV_LD_LIBRARY_PATH=/mine", job=job)
    assert "APPTAINERENV_LD_LIBRARY_PATH=/mine" in again


def test_a_cleaned_container_has_the_variables_of_its_task(command: Command, folder: Path) -> None:
    text = rendered(command, folder, "--image", "/i.sif", "--launcher", "srun")
    assert 'apptainer exec --nv --cleanenv "--env=A=${HOME}" --pwd "$PWD"' in text
    assert "bash -c 'for name in ${!SLURM_@} ${!SBATCHGEN_@} CUDA_VISIBLE_DEVICES; do" in text


def test_an_empty_list_of_a_job_takes_the_profile_s_away(command: Command, folder: Path) -> None:
    said = ["--image", "/i.sif", "--launcher", "torchrun"]
    text = rendered(command, folder, *said, job="launcher_args: [--tee=3]\nbinds: [/mine]\n")
    assert all(word in text for word in ("--log-dir=", "--tee=3", ",/site", ",/mine"))
    text = rendered(command, folder, *said, job="launcher_args: []\nbinds: []\n")
    assert not any(word in text for word in ("--log-dir=", ",/site"))
    text = rendered(command, folder, *said, "--set", "launcher_args=[]")
    assert "--log-dir=" not in text
    assert ",/site" in text


def test_a_library_path_of_a_job_extends_that_of_the_image(command: Command, folder: Path) -> None:
    job = 'env: {APPTAINERENV_LD_LIBRARY_PATH: null, LD_LIBRARY_PATH: "/x:${LD_LIBRARY_PATH}"}\n'
    text = rendered(command, folder, "--image", "/i.sif", job=job)
    assert 'sh -c "LD_LIBRARY_PATH=\\$0\\$LD_LIBRARY_PATH exec \\"\\$@\\"" /x: ' in text
    assert "/opt/lib" not in text
