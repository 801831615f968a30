"""`--fit` for a job that does not continue: the fix lets the job be cut, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command

CLUSTER = """
name: ours
url: https://example.org
checked: 2026-01-01
slurm: 22.05
default_partition: gpu
partitions: {gpu: {gpus_per_node: 4, cpus_per_node: 8, mem_per_node: 16000M}}
"""
NO_CLUSTER = "there is no squeue here"


@pytest.mark.parametrize(
    "words",
    [
        ["--resume", "off"],
        ["--max-restarts", "0"],
        ["--resume", "off", "--max-restarts", "0"],
        ["--trainer", "mine.py"],
    ],
)
def test_the_fix_lets_the_job_be_cut(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (folder / "ours.yaml").write_text(CLUSTER)
    (folder / "mine.py").write_text("import torch\n")
    monkeypatch.setenv("PATH", str(folder))  # where Slurm's commands are not
    asked = ["when", "ddp", "--profile", "./ours.yaml", "--fit", *words]
    refused = command(*asked)
    assert refused.status == 2
    fix = refused.err.rpartition("let the job restart: ")[2].split()
    assert fix[0::2] == [each for each in ("--resume", "--max-restarts") if each in fix]
    assert NO_CLUSTER in command(*asked, *fix).err  # the next step: Slurm is asked
