"""Which lines of PBS and LSF sbatch refuses, and what it drops of them: as both releases of sbatch say."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path

import pytest

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.rules.foreign import DROPPED_RESOURCES, VALUE_LETTERS
from sbatchgen.check.script.script import JobScript
from tests.cluster import oracle as sbatch

HEADER = "#!/bin/bash\n#SBATCH --job-name=x\n"
# Values that the options take; what else sbatch refuses for its meaning is not the rule's subject.
TAKEN = {"a": "0101", "t": "1-4", "J": "1-4", "m": "abe", "l": "walltime=1:00", "W": "30", "M": "4G"}
LETTERS = [
    f"#{kind.name} -{letter} {TAKEN.get(letter, '1') if letter in VALUE_LETTERS[kind] else ''}".rstrip()
    for kind in VALUE_LETTERS
    for letter in string.ascii_letters
    if letter not in "dC"  # of PBS, which 22.05 lacks; and the prefix of the lines themselves
]
SHAPES = [
    "#PBS -N a b",
    "#PBS -Vj oe",
    "#PBS -lwalltime=1:00",
    "#PBS -A",
    '#PBS -N "a b"',
    "#PBS -N a # b",
    "#PBS --wait",
    "#PBS",
    "#BSUB -cwd /tmp",
    "#BSUB -x 1",
    "#BSUB -gpu num=1",
    "#PBS -P x\n#BSUB -q a",
    "#PBS -q a\n#BSUB -R x",
    *(
        f"#PBS -l {value}"
        for value in (
            "select=1:ncpus=4:mem=16gb:ngpus=1",
            "select=1:ncpus=4:ngpus=1:mem=16gb",
            "select=1:ncpus=1:mpiprocs=0",
            "select=4+1",
            "select=1:ncpus=2,walltime=1:00",
            "select=1:mem=4gb,place=scatter",
            "mem=16gbb",
            "mem=1.5gb",
            "mem=",
            "nodes=1:ppn=4,mem=4gb:x",
            "nodes=1:ppn=x",
            "vmem=1gb:ncpus=0",
            "vmem=1gb,ncpus=0",
            "mppmem=4gb:x",
            "walltime=1:00:00:00",
            "file=1gb:x",
            "foo=1:ncpus=0",
        )
    ),
]


def refused(line: str) -> bool:
    findings = lint(JobScript(file="job.slurm", text=f"{HEADER}{line}\nhostname\n"))
    return "SB142" in {finding.rule for finding in findings}


@pytest.mark.usefixtures("oracle")
def test_sbatch_refuses_what_the_rule_says() -> None:
    compare(None)


@pytest.mark.proof
def test_a_later_sbatch_refuses_it_too(later_root: Path) -> None:
    compare(later_root)


def compare(root: Path | None) -> None:
    """Ask an sbatch about each line."""
    lines = (*LETTERS, *SHAPES)
    answers = {line: bool(sbatch.read(f"{HEADER}{line}\nhostname\n", root=root).returncode) for line in lines}
    assert {line: refused(line) for line in lines} == answers


def test_sbatch_drops_what_the_rule_says(oracle: Callable[..., sbatch.Reading]) -> None:
    plain = oracle(f"{HEADER}hostname\n").options
    for name in DROPPED_RESOURCES:
        assert oracle(f"{HEADER}#PBS -l {name}=2\nhostname\n").options == plain
    assert oracle(f"{HEADER}#BSUB -W 12:00\nhostname\n").options["time"] == "00:12:00"
