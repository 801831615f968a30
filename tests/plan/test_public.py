"""Reduced scripts of others: their jobs on the real Slurm start what the plan says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import fixtures
from tests.cluster.slurm import Cluster
from tests.plan import public
from tests.plan.plans import needs_sandbox, planned

pytestmark = needs_sandbox

SCRIPTS = {
    "a whole node, whose steps see no GPU unless the job asks for some": (
        "#SBATCH --exclusive --nodes=1 --ntasks-per-node=1\nsrun python train.py\npython test.py\n"
    ),
    "whole nodes with two of their GPUs": (
        "#SBATCH --exclusive --nodes=2 --ntasks-per-node=1 --gres=gpu:2 --cpus-per-task=4\nsrun python a.py\nsrun -n1 python b.py\n"
    ),
    "a list of nodes of several lines, and an empty one": (
        '#SBATCH --nodes=2 --ntasks-per-node=1\nnodes=$(scontrol show hostnames)\nsrun -N1 -n1 -w "$nodes" python a.py\n'
        'srun -N1 -n1 -w "" python b.py\nsrun --label python c.py\n'
    ),
    "a step without PATH": (
        "#SBATCH --nodes=1 --ntasks-per-node=2\nsrun --export=NONE python a.py\nsrun --export=PATH,X=1 python b.py\n"
    ),
    "an array of a program that is not here": (
        "#SBATCH --array=4-100:3 --gpus-per-node=v100:8 --account=x\ncd /scratch/me/run || exit 1\n./solve --seed $SLURM_ARRAY_TASK_ID\n"
    ),
    "all of the memory, and an order of tasks": (
        "#SBATCH --mem=0 --ntasks=4 --nodes=2 --ntasks-per-node=2 --distribution=cyclic\nsrun python a.py\nsrun --mem=0 -n2 python b.py\n"
    ),
}


@pytest.fixture(scope="module")
def on(
    slurm_root: Path | None, slurm_release: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[public.Stage]:
    """A cluster of larger nodes, with the stand-ins of a plan."""
    with Cluster(visible=fixtures.VISIBLE, root=slurm_root, settings=public.CLUSTER) as cluster:
        yield public.stage(cluster, slurm_release, tmp_path_factory.mktemp("profile"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_job_of_a_public_script_starts_what_the_plan_says(on: public.Stage, name: str) -> None:
    assert public.differences(on, f"#!/bin/bash\n{SCRIPTS[name]}") == []


def test_steps_keep_their_order_when_numbers_of_processes_begin_again(tmp_path: Path) -> None:
    text = "for i in {1..7}; do\nfor j in {1..90}; do /bin/true; done\npython train.py $i\ndone\n"
    done, _ = planned(text, tmp_path)
    words = [step.command[2] for step in done.steps]
    assert words == sorted(words)
    assert words


def test_what_is_looked_for_beside_slurms_copy_of_the_script_is_not_made_up(tmp_path: Path) -> None:
    done, _ = planned('set -e\nsource "$(dirname "$0")/env.sh"\npython train.py\n', tmp_path)
    assert not done.steps
    assert [need.name for need in done.needed] == ["/var/spool/slurmd/job1000001/env.sh"]
