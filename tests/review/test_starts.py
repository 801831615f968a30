"""What starts where, in a review: on paper, and the same for people and programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.layers import Level, Origin
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.review import layout
from sbatchgen.jobs.review.layout import Layout
from sbatchgen.jobs.review.review import review_of_job, review_of_script
from tests.conftest import Command
from tests.scripts import CENTRES, PROFILES, resolved, script

BY = Origin(Level.COMMAND_LINE, "--profile")


def of_job(mode: str, profile: str, **said: Any) -> Layout:
    job = resolved(mode, profile, **said)
    placed = review_of_job(job, script(job), (), profile_by=BY).starts
    assert placed is not None
    return placed


def of_directives(line: str) -> str:
    text = f"#!/bin/bash\n#SBATCH {line}\nsrun python train.py\n"
    job = JobScript(file="job.slurm", text=text).resources
    placed = review_of_script(text, job, plan_command=("sbatchgen", "plan", "job.slurm")).starts
    assert placed is not None
    return layout.as_text(placed)


def test_each_node_has_its_ranks_and_the_command_is_that_of_the_script() -> None:
    lines = layout.as_text(of_job("ddp", "msu", nodes=2)).splitlines()
    assert lines[:2] == [
        "node 0   1 task, ranks 0-3, 4 GPUs, 16 CPUs",
        "node 1   1 task, ranks 4-7, 4 GPUs, 16 CPUs",
    ]
    assert lines[2].startswith('command  python3 "$CODE_DIR/training/torchrun.py" --nnodes="$SLURM_NNODES"')
    assert len(lines) == 4


def test_nodes_that_are_alike_are_one_row() -> None:
    placed = of_job("ddp", "msu", nodes=8)
    assert [(row.first, row.last, row.first_rank, row.last_rank) for row in placed.nodes] == [
        (0, 0, 0, 3),
        (1, 6, 4, 27),
        (7, 7, 28, 31),
    ]
    assert "nodes 1-6  1 task on each, ranks 4-27, 4 GPUs on each, 16 CPUs on each\n" in layout.as_text(
        placed
    )


def test_a_launcher_of_slurm_has_a_task_for_each_rank() -> None:
    (row, _) = of_job("ddp", "msu", nodes=2, launcher="srun").nodes
    assert (row.tasks, row.first_rank, row.last_rank) == (4, 0, 3)


def test_without_slurm_there_are_no_tasks() -> None:
    (row,) = of_job("ddp", "local", nodes=1, nproc_per_node=2).nodes
    assert (row.tasks, row.first_rank, row.last_rank) == (None, 0, 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("profile", [*PROFILES, *CENTRES])
def test_every_job_has_its_command_in_at_most_six_lines(mode: str, profile: str) -> None:
    placed = of_job(mode, profile)
    assert placed.command
    assert len(layout.as_text(placed).splitlines()) <= 6


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("-N 2 --ntasks-per-node=4 -c 8 --gres=gpu:4", "nodes 0-1  4 tasks on each, 4 GPUs on each, 32 CPUs on each"),
        ("--ntasks=8 --nodes=2 --gpus=8", "nodes 0-1  8 tasks in all"),
        ("--ntasks=2 --nodes=2 --gpus=2", "nodes 0-1  1 task on each, 1 GPU on each, 1 CPU on each"),
        ("--ntasks=5 --nodes=2 --gpus=3", "nodes 0-1  5 tasks in all"),
        ("--time=60", "node 0  1 task, no GPUs, 1 CPU"),
        ("--gres=shard:3 -n1", "node 0  1 task, 3 shards of a GPU, 1 CPU"),
    ],
)  # fmt: skip
def test_of_a_finished_script_its_directives_count_and_plan_is_named(line: str, row: str) -> None:
    shown, note = of_directives(line).splitlines()
    assert shown == row.rstrip()
    assert note == "sbatchgen plan job.slurm shows what the script starts"


def test_plan_is_named_where_setup_lines_or_a_template_may_start_more(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder / "own.yaml"
    own.write_text(
        "name: own\nurl: x\nchecked: 2026-01-01\npartitions: {a: {gpus_per_node: 1}}\nsetup: [date]\n"
    )
    said = command("review", "single", "--profile", "./own.yaml", "--partition", "a", "--runtime", "host").out
    assert (
        "  sbatchgen plan single --profile ./own.yaml --runtime host --partition a shows what else " in said
    )
    assert "sbatchgen plan" not in command("review", "ddp", "--profile", "msu").out.partition("\nScript")[0]
    (folder / "site/templates").mkdir(parents=True)
    (folder / "site/templates/t.sh.j2").write_text("#!/bin/bash\n# sbatchgen\necho other\n")
    words = ("review", "ddp", "--profile", "torchrun", "--template", "t.sh.j2", "--format", "json")
    monkeypatch.setenv("SBATCHGEN_PATH", "site")
    document = json.loads(command(*words).out)
    assert (document["starts"]["command"], document["starts"]["plan"][:18]) == ("", "sbatchgen plan ddp")


def test_a_job_with_errors_starts_nothing(command: Command) -> None:
    refused = command("review", "ddp", "--profile", "msu", "--ntasks", "2", "--format", "json")
    assert (refused.status, json.loads(refused.out)["starts"]) == (3, None)
