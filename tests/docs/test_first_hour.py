"""The page of the first hour, typed by an ordinary user on a real Slurm."""

from __future__ import annotations

import os
import sys

import pytest

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.docs.pages import blocks
from tests.training.forks import QUICKLY

# What a job of the page trains is not changed, but torch loads there without its compiler: a third less processor time.
QUICK = f"TaskProlog={QUICKLY / 'task_prolog'}\n"
PAGE = REPOSITORY / "docs/first-hour.md"


@pytest.mark.usefixtures("real_slurm")
def test_the_first_hour_is_as_the_page_shows_it() -> None:
    with Cluster(visible=VISIBLE, settings=QUICK) as cluster:  # of its own: the page shows its first job
        type_the_page(cluster)


def type_the_page(cluster: Cluster) -> None:
    cluster.put("first-hour/review.txt", "")
    folder = cluster.home / "first-hour"
    typed = {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "PREFIX": sys.prefix, "OMP_NUM_THREADS": "1"}

    def printed(line: str) -> str:
        return cluster.run(["bash", "-c", f"exec 2>&1; {line}"], cwd=folder, env=typed).stdout

    for block in blocks(PAGE):
        if block.file:
            cluster.put(f"first-hour/{block.file}", block.text)
        if block.kind == "run":
            printed(block.text)
        for shown in block.shown if block.kind == "console" else ():
            said = printed(shown.command)
            assert shown.fits(said), f"$ {shown.command}\n{said}"
    assert (folder / "runs/first/plot.png").stat().st_size > 1000


def test_the_first_hour_is_read_in_minutes() -> None:
    assert len([line for line in PAGE.read_text().splitlines() if not line.startswith("<!--")]) <= 100
