"""Each page about a tutorial has a counterpart for each command that the tutorial tells people to type."""

from __future__ import annotations

import pytest

from tests.conftest import REPOSITORY

# The commands of each tutorial's text, without those of its scripts.
TYPED = {
    "msu": ("sbatch", "squeue -u $USER", "sinfo", "scontrol show job", "scancel"),
    "troila": (
        *("conda create", "conda activate", "conda install", "conda config", "pip install", "sbatch --gres=gpu:1"),
        *("python download_data.py", "apptainer pull", "apptainer build", "sinfo --all --Node"),
    ),
    "princeton": (
        *("conda install", "git clone", "squeue -u $USER", "scancel", "skill -9", "sinfo -Nl", "ssh gpu1"),
        *("sbatch", "nvidia-smi"),
    ),
    "torchrun": ("pip install", "mkdir -p logs", "sbatch", "squeue -u $USER", "tail -f", "scancel"),
    "imagenet": ("torchrun --standalone", "fastsrun", "sbatch", "scontrol show hostname"),
}  # fmt: skip
RUNS = ("sbatchgen status", "sbatchgen logs", "sbatchgen cancel")


@pytest.mark.parametrize("page", TYPED)
def test_each_command_of_a_tutorial_has_its_counterpart(page: str) -> None:
    text = (REPOSITORY / f"docs/migrate/{page}.md").read_text()
    table = text.partition("\n## Commands\n")[2].partition("\n## ")[0]
    there = "".join(line.split(" | ")[0] for line in table.splitlines())
    assert [typed for typed in TYPED[page] if typed not in there] == []
    assert [typed for typed in RUNS if typed not in table] == []
