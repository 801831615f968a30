"""Records of starts that the script forged or damaged: a plan may be wrong then, and never fails."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.jobs.outputs.json_document import document
from sbatchgen.lab.plan import listing
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.plan_output import plan_output
from sbatchgen.lab.plan.started import StartRecord, read_record, steps
from sbatchgen.lab.plan.step_placement import placements
from sbatchgen.lab.plan.step_tasks import number_of
from sbatchgen.lab.started.judge_started import check_started
from tests.plan.plans import needs_sandbox, planned

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --gpus-per-node=4 --cpus-per-task=2
export RANK=0 WORLD_SIZE=8 CUDA_VISIBLE_DEVICES=1
python a.py &
python b.py &
srun -N1 -n1 --exact --gpus=1 torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_PROCID train.py &
srun -N1 -n1 --exact bash -c 'torchrun --nnodes=1 --master_port=1 train.py' &
srun --container-image=x -w "$SLURM_JOB_NODELIST" apptainer exec image.sif python train.py
wait
"""
TEXTS = (
    *("9" * 5000, "-1", "0", "99999999", "٣" * 30, "\udcff", "", " ", "\n", "=", ",,", "node1", "nodes", "1,2", "x" * 9999),
    *("exact takes - node1:1:1 node9:2:2", "whole takes node1 node1:999999:9999", "overlap passes node1,node2 node2:1:1"),
)  # fmt: skip
SEEDS, ROUNDS = range(12), 50
READ = ("__plan", "--", "CUDA_", "SLURMD_", "SLURM_CPUS", "SLURM_GTIDS", "WORLD_SIZE")


def text_of(start: StartRecord) -> str:
    """A start as its stand-in writes it."""
    head = (start.name, start.line, start.waits, int(start.background), start.folder, len(start.words))
    pairs = (f"{name}={value}" for name, value in start.environment.items())
    return "".join(f"{part}\0" for part in (*head, *start.words, *pairs))


def mutated(text: str, source: random.Random) -> str:
    """A record with parts that are changed, doubled, exchanged or gone."""
    parts = text.split("\0")
    own = [at for at, part in enumerate(parts) if at < 6 or part.startswith(READ)]
    for _ in range(source.choice((1, 1, 3, 9))):
        at = source.choice(own)
        name, equals, _ = parts[at].partition("=")
        match source.randrange(4):
            case 0:
                parts[at] = f"{name}={source.choice(TEXTS)}" if equals else source.choice(TEXTS)
            case 1:
                parts[at] = ""
            case 2:
                parts[at], parts[0] = parts[0], parts[at]
            case _:
                parts[at] += source.choice(TEXTS)
    return "\0".join(parts[: source.choice((None, None, 5, 8))])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> DryRun:
    """The plan of a script of all kinds of steps."""
    return planned(SCRIPT, tmp_path_factory.mktemp("work"))[0]


@pytest.mark.sampled(12)
@needs_sandbox
@pytest.mark.parametrize("seed", SEEDS)
def test_a_forged_record_fails_no_plan(done: DryRun, seed: int) -> None:
    source = random.Random(seed)  # noqa: S311
    texts = [text_of(start) for start in done.starts]
    assert [read_record(text) for text in texts] == [*done.starts]
    for number in range(ROUNDS):
        forged = [mutated(text, source) if source.random() < 0.5 else text for text in texts]
        starts = tuple(start for text in forged if (start := read_record(text)))
        of = replace(done, starts=starts, steps=tuple(steps(starts, done.grant, done.batch_environment)))
        placements(starts, done.grant, done.script.release, knows_cpus=bool(number % 2))
        every = check_started(replace(of, failing=of))
        assert listing.as_text(of)
        assert listing.as_text(of, rank=1)
        assert document(plan_output(of, every))


@pytest.mark.parametrize(
    ("text", "number"), [("12", 12), ("9" * 5000, 0), ("", 0), (None, 0), ("-1", 0), ("1.5", 0), ("²", 0)]
)
def test_a_number_of_a_record_is_bounded(text: str | None, number: int) -> None:
    assert number_of(text) == number


@needs_sandbox
def test_a_script_that_writes_numbers_without_end_gets_a_plan(tmp_path: Path) -> None:
    text = "export __plan_rank=$(printf '9%.0s' {1..5000}) SLURM_CPUS_PER_TASK=$__plan_rank WORLD_SIZE=$__plan_rank\n"
    text += 'echo "$0: line $WORLD_SIZE: x: No such file or directory" >&2\n'
    text += (
        "srun -n 2 python t.py\nsrun -n $WORLD_SIZE python t.py\nsrun -n 999999999 python t.py\npython t.py\n"
    )
    text += "cp /run/plan/starts/* /tmp; for name in /tmp/*; do tr 0-9 9 <$name >/run/plan/starts/${name##*/}x; done\n"
    done, _ = planned(text, tmp_path)
    assert len(done.steps) >= 4
    assert "More processors requested than permitted" in {
        step.refusal.partition(": ")[2] for step in done.steps
    }
