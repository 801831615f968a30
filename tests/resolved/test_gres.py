"""--gres holds GPUs and other things, as local disk: neither takes the place of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.units import Gres, Text
from tests.conftest import Command
from tests.scripts import errors, resolved


@pytest.mark.parametrize(
    ("mode", "profile", "asked", "gres", "gpus"),
    [
        ("ddp", "torchrun", "nvme:100", "nvme:100", 8),
        ("ddp", "public_cluster", "nvme:100", "gpu:8,nvme:100", 8),  # it asks for GPUs with --gres
        ("ddp", "princeton", "nvme:100", "gpu:2,nvme:100", 2),  # its mode has a --gres
        ("ddp", "princeton", "gpu:1,nvme:5", "gpu:1,nvme:5", 1),
        ("cpu", "public_cluster", "nvme:100", "nvme:100", 0),
    ],
)
def test_local_disk_leaves_the_gpus(mode: str, profile: str, asked: str, gres: str, gpus: int) -> None:
    made = resolved(mode, profile, gres=Gres(asked))
    assert (made.directives["gres"], made.gpus_per_node) == (gres, gpus)
    assert not errors(made)


def test_gpus_of_another_option_leave_local_disk() -> None:
    made = resolved("ddp", "torchrun", gres=Gres("nvme:100"), gpus_per_node=Text("2"))
    assert (made.directives["gres"], made.directives["gpus-per-node"]) == ("nvme:100", "2")


def test_local_disk_leaves_the_gpus_of_the_next_lower_layer(command: Command, folder: Path) -> None:
    (folder / "site.yaml").write_text(
        "name: site\ndescription: a test\nurl: https://example.org\nchecked: 2026-11-01\noptions: {gres: 'gpu:a100:1'}\npartitions:\n"
        "  gpu: {gpus_per_node: 4, cpus_per_node: 32, options: {gres: 'gpu:h100:2'}}\n"
    )
    script = command("render", "ddp", "--profile", "./site.yaml", "--gres", "tmp:10").out
    assert "#SBATCH --gres=gpu:h100:2,tmp:10\n" in script
