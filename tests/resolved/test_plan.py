"""Layers, and what follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.jobs.inputs.layers import Level
from tests.conftest import Command
from tests.scripts import resolved

PROFILE = """
name: here
url: https://example.org
checked: 2026-01-01
default_partition: gpu
options: {account: from-profile, time: 01:00:00, qos: from-profile}
partitions:
  gpu:
    cpus_per_node: 64
    gpus_per_node: 4
    mem_per_node: 240G
    shards_per_gpu: 8
    options: {time: 02:00:00}
  big:
    gpus_per_node: 8
    options: {time: 03:00:00}
modes:
  ddp: {nodes: 3}
env: {A: profile, B: profile}
"""


@pytest.fixture
def cluster(folder: Path) -> Path:
    """A profile, a project and a job that all say something."""
    (folder / "here.yaml").write_text(PROFILE)
    (folder / "sbatchgen.yaml").write_text(
        "profile: ./here.yaml\noptions: {account: from-project}\nenv: {B: project, C: project}\n"
    )
    (folder / "job.yaml").write_text("mode: ddp\nenv: {C: job, D: job}\noptions:\n  time: 04:00:00\n")
    return folder


def values(text: str) -> dict[str, tuple[str, str]]:
    """Value and origin of each row that `explain` prints."""
    rows = [line.split("  ", 1) for line in text.splitlines()]
    table = {row[0]: [part.strip() for part in row[1].strip().split("  ", 1)] for row in rows}
    return {name: (cells[0], cells[1]) for name, cells in table.items()}


def test_the_higher_layer_wins_and_explain_says_what_it_overrode(cluster: Path, command: Command) -> None:
    rows = values(command("explain", "job.yaml", "--nodes", "5", "--env", "D=flag").out)
    assert rows["--nodes"] == ("5", "--nodes  (here.yaml:18 said 3)")
    assert rows["--account"] == ("from-project", "sbatchgen.yaml:2  (here.yaml:6 said from-profile)")
    assert rows["--qos"] == ("from-profile", "here.yaml:6")
    time = rows["--time"]
    assert time[0] == "0-04:00:00"
    assert time[1] == "job.yaml:4  (here.yaml:13 said 0-02:00:00; here.yaml:6 said 0-01:00:00)"
    assert [rows[f"env {name}"][0] for name in "ABCD"] == ["profile", "project", "job", "flag"]
    assert rows["--job-name"][0] == "job"


def test_the_partition_brings_its_own_defaults(cluster: Path, command: Command) -> None:
    rows = values(command("explain", "ddp", "--partition", "big").out)
    assert rows["--time"] == ("0-03:00:00", "here.yaml:16  (here.yaml:6 said 0-01:00:00)")
    assert rows["--gpus-per-node"][0] == "8"


def test_the_profile_is_chosen_by_flag_then_variable_then_project(
    cluster: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--profile ./here.yaml" in command("render", "ddp").out
    monkeypatch.setenv("SBATCHGEN_PROFILE", "msu")
    assert "--profile msu" in command("render", "ddp").out
    assert "--profile troila" in command("render", "ddp", "--profile", "troila").out
    monkeypatch.delenv("SBATCHGEN_PROFILE")
    (cluster / "sbatchgen.yaml").unlink()
    assert "--profile local" in command("render", "ddp").out


def test_a_file_that_is_named_counts_from_the_file_that_names_it(
    cluster: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cluster / "deep").mkdir()
    (cluster / "deep/job.yaml").write_text("mode: ddp\nprofile: ../here.yaml\n")
    assert command("render", "deep/job.yaml").status == 0
    monkeypatch.chdir(cluster / "deep")
    script = command("render", "ddp").out
    assert f"--profile {cluster}/here.yaml\n" in script
    assert "--account=from-project\n" in script


def test_profiles_are_searched_in_order(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBATCHGEN_PATH, then .sbatchgen of the project, then XDG, then the bundled ones."""
    for number, root in enumerate(("path", ".sbatchgen", "xdg/sbatchgen", "etc/sbatchgen")):
        (folder / root / "profiles").mkdir(parents=True)
        text = PROFILE.replace("from-profile", f"level-{number}")
        (folder / root / "profiles" / "msu.yaml").write_text(text)
    (folder / "sbatchgen.yaml").write_text("profile: msu\n")
    monkeypatch.setenv("SBATCHGEN_PATH", str(folder / "path"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "xdg"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(folder / "etc"))
    for number, root in enumerate(("path", ".sbatchgen", "xdg/sbatchgen", "etc/sbatchgen")):
        assert f"--account=level-{number}\n" in command("render", "ddp").out
        (folder / root / "profiles" / "msu.yaml").unlink()
    assert "--partition=batch" in command("render", "ddp").out


def test_trainer_arguments_of_the_command_line_follow_those_of_the_job(
    folder: Path, command: Command
) -> None:
    (folder / "job.yaml").write_text("mode: single\nargs: [--epochs, 5, --lr, 1]\n")
    lines = command("render", "job.yaml", "--", "--epochs", "9").out.splitlines()
    script = "\n".join(line for line in lines if not line.startswith("#"))
    assert script.index("--epochs 5") < script.index("--lr 1") < script.index("--epochs 9")


@pytest.mark.parametrize(
    ("launcher", "tasks", "cpus"), [("torchrun", 1, 64), ("spawn", 1, 64), ("srun", 4, 16)]
)
def test_the_launcher_decides_tasks_and_their_cpus(
    folder: Path, launcher: str, tasks: int, cpus: int
) -> None:
    (folder / "here.yaml").write_text(PROFILE)
    of = resolved("ddp", folder / "here.yaml", launcher=launcher)
    assert (of.options.ntasks_per_node, of.options.cpus_per_task, of.nproc_per_node) == (tasks, cpus, 4)
    assert (of.options.gpus_per_node, str(of.options.mem)) == ("4", "240G")


def test_one_gpu_gets_its_share_of_the_node(folder: Path) -> None:
    (folder / "here.yaml").write_text(PROFILE)
    of = resolved("single", folder / "here.yaml")
    assert (of.options.gpus_per_node, of.options.cpus_per_task, str(of.options.mem)) == ("1", 16, "60G")
    of = resolved("single", folder / "here.yaml", gres="shard:4")
    assert (of.options.gpus_per_node, of.options.gres, of.options.cpus_per_task) == (None, "shard:4", 8)
    of = resolved("dataparallel", folder / "here.yaml")
    assert (of.nodes, of.options.gpus_per_node, of.options.cpus_per_task, of.nproc_per_node) == (
        1,
        "4",
        64,
        1,
    )
    of = resolved("cpu", folder / "here.yaml")
    assert (of.options.gpus_per_node, of.options.gres, of.options.cpus_per_task) == (None, None, 4)


@pytest.mark.parametrize(
    ("form", "launcher", "expected"),
    [
        ("gpus_per_node", "torchrun", ("a100:2", None, None)),
        ("gres", "torchrun", (None, "gpu:a100:2", None)),
        ("gpus_per_task", "torchrun", (None, None, "a100:2")),
        ("gpus_per_task", "srun", (None, None, "a100:1")),
    ],
)
def test_gpus_are_asked_for_in_the_clusters_form(
    folder: Path, form: str, launcher: str, expected: tuple[str | None, ...]
) -> None:
    (folder / "here.yaml").write_text(PROFILE)
    of = resolved("ddp", folder / "here.yaml", gpu_request=form, launcher=launcher, gpus_per_node="a100:2")
    assert (of.options.gpus_per_node, of.options.gres, of.options.gpus_per_task) == expected
    assert (of.gpus_per_node, of.nproc_per_node) == (2, 2)


@pytest.mark.parametrize(("each", "tasks"), [("1", 4), ("2", 2)])
def test_gpus_of_a_task_fill_the_node_under_srun(folder: Path, each: str, tasks: int) -> None:
    (folder / "here.yaml").write_text(PROFILE)
    of = resolved("ddp", folder / "here.yaml", launcher="srun", gpus_per_task=each)
    assert (of.options.ntasks_per_node, of.nproc_per_node, of.gpus_per_node) == (tasks, tasks, 4)
    assert of.options.gpus_per_node is None


def test_a_job_can_leave_the_gpus_to_sbatch(folder: Path, command: Command) -> None:
    script = command("render", "single", "--profile", "troila", "--gpu-request", "none").out
    assert "gres" not in script
    assert "gpus" not in script.split("umask")[0]


def test_options_that_a_profile_omits_stay_with_those_who_ask_for_them(command: Command) -> None:
    assert "--partition" not in command("render", "ddp", "--profile", "troila").out.split("umask")[0]
    asked = command("render", "ddp", "--profile", "troila", "--partition", "default").out
    assert "#SBATCH --partition=default\n" in asked


def test_the_warning_leaves_time_and_goes_with_resume() -> None:
    assert resolved("ddp", time=7200).options.signal == "B:USR1@300"
    assert resolved("ddp", time=600).options.signal == "B:USR1@150"
    shortest = resolved("ddp", time=7200, time_min=600)  # the limit that Slurm may choose
    assert shortest.options.signal == "B:USR1@150"
    off = resolved("ddp", resume="off")
    assert (off.options.signal, off.options.requeue) == (None, False)
    never = resolved("ddp", max_restarts=0)
    assert (never.options.signal, never.options.requeue) == (None, False)


def test_origins_are_ordered() -> None:
    assert Level.DEFAULT < Level.PROFILE < Level.PARTITION < Level.PROJECT < Level.JOB < Level.COMMAND_LINE


@pytest.mark.parametrize(("profile", "values"), [
    ("msu", {"nodes": 2, "cpus_per_task": 16, "gpus_per_node": "4", "partition": "batch", "time": 7200}),
    ("troila", {"nodes": 2, "ntasks_per_node": 1, "gres": "gpu:1", "mem": 4096, "partition": None}),
    ("public_cluster", {"gres": "gpu:8", "time": 300, "cpus_per_task": 40}),
    ("torchrun", {"nodes": 2, "gpus_per_node": "8", "cpus_per_task": 32, "time": 7200, "exclusive": True}),
    ("sensetime", {"nodes": 2, "ntasks_per_node": 1, "gpus_per_task": "4", "cpus_per_task": 8,
                   "partition": "sdcshare_v100_32g", "comment": "wbsM-SC230825.001"}),
    ("princeton", {"nodes": 2, "gres": "gpu:2", "mem": 32768, "time": 300, "cpus_per_task": 8}),
])  # fmt: skip
def test_the_guides_numbers(profile: str, values: dict[str, object]) -> None:
    """What each cluster's guide asks for in its DDP job."""
    options = resolved("ddp", profile).options
    assert {name: getattr(options, name) for name in values} == values


@pytest.mark.parametrize(("mode", "profile", "values"), [
    ("single", "msu", {"cpus_per_task": 8, "gpus_per_node": "1"}),
    ("dataparallel", "msu", {"cpus_per_task": 16, "gpus_per_node": "4"}),
    ("cpu", "troila", {"cpus_per_task": 10, "mem": 8192, "gres": None}),
    ("single", "troila", {"gres": "gpu:1", "mem": 2048}),
    ("dataparallel", "troila", {"gres": "gpu:2"}),
    ("single", "princeton", {"gres": "gpu:1", "cpus_per_task": 4, "mem": 4096}),
])  # fmt: skip
def test_the_guides_smaller_jobs(mode: str, profile: str, values: dict[str, object]) -> None:
    options = resolved(mode, profile).options
    assert {name: getattr(options, name) for name in values} == values
