"""{NAME} in arguments and variables of a sweep: the script puts each point's value there, whatever it holds."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.base.texts import EnvValue
from sbatchgen.base.units import ShellPath
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.resolved.sweep import Sweep
from tests.conftest import Command
from tests.resolved.test_sweep import HOSTILE
from tests.scripts import resolved, script

SRUN = '#!/bin/bash\nwhile [ "$1" != t.py ]; do shift; done; printf "%s\\0" "$LR" "$PLACE" "$@" >seen\n'


def seen_by(
    folder: Path, sweep: Sweep | None, point: int, *args: str, mode: str = "cpu", **env: str
) -> list[str]:
    """LR, PLACE and the trainer's arguments at a point, as the step of its script gets them."""
    variables = {name: EnvValue.parse(value) for name, value in env.items()}
    job = resolved(
        mode, trainer="t.py", runtime="host", array="0-99", args=args, env=variables, run_dir=ShellPath("runs")
    )  # fmt: skip
    (folder / "srun").write_text(SRUN)
    (folder / "srun").chmod(0o755)
    done = subprocess.run(
        ["bash", "-s"], input=script(replace(job, sweep=sweep)), text=True, cwd=folder, capture_output=True, check=False,
        env={
            "SLURM_ARRAY_TASK_ID": str(point), "SLURM_SUBMIT_DIR": str(folder), "SLURM_CPUS_PER_TASK": "1",
            "SLURM_JOB_ID": "1", "USER": "alice", "HOME": "/home/alice", "PATH": f"{folder}:/usr/bin:/bin",
        },
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "seen").read_text().split("\0")[:-1]


GRID = Sweep(("lr", "model.depth"), (("0.1", "2"), ("0.01", "4")), submitted_points=2)


def test_values_go_where_the_placeholders_are(tmp_path: Path) -> None:
    args = ("lr={lr}", "+model.depth={model.depth}", '{"lr":{lr}}', "--log", "{run_dir}/{lr}")
    assert seen_by(tmp_path, GRID, 1, *args)[3:] == [
        "lr=0.01", "+model.depth=4", '{"lr":0.01}', "--log", f"{tmp_path}/runs/1/0.01",
    ]  # fmt: skip


def test_a_parameter_without_a_placeholder_is_a_flag(tmp_path: Path) -> None:
    assert seen_by(tmp_path, GRID, 1, "--lr", "{lr}")[3:] == ["--lr", "0.01", "--model.depth=4"]


def test_a_variable_takes_a_value_too(tmp_path: Path) -> None:
    seen = seen_by(tmp_path, GRID, 1, LR="{lr}", PLACE="${HOME}/{model.depth} of {lr}")
    assert seen[:2] == ["0.01", "/home/alice/4 of 0.01"]
    assert seen[3:] == []


def test_a_task_of_an_array_has_its_number(tmp_path: Path) -> None:
    seen = seen_by(tmp_path, None, 7, "--seed", "{env:SLURM_ARRAY_TASK_ID}", LR="${SLURM_ARRAY_TASK_ID}e-4")
    assert (seen[0], seen[3:]) == ("7e-4", ["--seed", "7"])


def test_other_braces_are_the_programs_own(tmp_path: Path) -> None:
    own = ("${lr}", "{lr:.2f}", "{other}", "{}", "$(lr)", "out/${model.depth}", "{{other}}")
    assert seen_by(tmp_path, GRID, 0, *own, "{{lr}}")[3:] == [*own, "{lr}", "--lr=0.1", "--model.depth=2"]


@pytest.mark.parametrize("name", ["run_dir", "resume"])
def test_a_parameter_wins_over_a_placeholder_of_every_job(tmp_path: Path, name: str) -> None:
    sweep = Sweep((name,), (("x",),), submitted_points=1)
    assert seen_by(tmp_path, sweep, 0, f"{{{name}}}")[3:] == ["x"]


def test_a_parameter_is_no_mistyped_placeholder() -> None:
    job = resolved("single", trainer="t.py", runtime="host", array="0", args=("{run_dirs}",))
    sweep = Sweep(("run_dirs",), (("x",),), submitted_points=1)
    assert "SB039" in {finding.rule for finding in check(job)}
    assert "SB039" not in {finding.rule for finding in check(replace(job, sweep=sweep))}


def test_a_mistyped_parameter_is_reported() -> None:
    job = resolved(
        "single", trainer="t.py", runtime="host", array="0-1", args=("{LR}", "{width}", "{model_depth}")
    )
    said = [finding.problem for finding in check(replace(job, sweep=GRID)) if finding.rule == "SB039"]
    assert [(problem.what.split()[0], problem.fix) for problem in said] == [
        ("{LR}", "write {lr}"), ("{model_depth}", "write {model.depth}"),
    ]  # fmt: skip


def test_what_torchrun_gets_as_it_is_is_reported() -> None:
    job = resolved("ddp", trainer="t.py", launcher="torchrun", launcher_args=("--log-dir", "{rundir}/logs"))
    (said,) = [finding.problem for finding in check(job) if finding.rule == "SB039"]
    assert said.what == "{rundir} is not a placeholder: torchrun gets it as it is"
    assert said.fix == "write {run_dir}"


@pytest.mark.parametrize("point", range(len(HOSTILE)))
def test_any_value_arrives_as_it_is(tmp_path: Path, point: int) -> None:
    sweep = Sweep(("lr",), tuple((value,) for value in HOSTILE), submitted_points=len(HOSTILE))
    value = HOSTILE[point].replace("{run_dir}", f"{tmp_path}/runs/{point}")
    lr, _, _, argument = seen_by(tmp_path, sweep, point, "lr={lr}", LR="{lr}")
    assert (lr, argument) == (value, f"lr={value}")
    assert not (tmp_path / "gone").exists()


def test_the_bundled_trainer_is_asked_about_placed_values(command: Command, folder: Path) -> None:
    job = ("cpu", "--profile", "msu", "--runtime", "host", "--run-dir", "runs", "--dry-run")
    done = command("sweep", *job, "--param", "rate=0.1,fast", "--", "--lr", "{rate}")
    assert done.status == 3
    assert "argument --lr: invalid float value: 'fast'" in done.err
    good = command("sweep", *job, "--param", "rate=0.1,1", "--", "--lr", "{rate}")
    assert good.status == 0, good.err
    assert '--lr "${param[rate]}"' in good.err
    assert "point_args" not in good.err


def test_a_placed_data_set_gets_the_data_folder(command: Command, folder: Path) -> None:
    job = ("cpu", "--profile", "msu", "--runtime", "host", "--run-dir", "runs", "--dry-run")
    done = command("sweep", *job, "--param", "dataset=mnist,cifar10", "--", "--dataset={dataset}")
    assert "--data-dir" in done.err
