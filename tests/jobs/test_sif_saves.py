"""24 trainings in a .sif that squashfuse mounts, ended in six ways: each saves all that it has trained.

Slurm signals the process that mounts the image too (proctrack/linuxproc), as it does on sites without cgroups.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import image
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import PROFILE, Site
from training.saving.reading import load

pytestmark = pytest.mark.proof

SHAPES = {
    "torchrun": ("--nodes", "1", "--gpus-per-node", "2", "--launcher", "torchrun"),
    "srun": ("--nodes", "1", "--gpus-per-node", "2", "--launcher", "srun"),
    "spawn": ("--nodes", "1", "--gpus-per-node", "2", "--launcher", "spawn"),
    "nodes": ("--nodes", "2", "--gpus-per-node", "1", "--launcher", "torchrun"),
}
# The nodes of the jobs with one node, and with two. A job that needs all of n4 takes it from the preempted one.
PLACES = {
    "scancel": ("n1", "n1,n2"),
    "cancel": ("n1", "n1,n2"),
    "requeue": ("n2", "n1,n2"),
    "limit": ("n2", "n1,n2"),
    "drain": ("n3", "n2,n3"),
    "preemption": ("n4", "n3,n4"),
}
FLAGS = {"preemption": ("--partition", "low"), "limit": ("--signal", "B:USR1@120")}
PACE = ("--", "--step-delay", "0.5", "--sync-every", "1", "--epochs", "9")
SAVED = re.compile(r"Stopped by [\w ]+ at step (\d+); checkpoint (\S+) saved")


@pytest.fixture(scope="module")
def site(later_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A user whose image is a file with torch."""
    images = tmp_path_factory.mktemp("images")
    images.chmod(0o755)
    with Cluster(visible=[*VISIBLE, images], root=later_root) as cluster:
        image.make(cluster, images / "torch", {})
        image.build(
            cluster, "--mksquashfs-args", "-noI -noD -noF -noX", images / "torch.sif", images / "torch"
        )
        shutil.rmtree(images / "torch")
        text = PROFILE.partition("runtime: venv")[0]
        runtime = f"runtime: apptainer\nruntimes:\n  apptainer: {{image: {images / 'torch.sif'}}}\n"
        cluster.put("work/testing.yaml", text + runtime)
        cluster.put("work/sbatchgen.yaml", "profile: ./testing.yaml\n")
        running = ["sh", "-c", "cat /proc/[0-9]*/comm"]
        shown = cluster.run(["apptainer", "exec", images / "torch.sif", *running], check=True)
        assert "squashfuse" in shown.stdout, "the image is mounted, not unpacked"
        site = Site(cluster, cluster.home / "work")
        drawing = ("--synthetic", "--train", "400", "--test", "16")
        site.sbatchgen("data", "mnist", "--to", "data", *drawing, check=True)
        yield site


@pytest.mark.parametrize("shape", SHAPES)
def test_each_training_saves_however_it_ends(site: Site, shape: str) -> None:
    jobs = {way: start(site, shape, way) for way in PLACES}
    trained = {}
    for way, job in jobs.items():
        site.reach_step(f"{shape}-{way}", 3)
        trained[way] = max(int(str(event["step"])) for event in site.events(f"{shape}-{way}", "train"))
        end(site, shape, way, job)
    saved: dict[str, int] = {}

    def all_over() -> bool:
        """Look at a checkpoint as soon as it is named: the next start will remove it."""
        for way in trained.keys() - saved.keys():
            if is_over(site, shape, way, jobs[way]):
                saved[way] = saved_step(site, shape, way)
        return saved.keys() == trained.keys()

    site.cluster.until(all_over, "the last saves, or the ends without")
    site.cluster.root(["scontrol", "update", f"nodename={PLACES['drain'][shape == 'nodes']}", "state=resume"])
    site.cluster.run(["scancel", *map(str, jobs.values())])

    lost = [way for way in PLACES if saved[way] < trained[way]]
    assert lost == [], "\n\n".join(site.log(f"{shape}-{way}")[-3000:] for way in lost)


def start(site: Site, shape: str, way: str) -> int:
    """Submit a training; its job's id."""
    nodes = ("--nodelist", PLACES[way][shape == "nodes"], "--cpus-per-task", "1")
    return site.submit(f"{shape}-{way}", "ddp", *SHAPES[shape], *nodes, *FLAGS.get(way, ()), *PACE)


def end(site: Site, shape: str, way: str, job: int) -> None:
    """End a job in one of the ways."""
    cluster = site.cluster
    if way == "scancel":
        cluster.run(["scancel", str(job)], check=True)
    elif way == "cancel":
        site.sbatchgen("cancel", "--yes", f"{shape}-{way}", check=True)
    elif way == "limit":
        hours, minutes, _ = map(int, cluster.job(job)["RunTime"].split(":"))
        cluster.root(["scontrol", "update", f"jobid={job}", f"timelimit={60 * hours + minutes + 2}"])
    elif way == "preemption":
        cluster.sbatch("--partition=high", "--nodelist=n4", "--exclusive", "--wrap=sleep 5")
    else:
        if way == "drain":
            nodes = PLACES[way][shape == "nodes"]
            cluster.root(["scontrol", "update", f"nodename={nodes}", "state=drain", "reason=disk"])
        cluster.run(["scontrol", "requeue", str(job)], check=True)


def is_over(site: Site, shape: str, way: str, job: int) -> bool:
    """Whether a training has saved, or cannot any more: its job has ended, or waits to start again."""
    state = site.cluster.job(job)["JobState"]
    runs = {"RUNNING", "COMPLETING", "SIGNALING"}  # the last while the script gets USR1
    return bool(SAVED.search(site.log(f"{shape}-{way}"))) or state not in runs


def saved_step(site: Site, shape: str, way: str) -> int:
    """The step of the checkpoint that a training has named as saved, which is whole; -1 without one."""
    said = SAVED.search(site.log(f"{shape}-{way}"))
    if not said:
        return -1
    with (site.folder / "runs" / f"{shape}-{way}" / said[2]).open("rb") as file:
        step = int(load(file)["step"])
    assert step == int(said[1])
    return step
