"""Options of srun and arguments of torchrun: which the real srun reads, and what reaches the script."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.check.executables.program import PROGRAMS
from sbatchgen.jobs.inputs.options import NAMES
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.judge.launch_arguments import CPU_BIND
from tests.cluster.oracle import CONFIG, LEAVE
from tests.conftest import Command
from tests.scripts import errors, resolved, script

PROFILE = """
name: here
url: https://example.org
checked: 2026-01-01
default_partition: gpu
partitions:
  gpu: {gpus_per_node: 8, cpus_per_node: 56, mem_per_node: 480G}
  cpu: {gpus_per_node: 0, cpus_per_node: 128}
  own: {gpus_per_node: 8, step: {label: false}, launchers: {srun: {step: {mpi: pmi2}}}}
gpu_options: {mem_per_gpu: 60G}
step: {label: true}
env: {A: all}
plugin_options: [auto-resume=]
launchers:
  srun: {step: {mpi: pmix, kill-on-bad-exit: 0}, env: {A: srun}, gpu_visibility: task}
  torchrun: {args: [--numa-binding=exclusive, --tee, "3"], options: {mem: 480G}}
modes:
  single: {step: {cpu-bind: cores}, time: 02:00:00}
"""


@pytest.fixture
def here(folder: Path) -> Path:
    """A profile with options of the step at each place."""
    file = folder / "here.yaml"
    file.write_text(PROFILE)
    return file


@pytest.fixture
def srun(folder: Path, oracle: object) -> dict[str, str]:
    """The environment of an srun that finds no slurmctld."""
    del oracle  # where there is one, there is an srun
    (folder / "slurm.conf").write_text(f"{CONFIG}TaskPlugin=task/affinity\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LEAVE)}
    return clean | {"SLURM_CONF": str(folder / "slurm.conf")}


def refused(option: str, environment: dict[str, str]) -> bool:
    """Whether srun ends before it looks for slurmctld."""
    words = ["srun", "-vvv", option, "true"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr
        seen = any(re.search("failed to connect", line) for line in process.stderr)
        process.kill()
    return not seen


BINDINGS = [
    *(name for name in sorted(CPU_BIND) if not name.startswith(("map_", "mask_"))),
    *"auto boards map_cpu mask_cpu: map_cpu:x mask_cpu:zz mask_cpu:fe,0xFE00 v,mask_cpu=fe CORES".split(),
    *"cores,q cores,foo map_cpu:1,2,cores map_cpu:8:9 mask_cpu:fe*2 cores, mask_ldom:f".split(),
]


@pytest.mark.parametrize("value", BINDINGS)
def test_bindings_to_cpus_are_judged_as_srun_does(value: str, srun: dict[str, str]) -> None:
    assert bool(errors(resolved("ddp", step={"cpu-bind": value}))) == refused(f"--cpu-bind={value}", srun)


GPU_BINDINGS = (
    "closest none single:1 single per_task:1 per_task map_gpu:0,1 map_gpu mask_gpu:zz foo v,closest"
)


@pytest.mark.parametrize("value", [*GPU_BINDINGS.split(), "verbose,closest", "map_gpu:x", "gpu:closest"])
def test_bindings_to_gpus_are_judged_as_srun_does(value: str, srun: dict[str, str]) -> None:
    assert bool(errors(resolved("ddp", step={"gpu-bind": value}))) == refused(f"--gpu-bind={value}", srun)


def test_srun_has_the_flags_of_the_table(srun: dict[str, str]) -> None:
    text = subprocess.run(["srun", "--help"], capture_output=True, text=True, check=True, env=srun).stdout
    options = {*re.findall(r"--([a-z0-9-]+)", text)}
    assert options <= PROGRAMS["srun"].values | PROGRAMS["srun"].flags
    for name in sorted(options & PROGRAMS["srun"].flags - {"overlap", "pty", "x11"}):
        said = subprocess.run(
            ["srun", f"--{name}=1", "true"], capture_output=True, text=True, check=False, env=srun
        )
        assert f"option '--{name}' doesn't allow an argument" in said.stderr


def test_the_more_special_place_wins(here: Path) -> None:
    assert resolved("ddp", here, launcher="torchrun").step == {"label": "true"}
    of = resolved("ddp", here, launcher="srun", step={"mpi": "none"})
    assert of.step == {"label": "true", "mpi": "none", "kill-on-bad-exit": "0"}
    assert (of.env["A"], of.gpu_visibility) == ("srun", "task")
    assert resolved("ddp", here, launcher="srun", partition="own").step["mpi"] == "pmi2"
    assert resolved("single", here).step == {"label": "true", "cpu-bind": "cores"}
    assert resolved("single", here).options.time == 7200


def test_options_reach_the_srun_of_the_training_once(here: Path) -> None:
    text = script(resolved("ddp", here, launcher="srun", step={"comment": "a b", "cpus-per-task": "3"}))
    command = text[text.index("srun --distribution") :].partition("python3")[0]
    assert (
        command.split()
        == (
            "srun --distribution=block --wait=0 \\ --label --mpi=pmix --kill-on-bad-exit=0 "
            "--comment='a b' --cpus-per-task=3 \\"
        ).split()
    )


def test_false_leaves_an_option_out(here: Path) -> None:
    text = script(resolved("ddp", here, partition="own", step={"wait": "false"}))
    assert "--label" not in text
    assert "--wait" not in text


def test_own_gpus_of_a_task_are_not_unbound(here: Path) -> None:
    said: dict[str, Any] = {"launcher": "srun", "gpus_per_task": "1"}
    assert "--gpu-bind" not in script(resolved("ddp", here, **said))
    assert "--gpu-bind=none" in script(resolved("ddp", **said))


def test_arguments_of_torchrun_come_before_its_program(here: Path) -> None:
    text = script(resolved("ddp", here, launcher_args=("--role=a b",)))
    assert "    --numa-binding=exclusive --tee 3 '--role=a b' -- \\\n" in text
    assert "--numa-binding" not in script(resolved("ddp", here, launcher="srun"))


def test_options_of_gpu_jobs_are_no_others(here: Path) -> None:
    assert resolved("single", here).options.mem_per_gpu == 60 << 10
    for of in (resolved("cpu", here), resolved("ddp", here, partition="cpu", nproc_per_node=2)):
        assert of.options.mem_per_gpu is None
        assert errors(of) == []


def test_one_option_of_memory_is_left(here: Path) -> None:
    for said, left in (
        ({}, "mem"),
        ({"launcher": "srun"}, "mem_per_gpu"),
        ({"mem_per_cpu": 1024}, "mem_per_cpu"),
    ):
        of = resolved("ddp", here, **said)
        assert [name for name in NAMES if name.startswith("mem") and getattr(of.options, name)] == [left]


def test_a_flag_has_no_value(here: Path, command: Command) -> None:
    words = (
        "render ddp --profile ./here.yaml --launcher srun --step unbuffered --step label=false --step wait=5"
    )
    out = command(*words.split()).out
    assert "--wait=5" in out
    assert "--unbuffered" in out
    assert "--label" not in out


def test_an_option_of_a_plugin_is_one(here: Path) -> None:
    assert check(resolved("ddp", here, step={"auto-resume": "1"})) == []
    (finding,) = check(resolved("ddp", here, step={"resume-me": "1"}))
    assert (finding.severity, "plugin_options: [resume-me]" in str(finding.problem)) == ("warning", True)


def test_a_binding_needs_ranks_that_look_at_what_they_see(here: Path) -> None:
    step = {"gpu-bind": "closest"}
    assert check(resolved("ddp", here, launcher="srun", step=step)) == []
    rules = [finding.rule for finding in check(resolved("ddp", launcher="srun", step=step))]
    assert "SB041" in rules


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("label: true", "--label: true", "is not the long name of an option of srun"),
        ("gpu_options: {", "gpu_options: {partition: cpu, ", "a partition can't be chosen here"),
        ("options: {mem: 480G}", "options: {partition: cpu}", "a partition can't be chosen here"),
        ("gpu_visibility: task", "gpu_visibility: none", "is not one of node, task"),
        ("srun: {step", "mpirun: {step", "is not one of torchrun, srun, spawn"),
        ("label: true", "lable: true", "did you mean 'label'?"),
        ("{mpi: pmix,", "{mpi: true,", "--mpi needs a value"),
        ("[--numa-binding=exclusive,", "[--nnodes=2,", "sbatchgen sets torchrun's --nnodes itself"),
    ],
)
def test_nonsense_is_found_by_the_check_of_the_profile(
    here: Path, command: Command, old: str, new: str, what: str
) -> None:
    assert old in PROFILE
    here.write_text(PROFILE.replace(old, new, 1))
    done = command("profile", "check", "./here.yaml")
    assert done.status != 0
    assert what in done.err
