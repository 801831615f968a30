"""The sweeps that docs/how-to/sweep.md shows, as they are there, with the real libraries on a real Slurm.

LightningCLI is a program of jsonargparse: it takes its arguments as `jsonargparse.CLI` does.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbatchgen.jobs.resolved.sweep import read_points
from sbatchgen.jobs.runs.points import POINTS_FILE
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY
from tests.jobs.jobs import Site, site_on
from tests.runs.test_sweep import until_ended

PAGE = (REPOSITORY / "docs/how-to/sweep.md").read_text()
MOST = 3  # of random points
SAVE = """
import json, os
from pathlib import Path

def save(**got):
    print(json.dumps({"epoch": 1, "val_f1": next(value for name, value in got.items() if name.endswith("lr"))}))
    Path(os.environ["RUN_DIR"], "got.json").write_text(json.dumps(got | {"LR": os.environ.get("LR")}))
"""
ARGPARSE = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--weight-decay", type=float)
parser.add_argument("--epochs", type=int)
parser.add_argument("--config")
parser.add_argument("--name")
save(**{name.replace("_", "-"): value for name, value in vars(parser.parse_args()).items()})
"""
HYDRA = """
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path=".", config_name="base")
def main(config):
    folder = HydraConfig.get().runtime.output_dir
    assert Path(folder) == Path(os.environ["RUN_DIR"]), folder
    save(lr=config.lr, depth=config.model.depth)

main()
"""
JSONARGPARSE = """
from dataclasses import dataclass
from jsonargparse import CLI

@dataclass
class Optimizer:
    lr: float = 1.0

@dataclass
class Model:
    width: int = 8

@dataclass
class Trainer:
    default_root_dir: str = "."
    max_epochs: int = 1

def fit(optimizer: Optimizer, model: Model, trainer: Trainer):
    assert trainer.default_root_dir == os.environ["RUN_DIR"]
    assert trainer.max_epochs == 7
    save(**{"optimizer.lr": optimizer.lr, "model.width": model.width})

CLI({"fit": fit})
"""
# The heading, the program, and the file that it reads.
LIBRARIES = {
    "## Any program": (ARGPARSE, ""),
    "### argparse": (ARGPARSE, ""),
    "### Hydra": (HYDRA, "lr: 1.0\n"),
    "### Lightning CLI": (JSONARGPARSE, "trainer: {max_epochs: 7}\n"),
}


@pytest.fixture(scope="module")
def site(real_slurm: None) -> Iterator[Site]:
    with Cluster(visible=VISIBLE) as running:
        yield site_on(running)


def command(heading: str) -> list[str]:
    """The words of the first sweep below a heading of the page, on this cluster and with few points."""
    below = PAGE[PAGE.index(f"\n{heading}") :]
    shown = re.search(r"^    (sbatchgen sweep (?:.*\\\n)*.*)", below, re.MULTILINE)
    assert shown
    line = shown[1].replace("\\\n", " ")
    return shlex.split(re.sub(r"--random \d+", f"--random {MOST}", line))[2:]


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("heading", LIBRARIES)
def test_each_program_gets_the_values_of_its_point(site: Site, heading: str) -> None:
    program, config = LIBRARIES[heading]
    _, *words = command(heading)
    site.cluster.put(f"work/{words[words.index('--trainer') + 1]}", SAVE + program)
    site.cluster.put("work/base.yaml", config)
    name = re.sub(r"\W+", "-", heading).strip("-")
    done = site.sbatchgen(
        "sweep", "cpu", "--yes", "--job-name", name, "--nodes", "1", "--cpus-per-task", "1", "--mem", "200M", *words
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {point["state"] for point in until_ended(site, name)} == {"done"}, site.log(name)

    folder = site.folder / "runs" / name
    sweep = read_points(folder / POINTS_FILE)
    points = [dict(zip(sweep.names, values, strict=True)) for values in sweep.points]
    assert len(points) > 1
    for number, point in enumerate(points):
        got = json.loads(Path(folder, str(number), "got.json").read_text())
        if heading == "## Any program":  # which gets no --lr
            assert (got["LR"], got["name"], got["lr"]) == (point["lr"], f"run-{point['lr']}", None)
        else:
            assert {name: got[name] for name in point} == {
                name: float(value) for name, value in point.items()
            }
    if heading != "## Any program":  # each has printed its rate as its f1
        by_f1 = sorted(points, key=lambda point: -float(point[sweep.names[0]]))
        table = site.sbatchgen("status", name, "--sort", "f1").stdout.splitlines()[-len(points) :]
        assert [line.split()[1] for line in table] == [point[sweep.names[0]] for point in by_f1]
    again = site.sbatchgen("resubmit", name, "--yes")
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    assert "no point to submit" in again.stderr  # the same points were drawn
