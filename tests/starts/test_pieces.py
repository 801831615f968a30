"""A training that `--fit` cuts into pieces, on a real Slurm, ends with the weights of the uncut one, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import Site, site_on
from tests.training.states import equal

STEPS = 50  # of two epochs
SHAPE = ("ddp", "--nodes", "1", "--gpus-per-node", "1", "--cpus-per-task", "1")
PACE = ("--step-delay", "0.3", "--sync-every", "1", "--save-every", "7")
PIECES = 3


@pytest.fixture
def site(slurm_root: Path | None) -> Iterator[Site]:
    """Nodes n1 to n3 are busy for twenty minutes, and a job is planned on all four nodes after that."""
    with Cluster(visible=VISIBLE, root=slurm_root) as cluster:
        busy = ("--exclusive", "--time=20", "--output=/dev/null")
        runs = cluster.sbatch("--nodes=3", *busy, script="#!/bin/bash\nsleep 1200\n")
        cluster.wait(runs, {"RUNNING"})
        waits = cluster.sbatch("--nodes=4", *busy, script="#!/bin/bash\nsleep 1200\n")
        cluster.until(lambda: cluster.job(waits)["StartTime"] != "Unknown", "a planned start")
        yield site_on(cluster)


def test_pieces_end_with_the_weights_of_the_uncut_training(site: Site) -> None:
    cluster = site.cluster
    cut = site.submit("cut", *SHAPE, "--time", "2:00:00", "--fit", "--", *PACE)
    record = cluster.wait(cut, {"RUNNING"})
    assert (record["NodeList"], record["TimeMin"] != "N/A") == ("n4", True)  # the hole
    for piece in range(1, PIECES):
        site.reach_step("cut", 12 * piece)
        cluster.root(["scancel", "--batch", "--signal=USR1", str(cut)])  # as Slurm does before a time limit
        cluster.until(lambda piece=piece: cluster.job(cut)["Restarts"] == str(piece), "the next piece")  # type: ignore[misc]
    assert cluster.wait(cut, {"COMPLETED"})["Restarts"] == str(PIECES - 1)
    uncut = site.submit("uncut", *SHAPE, "--time", "0:10:00", "--", *PACE)
    assert cluster.wait(uncut, {"COMPLETED"})["Restarts"] == "0"
    resumed = [int(str(event["step"])) for event in site.events("cut", "resume")]
    assert len(resumed) == PIECES - 1
    assert all(0 < step < STEPS for step in resumed)
    assert equal(at_the_end(site, "cut"), at_the_end(site, "uncut"))
    assert re.findall(r"Training completed", site.log("cut")) == ["Training completed"]


def at_the_end(site: Site, name: str) -> Any:
    """The weights, and the state of the optimizer."""
    state = torch.load(site.folder / "runs" / name / "checkpoints" / f"step-{STEPS:08}.pt", weights_only=True)
    return {part: state[part] for part in ("model", "optimizer")}
