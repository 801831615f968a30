"""How many tasks srun starts, or that it refuses a step: for a plan as for the real Slurm."""

from __future__ import annotations

import pytest

from sbatchgen.lab.plan.stand_ins import knows_cpus
from tests.cluster.slurm import Cluster
from tests.plan import truth
from tests.plan.plans import needs_sandbox

pytestmark = needs_sandbox

JOBS = (
    "--nodes=1 --gpus-per-node=4",
    "--nodes=1 --ntasks-per-gpu=1 --gpus-per-node=4",
    "--nodes=2 --ntasks-per-node=2 --gpus-per-node=4",
    "--nodes=2 --ntasks-per-gpu=1 --gpus=4",
    "--nodes=1 --ntasks-per-gpu=1 --gres=gpu:2",
    "--nodes=1 --gres=gpu:2",
    "--ntasks=4",
    "--nodes=2 --ntasks=4 --cpus-per-task=2",
    "--nodes=1 --ntasks=2 --gpus-per-task=1",
    "--nodes=2 --ntasks-per-node=1 --gres=gpu:2",
)
STEPS = (
    "",
    *("-n2", "-n x", '--ntasks=""', "-n-1", "-n 1k", "-n99999", "-n +2"),
    *("-N1", "-N2", "-N foo", "-N 0", '-N ""', "-N2-1", "-N9", "-N 1,2", "-N 1k"),
    *("--ntasks-per-node=2", '--ntasks-per-node=""', "--ntasks-per-node=0", "--tasks-per-node=2"),
    *("--ntasks-per-gpu=1", "--ntasks-per-gpu=2", "-n2 --ntasks-per-gpu=1", "--ntasks-per-gpu=x"),
    *("--ntasks-per-gpu=1 --gpus=2", "--gpus-per-task=1", "--gpus=1 -n1", "--gres=gpu:1 -n1"),
    *("-c x", "-c 0", "-N1 -n2 --ntasks-per-node=1", "-O -n 9"),
)
REFUSED = -1
# What srun says of too few CPUs, which a plan knows where the job says its tasks: Slurm 22.05, and 26.05, where the step
# waits without end.
OF_CPUS = ("More processors requested", "Cancelled pending job step")
LONGEST_S = 30


def job_script(job: str, steps: list[str]) -> str:
    options = ("--partition=gpu", "--time=30", *job.split())
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), *steps]) + "\n"


@pytest.fixture(scope="module")
def started(cluster: Cluster) -> dict[tuple[str, str], tuple[int, str]]:
    """How many tasks each step of each job starts on the real Slurm, and what srun says."""
    ids = []
    for at, job in enumerate(JOBS):
        steps = [
            f"timeout {LONGEST_S} srun {step} bash -c 'echo >>~/count.{at}.{number}' </dev/null 2>~/said.{at}.{number}"
            for number, step in enumerate(STEPS)
        ]
        file = cluster.put(f"work/count{at}.sh", job_script(job, steps))
        ids.append(cluster.sbatch("--output=/dev/null", file, cwd=file.parent))
    for job_id in ids:
        cluster.wait(job_id)
    counts = {}
    for at, job in enumerate(JOBS):
        for number, step in enumerate(STEPS):
            file = cluster.home / f"count.{at}.{number}"
            count = file.read_text().count("\n") if file.exists() else REFUSED
            counts[job, step] = (count, (cluster.home / f"said.{at}.{number}").read_text())
    return counts


def test_the_table_has_300_rows() -> None:
    assert len(set(JOBS)) * len(set(STEPS)) >= 300


@pytest.mark.parametrize("job", JOBS)
def test_a_plan_shows_the_tasks_that_srun_starts(
    cluster: Cluster, slurm_release: str, started: dict[tuple[str, str], tuple[int, str]], job: str
) -> None:
    steps = [step for step in STEPS if "99999" not in step or "ntasks-per" in job]  # else as many are shown
    text = job_script(job, [f"srun {step} true" for step in steps])
    done = truth.plan_here(cluster, text, slurm_release)
    first = text[: text.index("\nsrun ")].count("\n") + 2
    planned = {step.line - first: REFUSED if step.refusal else step.tasks for step in done.steps}
    wrong = []
    for at, step in enumerate(steps):
        count, says = started[job, step]
        is_of_cpus = "--ntasks-per-gpu" in step or any(text in says for text in OF_CPUS)
        unknown = count == REFUSED and is_of_cpus and not knows_cpus(done.script)
        if planned[at] != count and not unknown:
            wrong.append(f"srun {step}: {count}, planned {planned[at]}: {says}")
    assert not wrong, "\n".join([job, *wrong])
