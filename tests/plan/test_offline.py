"""Jobs on nodes that a profile says to have no internet."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbatchgen.base.errors import CommandLineError
from tests.conftest import Command
from tests.plan.plans import needs_sandbox

PROFILE = """
name: testing
url: https://slurm.schedmd.com
checked: 2026-11-20
partitions: {{gpu: {{gpus_per_node: 4, {internet}}}}}
default_partition: gpu
runtime: host
"""


def planned(command: Command, folder: Path, line: str, *, internet: str = "internet: false") -> str:
    (folder / "testing.yaml").write_text(PROFILE.format(internet=internet))
    (folder / "job.slurm").write_text(f"#!/bin/bash\n#SBATCH --time=60\n{line}\nsrun python train.py\n")
    return command("plan", "job.slurm", "--profile", "./testing.yaml").err


@needs_sandbox
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("pip install torch", "pip install"),
        ("python -m pip install -U 'numpy<2'", "python -m pip install"),
        ("git clone https://github.com/a/b", "git clone"),
        ("wget -q https://example.org/data.tar", "wget"),
        ("huggingface-cli download gpt2", "huggingface-cli download"),
        ("singularity pull docker://ubuntu", "singularity pull"),
    ],
)
def test_a_download_on_nodes_without_internet_is_found(
    command: Command, folder: Path, line: str, what: str
) -> None:
    assert f"warning: {what} needs the internet, and nodes of gpu have none\n  at:  job.slurm:3\n" in planned(
        command, folder, line
    )


@needs_sandbox
@pytest.mark.parametrize(
    "line",
    [
        "pip install --no-index torch",
        "pip install -e . --no-deps",
        "pip list",
        "git status",
        "git clone /scratch/a b",
        "curl http://localhost:8000/health",
        "export https_proxy=proxy:3128; pip install torch",
    ],
)
def test_what_needs_no_internet_or_has_a_proxy_is_fine(command: Command, folder: Path, line: str) -> None:
    assert "internet" not in planned(command, folder, line)


@needs_sandbox
@pytest.mark.parametrize("internet", ["internet: true", ""])
def test_nodes_with_internet_or_of_which_nothing_is_known_are_fine(
    command: Command, folder: Path, internet: str
) -> None:
    assert "internet" not in planned(command, folder, "pip install torch", internet=internet)


@pytest.mark.parametrize(("words", "network"), [((), False), (("--network",), True)])
def test_a_rehearsal_has_a_network_only_if_it_is_asked_for(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], *, network: bool
) -> None:
    (folder / "testing.yaml").write_text(PROFILE.format(internet="internet: true"))
    given = {}

    def instead(*_: object, **how: object) -> None:
        given.update(how)
        raise CommandLineError.of("enough")

    monkeypatch.setattr("sbatchgen.lab.rehearsal.rehearsal.rehearse", instead)
    (folder / "train.py").touch()
    command("rehearse", "single", "--profile", "./testing.yaml", "--trainer", "train.py", *words)
    assert given["has_network"] is network
