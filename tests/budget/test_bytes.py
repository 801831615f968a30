"""The script that Slurm has of each accepted job is, byte for byte, what was reviewed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.jobs.jobs import PROFILE

HEAD = "#!/bin/bash\n#SBATCH --time=10\n"
ODD = {
    "plain": f"{HEAD}sleep 300\n",
    "no line break at the end": f"{HEAD}sleep 300",
    "blanks and tabs": f"{HEAD}\n\n\t sleep 300 \t\n \n\n",
    "an option after the first command": f"{HEAD}sleep 300\n#SBATCH --time=30-0\n",
    "directives in odd forms": "#!/bin/sh -e\n#SBATCH -t10 -J 'a b'\n  #SBATCH --time=99\n#SBATCH\t--nice\nsleep 300\n",
    "letters of others": f"{HEAD}: 'Gr\u00f6\u00dfe \u2192 \U0001f600'\nsleep 300\n",
    "quotes and dollars": f"{HEAD}echo \"$HOME\" '$x' `date` \\\\ %j %% {{}}\nsleep 300\n",
    "long": f"{HEAD}sleep 300\n" + "# a comment of a long script\n" * 9000,
    "a here-document": f"{HEAD}cat <<'#SBATCH'\n#SBATCH --gpus=99\n#SBATCH\nsleep 300\n",
}
RENDERED = ("single", "--profile", "./testing.yaml", "--trainer", "train.py")


@pytest.fixture
def user(cluster: Cluster) -> Iterator[User]:
    """A user with a profile and a budget that is ample."""
    cluster.run(["rm", "-rf", "bytes", ".local", ".config/sbatchgen/settings.yaml"])
    cluster.put("bytes/testing.yaml", PROFILE)
    cluster.put("bytes/train.py", "import torch\n")
    cluster.put("bytes/budget.yaml", "gpu_hours: 1000000\n")
    yield User(cluster)
    cluster.run(["scancel", "--me"])


class User:
    """Types commands in the folder."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.folder = cluster, cluster.home / "bytes"

    def type(self, *words: str) -> str:
        budget = f"{self.folder}/budget.yaml"
        env = {"PYTHONPATH": str(REPOSITORY), "SBATCHGEN_BUDGET": budget}
        argv = [sys.executable, "-m", "sbatchgen", *words]
        return self.cluster.run(argv, env=env, cwd=self.folder, check=True).stdout

    def reviewed(self, *words: str) -> tuple[str, bytes]:
        """The digest of a review, and what the digest is of."""
        digest = json.loads(self.type("review", *words, "--format", "json"))["digest"]
        return digest, Path(self.cluster.home, ".local/state/sbatchgen/reviewed", digest).read_bytes()

    def of_slurm(self, job: str) -> bytes:
        """The script that Slurm has."""
        self.cluster.run(["scontrol", "write", "batch_script", job, "has"], cwd=self.folder, check=True)
        return (self.folder / "has").read_bytes()


@pytest.mark.parametrize("options", [(), ("--time", "20", "--no-requeue")], ids=["", "with options"])
def test_of_a_finished_script(user: User, options: Sequence[str]) -> None:
    for number, (name, text) in enumerate(ODD.items()):
        user.cluster.put(f"bytes/{number}.sh", text)
        digest, shown = user.reviewed(f"{number}.sh", *options)
        job = user.type("submit", f"{number}.sh", *options, "--reviewed", digest, "--yes").strip()
        has = user.of_slurm(job)
        assert has == text.encode(), name
        assert shown.endswith(has), name


def test_of_a_rendered_job_its_chain_its_sweep_and_what_continues_them(user: User) -> None:
    digest, shown = user.reviewed(*RENDERED)
    jobs = {"submit": user.type("submit", *RENDERED, "--reviewed", digest, "--yes")}
    first, comment, rest = user.of_slurm(jobs["submit"].strip()).split(b"\n", 2)
    assert shown.endswith(b"\n".join([first, b"# sbatchgen", rest]))
    assert comment.startswith(b"# sbatchgen 0.")
    jobs["chain"] = user.type("submit", *RENDERED, "--yes", "--chain", "3", "--job-name", "chain")
    jobs["sweep"] = user.type("sweep", *RENDERED, "--yes", "--param", "x=1,2", "--job-name", "sweep")
    jobs["preflight"] = user.type("preflight", "--profile", "./testing.yaml", "--yes")
    user.cluster.run(["scancel", "--me"])
    for job in jobs["submit"].split() + jobs["sweep"].split():
        user.cluster.wait(job)
    jobs["resume"] = user.type("resume", "single", "--yes")
    jobs["resubmit"] = user.type("resubmit", "sweep", "--yes")
    for name, printed in jobs.items():
        assert printed.split()
        for job in printed.split():
            (kept,) = user.folder.glob(f"runs/*/job-{job}.slurm")
            assert kept.read_bytes() == user.of_slurm(job), name
