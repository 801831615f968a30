"""What may be cut into pieces: jobs that continue, by the fix as it is typed, and trainings beyond limits of accounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import Command
from tests.slurm.test_gpus import PROFILE
from tests.starts.test_when import LIMITS, started, when

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


@pytest.mark.proof
def test_a_training_beyond_a_limit_of_its_account_or_qos_is_cut_into_pieces(slurm_root: Path | None) -> None:
    with Cluster(visible=VISIBLE, root=slurm_root, accounts=LIMITS) as limited:
        limited.put("ours.yaml", PROFILE)
        words = ("ddp", "--nodes", "1", "--gpus-per-node", "2", "--partition", "gpu", "--needs", "5h")
        output = when(limited, *words, "--fit")
        (piece,) = output["rows"]
        assert (piece["kind"], piece["time_s"], piece["starts"]) == ("hole", 7200, 3)
        said = "account lab allows 0-02:00:00, and the job asks for 0-05:45:00 (MaxWallPJ)"
        assert output["out"] == {"gpu": said}
        assert "a piece: 40% of what the training needs" in piece["says"]
        (short,) = when(limited, *words[:-1], "1h", "--qos", "short")["rows"]
        assert short["options"] == ["--qos", "normal", "--time", "0-01:09:00"]  # which needs no pieces
        (half,) = when(limited, *words, "--qos", "short", "--fit")["rows"]
        assert (half["time_s"], half["starts"], "--qos" in half["options"]) == (1800, 10, False)
        assert started(limited, piece)["TimeLimit"] == "02:00:00"
