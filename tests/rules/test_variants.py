"""What rules find does not depend on names, order or place: variants of mistakes, and healthy scripts that look alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.script.script import JobScript
from tests.conftest import REPOSITORY

VARIANTS = yaml.safe_load((REPOSITORY / "tests/fixtures/variants.yaml").read_text())
WORKER = """
import torch
model = torch.nn.Linear(3, 3)
torch.save(model.state_dict(), "model.pt")
"""
RANKED = "import os\nfrom mpi4py import MPI\n" + WORKER


def name(variant: dict[str, Any]) -> str:
    return f"{variant['rule']}-{variant['found']}"


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_a_variant_is_found_and_a_healthy_script_is_not(variant: dict[str, Any]) -> None:
    head = f"#SBATCH --partition=gpu --time=01:00:00 {variant.get('directives', '')}\n"
    text = "#!/bin/bash\n" + head * ("submits" not in variant) + variant["body"]
    assert (variant["rule"] in {each.rule for each in lint(JobScript(file="a", text=text))}) == variant[
        "found"
    ]


def test_each_rule_has_three_of_both() -> None:
    for rule in ("SB430", "SB432", "SB434", "SB615", "SB622", "SB623", "SB906"):
        states = [variant["found"] for variant in VARIANTS if variant["rule"] == rule]
        assert min(states.count(True), states.count(False)) >= 3, rule


@pytest.mark.parametrize(
    ("trainer", "times", "rule"), [(WORKER, 8, "SB328"), (RANKED, 8, ""), (WORKER, 1, "")]
)
def test_a_program_that_saves_one_file_is_not_started_several_times(
    trainer: str, times: int, rule: str, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text(trainer)
    wrapped = f"#!/bin/bash\nsbatch --nodes=1 --ntasks={times} --wrap='srun python worker.py --engine long'\n"
    direct = f"#!/bin/bash\n#SBATCH --nodes=1 --ntasks={times}\nsrun python worker.py --engine long\n"
    for text in (wrapped, direct):
        findings = lint(JobScript(file="a", text=text, folder=tmp_path))
        assert "SB328" * ("SB328" in {each.rule for each in findings}) == rule
