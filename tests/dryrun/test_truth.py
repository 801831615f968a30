"""A plan is what the real Slurm starts: argv, folder, environment and GPUs of each task of the same script."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from sbatchgen.dryrun.run import DryRun
from tests.cluster import fixtures
from tests.cluster.slurm import Cluster
from tests.dryrun.plans import needs_sandbox, planned
from tests.scripts import plan, script

pytestmark = needs_sandbox

# What a plan can't know, and what only says how srun was started.
_UNKNOWN = re.compile(
    r"SLURM_(TASK_PID|SRUN_COMM_\w+|STEP_LAUNCHER_PORT|LAUNCH_NODE_IPADDR|JOB_SLUID|JOB_GROUP|JOB_(START|END)_TIME"
    r"|CLUSTER_NAME|WORKING_CLUSTER|JOB_CPUS_PER_NODE_PACK_GROUP_0|TRES_(PER_TASK|BIND)|SUBMIT_HOST|JOB_EXCLUSIVE"
    r"|JOB_OVERSUBSCRIBE|STEP_?ID|MEM_PER_CPU)"
    r"|(SLURM_JOB_)?(USER|UID|GID)|LOGNAME|BASH_ENV"  # of the tests: they plan as root, and the job is the user's
    r"|SLURMD_(DEBUG|TRES_BIND)|SRUN_DEBUG|SLURM_CONF|PATH|_|SHLVL|PWD|OLDPWD|HOSTNAME|LANG|SHELL|TERM|LC_CTYPE"
    r"|(HYDRA|I_MPI|OMPI|PRTE)_\w+"
)
# A program that leaves how it was started, in the folder of the job.
SPY = """#!/bin/bash
exec {python} -I -c 'import json, os, pathlib, sys
found = dict(argv=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ))
name = "{{SLURM_STEP_ID}}.{{SLURM_PROCID}}".format(**os.environ)
pathlib.Path("{home}", f"seen-{{name}}-{{os.getpid()}}.json").write_text(json.dumps(found))' "${{0##*/}}" "$@"
"""
PROGRAMS = ("python3", "torchrun", "accelerate")
Seen = dict[str, Any]


def run_really(cluster: Cluster, text: str, *options: str) -> tuple[dict[str, str], list[list[Seen]]]:
    """The environment of the batch script, and what the tasks of each step have seen."""
    for file in cluster.home.glob("seen-*"):
        file.unlink()
    for name in PROGRAMS:
        cluster.put(f"bin/{name}", SPY.format(python=sys.executable, home=cluster.home), mode=0o755)
    job = cluster.put("work/job.sh", text)
    path = f"{cluster.home}/bin:/usr/local/bin:/usr/bin:/bin"
    cluster.wait(
        cluster.sbatch("--output=/dev/null", *options, job, cwd=cluster.home / "work", env={"PATH": path})
    )
    steps: dict[str, list[Seen]] = {}
    batch: dict[str, str] = {}
    for file in sorted(cluster.home.glob("seen-*")):
        seen = json.loads(file.read_text())
        if seen["argv"][1:] == ["batch"]:
            batch = seen["env"]
        else:
            steps.setdefault(seen["env"]["SLURM_STEP_ID"], []).append(seen)
    rank = lambda seen: int(seen["env"]["SLURM_PROCID"])  # noqa: E731
    return batch, [
        sorted(tasks, key=rank) for _, tasks in sorted(steps.items(), key=lambda step: int(step[0]))
    ]


def named(text: str, cluster: Cluster) -> str:
    """A text of the cluster with the names of a plan."""
    for own, other in (
        ("n[1-4]", "node[1-4]"),
        ("n[1-2]", "node[1-2]"),
        ("n[1-3]", "node[1-3]"),
        ("n[3-4]", "node[3-4]"),
    ):
        text = text.replace(own, other)
    text = re.sub(r"\bn([1-4])\b", r"node\1", text)
    return text.replace(f"{cluster.home}/bin:", "")


def compared(env: Mapping[str, str], cluster: Cluster) -> dict[str, str]:
    """The variables that a plan should know, with the names of a plan."""
    number = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "MASTER_PORT"}
    return {
        name: "of the job" if name in number else named(value, cluster)
        for name, value in env.items()
        if not _UNKNOWN.fullmatch(name) and not name.startswith("__plan")
    }


def same(
    done: DryRun, cluster: Cluster, batch: Mapping[str, str], steps: Sequence[Sequence[Seen]]
) -> list[str]:
    """How a plan and what was seen differ."""
    differences = []
    real = compared(batch, cluster)
    mine = compared(done.batch, cluster)
    differences += (
        [
            f"batch: {name}: {mine.get(name)!r}, really {real.get(name)!r}"
            for name in sorted({*real, *mine})
            if real.get(name) != mine.get(name)
        ]
        if batch
        else []
    )
    launched = [step for step in done.steps if step.is_srun and (step.processes or not step.refusal)]
    ours = [step.processes for step in launched if step.processes]
    if len(ours) != len(steps):
        return [*differences, f"{len(ours)} steps, really {len(steps)}"]
    for number, (processes, tasks) in enumerate(zip(ours, steps, strict=True)):
        if len(processes) != len(tasks):
            differences.append(f"step {number}: {len(processes)} tasks, really {len(tasks)}")
            continue
        for process, seen in zip(processes, tasks, strict=True):
            where = f"step {number}, rank {process.rank}"
            mine = compared({**done.batch, **process.env}, cluster)
            real = compared(seen["env"], cluster)
            argv = [named(word, cluster) for word in seen["argv"]]
            pairs: list[tuple[str, object, object]] = [
                ("argv", [*process.argv], argv),
                ("cwd", process.cwd, seen["cwd"]),
            ]
            pairs += [(name, mine.get(name), real.get(name)) for name in sorted({*mine, *real})]
            pairs.append(
                ("gpus", ",".join(map(str, process.gpus)), seen["env"].get("CUDA_VISIBLE_DEVICES", ""))
            )
            differences += [
                f"{where}: {name}: {own!r}, really {other!r}" for name, own, other in pairs if own != other
            ]
    return differences


def plan_here(cluster: Cluster, text: str, release: str) -> DryRun:
    """The plan of a script, as it is submitted on the cluster."""
    (cluster.home / "work").mkdir(exist_ok=True)
    user = {"HOME": str(cluster.home)}
    return planned(text, cluster.home / "work", slurm=release, environment=user)[0]


SHAPES = {
    "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4": (
        *(
            "",
            "-n2",
            "-n1",
            "-n4",
            "-n3",
            "-N1 -n1",
            "-N1 -n1 -w {second}",
            "-r1 -N1 -n1",
            "--gpus-per-task=1",
        ),
        *("-n8 --distribution=cyclic", "-N2 -n2 --gpus-per-node=2", "-c2 -n2", "--ntasks-per-node=1"),
        "-N2 --ntasks-per-node=1",
    ),
    "--nodes=2": ("", "-N1", "--ntasks-per-node=1", "-n2 -w {both}"),
    "--nodes=2 --ntasks-per-node=1 --cpus-per-task=4": ("", "-n2 -c1", "--export=ALL,X=1", "--chdir=/tmp"),
    "--nodes=2 --ntasks-per-node=2 --gpus-per-task=1": ("", "-n2"),
    "--ntasks=3": ("", "-n2"),
    "--nodes=1 --gpus=2 --cpus-per-gpu=2 --mem-per-gpu=1G": ("-n1",),
    "--array=3-7:2 --job-name=many --mem=1G --gres=gpu:2": ("",),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_way_of_srun_starts_what_the_plan_says(cluster: Cluster, slurm_release: str, shape: str) -> None:
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in shape.split()), "export FOR_ALL='a  b'"]
    second = {"second": "$(scontrol show hostnames | tail -n 1)", "both": "$SLURM_JOB_NODELIST"}
    lines += [
        f"srun {options.format(**second)} python3 train.py --lr 0.1 'x y' ''" for options in SHAPES[shape]
    ]
    text = "\n".join(lines) + "\n"
    batch, steps = run_really(cluster, text)
    assert same(plan_here(cluster, text, slurm_release), cluster, batch, steps) == []


RENDERED = {
    "single": {"mode": "single"},
    "cpu": {"mode": "cpu"},
    "dataparallel": {"mode": "dataparallel"},
    "torchrun": {"mode": "ddp", "launcher": "torchrun", "nodes": 2},
    "srun": {"mode": "ddp", "launcher": "srun", "nodes": 2},
    "spawn": {"mode": "ddp", "launcher": "spawn"},
}
PROFILE = """
name: testing
url: https://slurm.schedmd.com
checked: 2026-11-20
slurm: '{release}'
default_partition: gpu
partitions: {{gpu: {{time_max: 1-00:00:00, nodes_max: 4, cpus_per_node: 8, gpus_per_node: 4}}}}
env: {{OMP_NUM_THREADS: 1}}
options: {{mem: 2G, time: 00:10:00, cpus_per_task: 2}}
runtime: host
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("profile")


@pytest.mark.parametrize("name", RENDERED)
def test_a_rendered_script_starts_what_the_plan_says(
    cluster: Cluster, slurm_release: str, profile: Path, name: str
) -> None:
    file = profile / f"{slurm_release}.yaml"
    file.write_text(PROFILE.format(release=slurm_release))
    said = dict(RENDERED[name])
    of = plan(str(said.pop("mode")), file, trainer="train.py", args=("--lr", "0.1", "a  'b'"), **said)
    cluster.put("work/train.py", "")
    text = script(of)
    _, steps = run_really(cluster, text)
    assert steps, cluster.home
    assert same(plan_here(cluster, text, slurm_release), cluster, {}, steps) == []
