"""A plan is what the real Slurm starts: argv, folder, environment and GPUs of each task of the same script."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm import Cluster
from tests.plan import truth
from tests.plan.plans import needs_sandbox
from tests.scripts import resolved, script

pytestmark = needs_sandbox

SHAPES = {
    "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4": (
        *(
            "",
            "-n2",
            "-n1 -w {second}",
            "-n4",
            "-n3",
            "-N1 -n1 -w {second}",
            "-r1 -N1 -n1",
            "--gpus-per-task=1",
        ),
        *("-n8 --distribution=cyclic", "-N2 -n2 --gpus-per-node=2", "-c2 -n2", "--ntasks-per-node=1"),
        "-N2 --ntasks-per-node=1",
    ),
    "--nodes=2": ("", "-N1 -w {second}", "--ntasks-per-node=1", "-n2 -w {both}"),
    "--nodes=2 --ntasks-per-node=1 --cpus-per-task=4": ("", "-n2 -c1", "--export=ALL,X=1", "--chdir=/tmp"),
    "--nodes=2 --ntasks-per-node=2 --gpus-per-task=1": (
        "",
        "-n2",
        "-n4 --gpu-bind=closest",
        "-n1 -N1 --gpus=1",
    ),
    "--nodes=1 --ntasks-per-node=2 --cpus-per-task=2 --distribution=cyclic:block --mem=0": (
        "",
        "-n1",
        "-m block",
    ),
    "--nodes=1 --cpus-per-task=8 --gres=gpu:4": (
        *("-N1", "-n1", "--mem=0", "-l -u -J x -O", "--hint=nomultithread", "--gres=none", "--gres=gpu:2"),
        *(
            "-n2 -c1 --gpu-bind=map_gpu:1,0",
            "-n2 -c1 --gpu-bind=single:1",
            "-n2 -c1 --gpu-bind=mask_gpu:3,12",
        ),
        *("-n2 -c1 --gpu-bind=per_task:2", "-n2 -c1 --gpus-per-task=1 --gpu-bind=none", "-n2 -c1 --gpus=2"),
        *("-n2 -c1 --gpus-per-task=1", "-n1 -c1 --gpus-per-task=1", "--gres=gpu:2 --gpus-per-task=1"),
    ),
    "--nodes=1 --ntasks-per-node=2 --gpus-per-node=4": ("--gpus-per-task=1", "-n1 --gpus-per-task=2"),
    "--ntasks=3": ("", "-n2"),
    "--nodes=2 --ntasks=1 --gpus-per-node=2": ("", "-n1"),
    "--nodes=2-3 --ntasks=2": ("", "--export=PATH"),
    "--nodes=2 --ntasks=3 --ntasks-per-node=4": ("",),
    "--nodes=1 --gpus=2 --cpus-per-gpu=2 --mem-per-gpu=1G": ("-n1",),
    "--nodes=3 --ntasks-per-node=4": (
        *("-N1 -n1", "-N1 -n1", "-N2 -n2", "-N1 -n1 --exact"),
        *("-r1 -N1 -n1", "-N1 -n1", "-x {first} -N1 -n1", "-n2", "-N1 -n1"),
    ),
    "--array=3-7:2 --job-name=many --mem=1G --gres=gpu:2": ("",),
}
# Steps that start while those before them run.
BESIDE = {
    "--nodes=3 --ntasks-per-node=4": (
        *("-N1 -n1 --exact -w {second}", "-N1 -n1 --exact", "-N2 -n2 --exact", "-N1 -n1 --exact"),
        *("-N1 -n1 --exact -r1", "-N1 -n1 --exact -x {first}", "-N1 -n2 --exact"),
    ),
    "--nodes=4 --ntasks-per-node=4": (
        *("-N3 -n3 --exact", "-N2 -n2 --exact", "-N2 -n2 --exact", "-N4 -n4 --exact"),
        *("-N1 -n1 --exact", "-N1 -n1 --exclusive", "-N1 -n1 --overlap --mem=0"),
    ),
    "--nodes=4 --ntasks-per-node=1 --gpus-per-node=2": ("-N1 -n1", "-N1 -n1", "-N2 -n2"),
    "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4": (
        *(["--exact -N1 -n1 --gpus-per-node=1"] * 3),
        *("--exact -N1 -n1 --gpus-per-node=2", "--overlap --mem=0 -N1 -n1 --gpus-per-node=1"),
    ),
    "--nodes=1 --ntasks=4 --gres=gpu:4": (
        *("-n2 --exact --gpus-per-task=1", "-n1 --exact --gpus=1", "-n1 -c1 --gres=gpu:1"),
    ),
    "--nodes=2 --ntasks-per-node=2 --cpus-per-task=2": ("-N1 -n1 -c4", "-N1 -n1 -c2", "-N1 -n1 -c2"),
}
NAMES = {
    "first": "$(scontrol show hostnames | head -n 1)",
    "second": "$(scontrol show hostnames | head -n 2 | tail -n 1)",
    "both": "$SLURM_JOB_NODELIST",
}
_IN_JOB = 'scontrol show step $SLURM_JOB_ID | grep -q "StepId=$SLURM_JOB_ID[.]'  # of a plan, no step is shown
_ALL_RUN = f'{_IN_JOB}" && until {_IN_JOB}NUMBER " && [ $(ls ~/seen-* | wc -l) = SEEN ]; do sleep 0.1; done'
# srun returns a little before Slurm frees the GPUs of its step: the next step would get other ones.
_UNTIL_ENDED = (
    'while scontrol show step $SLURM_JOB_ID | grep -q "StepId=$SLURM_JOB_ID[.][0-9]"; do sleep 0.1; done'
)
RENDERED: dict[str, dict[str, Any]] = {
    "single": {"mode": "single"},
    "cpu": {"mode": "cpu"},
    "dataparallel": {"mode": "dataparallel"},
    "torchrun": {"mode": "ddp", "launcher": "torchrun", "nodes": 2},
    "srun": {"mode": "ddp", "launcher": "srun", "nodes": 2},
    "spawn": {"mode": "ddp", "launcher": "spawn"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_way_of_srun_starts_what_the_plan_says(cluster: Cluster, slurm_release: str, shape: str) -> None:
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in ("--partition=gpu", *shape.split()))]
    lines += ["python3 batch", "export FOR_ALL='a  b'"]
    for options in SHAPES[shape]:
        lines += [f"srun {options.format(**NAMES)} python3 train.py --lr 0.1 'x y' ''", _UNTIL_ENDED]
    text = "\n".join(lines) + "\n"
    batch, steps = truth.seen(cluster, text)
    assert batch
    assert truth.differences(truth.plan_here(cluster, text, slurm_release), cluster, batch, steps) == []


@pytest.mark.parametrize("shape", BESIDE)
def test_steps_get_the_nodes_and_gpus_that_others_leave(
    cluster: Cluster, slurm_release: str, shape: str
) -> None:
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in ("--partition=gpu", *shape.split()))]
    tasks = 0
    for number, options in enumerate(BESIDE[shape]):
        tasks += int(re.findall(r"-n(\d)", options)[0])
        lines.append(f"srun {options.format(**NAMES)} bash -c 'python3 train.py; sleep 600' &")
        lines.append(_ALL_RUN.replace("NUMBER", str(number)).replace("SEEN", str(tasks)))
    text = "\n".join([*lines, "exit"]) + "\n"
    _, steps = truth.seen(cluster, text)
    assert truth.differences(truth.plan_here(cluster, text, slurm_release), cluster, {}, steps) == []


@pytest.mark.parametrize("name", RENDERED)
def test_a_rendered_script_starts_what_the_plan_says(
    cluster: Cluster, slurm_release: str, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(truth.PROFILE.format(release=slurm_release))
    options = dict(RENDERED[name])
    of = resolved(options.pop("mode"), file, trainer="train.py", args=("--lr", "0.1", "a  'b'"), **options)
    cluster.put("work/train.py", "")
    text = script(of)
    _, steps = truth.seen(cluster, text)
    assert steps
    assert truth.differences(truth.plan_here(cluster, text, slurm_release), cluster, {}, steps) == []


def test_an_ordinary_user_gets_a_plan(cluster: Cluster) -> None:
    cluster.put(
        "work/own.sh",
        "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1\nsrun bash -c 'python t.py $SLURM_PROCID'\n",
    )
    command: list[str | Path] = [Path(sys.prefix, "bin/sbatchgen"), "plan", "own.sh", "--format", "json"]
    done = cluster.run(command, cwd=cluster.home / "work", check=True)
    (step,) = json.loads(done.stdout)["steps"]
    assert [process["argv"] for process in step["processes"]] == [
        ["python", "t.py", "0"],
        ["python", "t.py", "1"],
    ]
    assert step["processes"][0]["cwd"] == str(cluster.home / "work")
