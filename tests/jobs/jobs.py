"""Jobs on the test cluster as its user starts them, and what they leave."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.slurm import Cluster
from tests.conftest import fit_the_schema
from tests.training.forks import QUICKLY

SBATCHGEN = Path(sys.prefix, "bin", "sbatchgen")
PROFILE = f"""
name: testing
url: https://slurm.schedmd.com
checked: 2026-11-20
default_partition: gpu
partitions:
  gpu: {{time_max: 1-00:00:00, nodes_max: 4, cpus_per_node: 8, gpus_per_node: 4, shards_per_gpu: 16}}
  low: {{time_max: 1-00:00:00, nodes_max: 4, cpus_per_node: 8, gpus_per_node: 4}}
env: {{OMP_NUM_THREADS: 1, PYTHONPATH: {QUICKLY}}}
network: {{gloo_socket_ifname: hsn0}}
options: {{mem: 2G, time: 00:10:00, cpus_per_task: 2}}
runtime: venv
runtimes:
  venv: {{path: {sys.prefix}}}
setup: [set -euo pipefail]
"""
TRAINING = (
    *("--device", "cpu", "--batch-size", "16", "--epochs", "2", "--log-every", "1", "--sync-every", "5"),
    *("--model", "small_model:make", "--tensorboard", "off"),  # the model is in QUICKLY
)
EPOCH = re.compile(r"Epoch (\d+) - Avg Loss: (\d+\.\d+), Accuracy: (\d+\.\d+)%")


@dataclass(frozen=True)
class Site:
    """The cluster, as its user sees it: a folder with a profile and data."""

    cluster: Cluster
    folder: Path

    def sbatchgen(self, *arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        done = self.cluster.run([SBATCHGEN, *arguments], cwd=self.folder, **options)  # type: ignore[arg-type]
        fit_the_schema(arguments, done.stdout)
        return done

    def submit(self, name: str, *arguments: str, check: bool = True) -> int:
        """The id of a job that runs in runs/NAME."""
        flags, trainer = split(arguments)
        done = self.sbatchgen(
            "submit",
            flags[0],
            "--yes",
            "--job-name",
            name,
            *flags[1:],
            "--",
            *TRAINING,
            *trainer,
            check=check,
        )
        return int(done.stdout)

    def log(self, name: str) -> str:
        """All that jobs of this name have written."""
        logs = sorted((self.folder / "runs" / name).glob("*.out"))
        return "".join(log.read_text() for log in logs)

    def status(self, name: str) -> dict[str, object]:
        path = self.folder / "runs" / name / "status.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def events(self, name: str, what: str) -> list[dict[str, object]]:
        path = self.folder / "runs" / name / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == what]

    def reach_step(self, name: str, step: int) -> None:
        def there() -> bool:
            return any(int(str(event["step"])) >= step for event in self.events(name, "train"))

        self.cluster.until(there, f"step {step} of {name}\n{self.log(name)}")


def split(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:cut], arguments[cut + 1 :]


def site_on(cluster: Cluster) -> Site:
    """A folder with the profile and small data, made on a cluster; the data are made once."""
    cluster.put("work/testing.yaml", PROFILE)
    cluster.put("work/sbatchgen.yaml", "profile: ./testing.yaml\n")
    site = Site(cluster, cluster.home / "work")
    if not (site.folder / "data/train-images-idx3-ubyte").exists():
        drawing = ("--synthetic", "--train", "400", "--test", "100")
        site.sbatchgen("data", "mnist", "--to", "data", *drawing, check=True)
    return site
