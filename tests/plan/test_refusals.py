"""A script that Slurm does not take is said to be refused, before anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbatchgen.check.rules.refusals import refusal
from sbatchgen.lab.plan.planning import script_of
from tests.conftest import Command
from tests.plan.plans import needs_sandbox

BODY = "srun python -u train.py\n"
REFUSED = {
    "an empty value": ("#SBATCH --mem=", 2, "'' is not a value for --mem"),
    "a variable": ("#SBATCH --ntasks-per-node=${NGPU}", 2, "'${NGPU}' is not a value for --ntasks-per-node"),
    "an unknown option": ("#SBATCH --mail-typ=END\n#SBATCH --nodez=2", 3, "has no option --nodez"),
    "an option without a value": ("#SBATCH --time", 2, "requires an argument"),
    "a word": ("#SBATCH --time=1 2", 2, "'2' is not an option"),
    "an open quote": ("#SBATCH --job-name='a", 2, "a quote is not closed"),
    "options that exclude each other": ("#SBATCH --mem=1G --mem-per-cpu=1G", 0, "--mem"),
    "GPUs of unknown tasks": ("#SBATCH --cpus-per-task=4 --gpus-per-task=1", 0, "used without either --gpus or -n/--ntasks"),
    "a time": ("#SBATCH --time=HH:MM:SS", 2, "'HH:MM:SS' is not a value for --time"),
    "a NUL": ("#SBATCH --time=01:00:00\n\0", 3, "a NUL byte"),
    "DOS line ends": ("#SBATCH --time=01:00:00\r", 2, "a line ends in a carriage return (DOS line ends)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_sbatch_refuses_is_refused_in_the_words_of_the_rule(case: str) -> None:
    lines, number, says = REFUSED[case]
    text = f"#!/bin/bash\n{lines}\n{BODY}"
    script = script_of("job.sh", text, profile=None, slurm="22.05")
    assert script.sbatch.refusal
    finding = refusal(script)
    assert finding
    assert finding.severity == "error"
    assert finding.problem.what.startswith("sbatch refuses this script: ")
    assert finding.problem.what.count("refuses") == 1
    assert says in finding.problem.what
    assert finding.problem.fix
    assert not number or finding.place.line == number


@pytest.mark.parametrize("lines", ["#SBATCH --nodes=2 -t 60", "", "#SBATCH --account=<x>", "##SBATCH --mem="])
def test_what_sbatch_takes_is_not_refused(lines: str) -> None:
    assert refusal(script_of("job.sh", f"#!/bin/bash\n{lines}\n{BODY}", profile=None, slurm="22.05")) is None


def test_without_a_release_only_what_all_releases_refuse_is_refused() -> None:
    text = f"#!/bin/bash\n#SBATCH --gpus-per-node=1 --gres=gpu:1\n{BODY}"
    assert refusal(script_of("job.sh", text, profile=None)) is None
    assert refusal(script_of("job.sh", text, profile=None, slurm="26.05"))


@needs_sandbox
def test_a_refusal_comes_first_and_is_an_error(command: Command, folder: Path) -> None:
    (folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --mem=\n{BODY}")
    planned = command("plan", "job.sh")
    assert planned.out.startswith("job.sh: sbatch refuses this script: '' is not a value for --mem")
    assert planned.out.splitlines()[1].startswith("mended, it may start: 1 node; 1 step")
    assert "  at:  job.sh:2:9\n  fix: write it as in --mem=64G" in planned.err
    assert planned.status == 3
    document = command("plan", "job.sh", "--format", "json")
    assert json.loads(document.out)["refusal"].startswith("sbatch refuses this script: '' is not")
    assert document.status == 3


@needs_sandbox
def test_dos_line_ends_are_told_and_nothing_that_follows_from_them(command: Command, folder: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --time=01:00:00\nfor i in 1 2\ndo\n  srun python train.py $i\ndone\n"
    (folder / "job.sh").write_bytes(text.replace("\n", "\r\n").encode())
    planned = command("plan", "job.sh")
    assert planned.out.startswith("job.sh: sbatch refuses this script: 6 lines end in a carriage return")
    assert "python train.py 2" in planned.out
    assert planned.err.count("error") == 1
    assert "warning" not in planned.err


@needs_sandbox
def test_more_nodes_than_the_cluster_has_are_an_error(command: Command, folder: Path) -> None:
    profile = "name: x\nurl: https://x\nchecked: 2026-11-20\ndefault_partition: gpu\n"
    (folder / "x.yaml").write_text(f"{profile}partitions: {{gpu: {{nodes: 'n[1-4]'}}}}\n")
    (folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --nodes=99 -t 60\n{BODY}")
    planned = command("plan", "job.sh", "--profile", "x.yaml")
    assert "error: partition 'gpu' has 4 nodes, but the job asks for 99" in planned.err
    assert planned.status == 4
    assert command("plan", "job.sh", "--profile", "x.yaml", "--nodes", "4").status == 0
    assert command("plan", "job.sh", "--profile", "x.yaml", "--nodes", "5").status == 4
