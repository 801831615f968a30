"""24 trainings in an image that the real pyxis mounts (use_squashfuse=1), ended in six ways: run by pyxis.sh.

Slurm signals the processes that mount the image too, as in tests/jobs/test_sif_saves.py.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs import test_sif_saves
from tests.jobs.jobs import PROFILE, Site
from tests.jobs.test_sif_saves import SHAPES, test_each_training_saves_however_it_ends

from . import enroot, image, pyxis
from .fixtures import VISIBLE
from .slurm import NODES, Cluster

__all__ = ["SHAPES", "test_each_training_saves_however_it_ends"]
UNPACKED = ("-noI", "-noD", "-noF", "-noX", "-all-root", "-noappend", "-quiet", "-no-progress")


@pytest.fixture(autouse=True)
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of a mounted folder is good for a second after squashfuse has ended: a step takes longer."""
    monkeypatch.setattr(test_sif_saves, "PACE", ("--", "--step-delay", "3", *test_sif_saves.PACE[3:]))


@pytest.fixture(scope="module")
def site(later_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A user whose image is a file with torch, which Enroot mounts."""
    images, folder = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("pyxis")
    images.chmod(0o755)
    packed = images / "torch.sqsh"
    with Cluster(visible=[*VISIBLE, images], root=later_root) as cluster:  # which has Apptainer
        image.make(cluster, images / "torch", {})
    enroot.complete(images / "torch", {"PATH": image.PATH})
    subprocess.run(["mksquashfs", images / "torch", packed, *UNPACKED], check=True, capture_output=True)
    shutil.rmtree(images / "torch")
    plugstack = pyxis.build(folder, contents=[], nvidia=NODES, squashfuse=True)
    (Path(pyxis.BUILT) / enroot.MOUNTS).write_text("")  # the image has all that it needs
    visible = [*VISIBLE, images, folder, Path(pyxis.BUILT)]
    with Cluster(visible=visible, plugstack=plugstack, path=f"{pyxis.BUILT}/bin") as cluster:
        text = PROFILE.partition("runtime: venv")[0]
        cluster.put("work/testing.yaml", f"{text}runtime: enroot\nruntimes:\n  enroot: {{image: {packed}}}\n")
        cluster.put("work/sbatchgen.yaml", "profile: ./testing.yaml\n")
        shown = cluster.run(
            ["srun", f"--container-image={packed}", "cat", "/proc/self/mountinfo"], check=True
        )
        assert "/overlay/lower," in shown.stdout, "the image is mounted, not unpacked"
        site = Site(cluster, cluster.home / "work")
        drawing = ("--synthetic", "--train", "400", "--test", "16")
        site.sbatchgen("data", "mnist", "--to", "data", *drawing, check=True)
        yield site
