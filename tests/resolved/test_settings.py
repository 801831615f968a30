"""Settings of a profile and its partitions: which wins, and where it was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.scripts import resolved, script

PROFILE = """
name: here
url: https://example.org
checked: 2026-01-01
default_partition: x86
partitions:
  x86: {gpus_per_node: 4}
  arm:
    gpus_per_node: 4
    gpu_request: gres
    modules: [arm/python]
    setup: []
    env: {A: partition, B: partition}
    network: {nccl_socket_ifname: hsn}
    runtime: apptainer
    launcher: srun
    runtimes: {apptainer: {gpu_flag: --rocm, binds: [/arm]}}
modules: [python, cuda]
setup: [ulimit -l unlimited]
env: {A: profile, C: profile}
network: {nccl_socket_ifname: ib0, port_base: 30000}
runtime: venv
runtimes:
  venv: {path: /venv}
  apptainer: {image: /x.sif, binds: [/scratch]}
"""


@pytest.fixture
def cluster(folder: Path) -> Path:
    """A profile with two kinds of nodes."""
    file = folder / "here.yaml"
    file.write_text(PROFILE)
    return file


def test_a_partition_without_settings_has_those_of_the_profile(cluster: Path) -> None:
    of = resolved("ddp", cluster)
    assert (of.runtime.name, of.launcher, of.options.gpus_per_node) == ("venv", "torchrun", "4")
    assert of.settings.modules == ("python", "cuda")
    assert of.software == {"venv": "/venv"}


def test_a_partition_wins_mappings_key_by_key_and_lists_as_a_whole(cluster: Path) -> None:
    of = resolved("ddp", cluster, partition="arm", env={"B": "job"})
    assert (of.runtime.name, of.launcher, of.options.gres) == ("apptainer", "srun", "gpu:4")
    assert (of.settings.modules, of.settings.setup) == (("arm/python",), ())
    assert of.env == {"A": "partition", "C": "profile", "B": "job", "NCCL_SOCKET_IFNAME": "hsn"}
    assert of.settings.network.port_base == 30000
    assert of.software == {"image": "/x.sif", "binds": ("/arm",)}
    assert (of.facts.gpu_flag, of.facts.image) == ("--rocm", "/x.sif")


def test_the_script_has_what_the_partition_says(cluster: Path) -> None:
    text = script(resolved("ddp", cluster, partition="arm"))
    assert "module load arm/python ||" in text
    assert "ulimit" not in text
    assert "apptainer exec --rocm" in text
    assert "MASTER_PORT=$((30000 +" in text


def test_explain_says_where_a_setting_was_written(cluster: Path, command: Command) -> None:
    out = command("explain", "ddp", "--profile", "./here.yaml", "--partition", "arm", "--format", "json").out
    rows = {row["name"]: row for row in json.loads(out)["settings"]}
    assert (rows["modules"]["value"], rows["modules"]["at"]) == ("arm/python", "here.yaml:11")
    assert rows["modules"]["overrode"][0]["at"] == "here.yaml:18"
    assert rows["network.nccl_socket_ifname"]["at"] == "here.yaml:14"
    assert rows["runtimes.apptainer.gpu_flag"]["by"] == "partition"
    assert rows["binds"]["at"] == "here.yaml:17"
    assert rows["binds"]["value"] == "/arm"
    assert rows["image"]["by"] == "profile"


def test_the_review_shows_what_a_partition_changes(cluster: Path, command: Command) -> None:
    out = command("review", "ddp", "--profile", "./here.yaml", "--partition", "arm").out
    assert "modules arm/python              here.yaml:11, over python cuda of here.yaml:18" in out


def test_broken_setup_of_a_partition_is_found(cluster: Path, command: Command) -> None:
    cluster.write_text(PROFILE.replace("setup: []", "setup: ['if true']"))
    done = command("profile", "check", "./here.yaml")
    assert "partitions.arm.setup: bash can't read it" in done.err
    assert "at:  here.yaml:12" in done.err


def test_a_job_says_what_a_profile_may_and_adds_to_its_lists(cluster: Path, command: Command) -> None:
    (cluster.parent / "sbatchgen.yaml").write_text("modules+: [nccl]\nnetwork: {port_base: 31000}\n")
    job = cluster.parent / "job.yaml"
    job.write_text(
        "profile: ./here.yaml\nmode: ddp\nsetup: [echo a]\nmodules+: [job]\npython: python\n"
        "runtimes: {apptainer: {verb: run}}\nnetwork: {port_count: 5}\nruntime: apptainer\n"
    )
    flags = ("--set", "setup+=echo b", "--set", "setup+=[echo c, echo d]", "--set", "modules+=last")
    text = command("render", str(job), *flags).out
    assert "module load python cuda nccl job last ||" in text
    assert "echo a\necho b\necho c\necho d\n" in text
    assert "MASTER_PORT=$((31000 + SLURM_JOB_ID % 5))" in text
    assert "apptainer run" in text
    assert "\n        python " in text
    out = command("explain", str(job), *flags, "--format", "json").out
    rows = {row["name"]: row for row in json.loads(out)["settings"]}
    assert (rows["modules"]["by"], rows["modules"]["at"]) == ("command line", "--set modules+")
    assert [each["by"] for each in rows["modules"]["overrode"]] == ["job", "project", "profile"]
    assert rows["network.port_base"]["by"] == "project"
    assert rows["python"]["value"] == "python"
    assert not {"directives", "starter", "gpu_visibility", "setup_per_node"} & rows.keys()  # not said


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("setup: [a]\nsetup+: [b]\n", "both setup and setup+"),
        ("trainer+: x.py\n", "unknown key 'trainer+'"),
    ],
)
def test_what_adds_to_no_list_is_refused(cluster: Path, command: Command, text: str, what: str) -> None:
    (cluster.parent / "job.yaml").write_text(f"profile: ./here.yaml\nmode: ddp\n{text}")
    assert what in command("render", "job.yaml").err


def test_a_mode_has_settings_of_its_own(cluster: Path) -> None:
    cluster.write_text(PROFILE + "modes: {cpu: {time: 5, modules: [cpu], setup+: [echo cpu]}}\n")
    of = resolved("cpu", cluster)
    assert (of.settings.modules, of.settings.setup) == (("cpu",), ("ulimit -l unlimited", "echo cpu"))
    assert of.options.time == 300
