"""A trainer that imports a module while it saves, in a container that gets SIGTERM with it: which images keep it.

Apptainer without setuid mounts a .sif file by squashfuse, which ends at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import image
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import PROFILE, Site

TRAINER = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.path.insert(0, "/opt/late")
run = pathlib.Path(os.environ["RUN_DIR"])
(run / "started").touch()
while not os.path.exists(os.environ["SBATCHGEN_STOP_FILE"]):
    time.sleep(0.1)
import late
(run / "saved").touch()
"""


@pytest.fixture(scope="module")
def site(later_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("images")
    folder.chmod(0o755)
    with Cluster(visible=[*VISIBLE, folder], root=later_root) as cluster:
        small = folder / "small"
        image.make(cluster, small, {}, torch=False)
        (small / "opt/late").mkdir()
        (small / "opt/late/late.py").write_text("x = 1\n")
        image.build(cluster, "--mksquashfs-args", "-noI -noD -noF -noX", folder / "small.sif", small)
        text = PROFILE.partition("runtime: venv")[0] + "runtime: apptainer\n"
        cluster.put("work/testing.yaml", text)
        cluster.put("work/sbatchgen.yaml", "profile: ./testing.yaml\n")
        cluster.put("work/train.py", TRAINER)
        (cluster.home / "work/images").symlink_to(folder)
        yield Site(cluster, cluster.home / "work")


def cancelled(site: Site, name: str, *flags: str) -> bool:
    """Whether a job has saved that was cancelled while it ran."""
    ask = ("submit", "single", "--trainer", "train.py", "--job-name", name, "--yes", *flags)
    job = int(site.sbatchgen(*ask, check=True).stdout)
    run = site.folder / "runs" / name
    site.cluster.until((run / "started").exists, "start of the trainer")
    site.cluster.run(["scancel", str(job)], check=True)
    site.cluster.wait(job, {"CANCELLED"})
    return (run / "saved").exists()


@pytest.mark.parametrize("flags", [("small.sif", "--env", "APPTAINER_UNSQUASH=1"), ("small",)], ids=len)
def test_an_unpacked_image_is_there_to_the_end(site: Site, flags: tuple[str, ...]) -> None:
    name, *more = flags
    assert cancelled(site, f"kept-{len(flags)}", "--image", f"./images/{name}", *more)


def test_an_image_that_a_process_mounts_may_be_gone(site: Site) -> None:
    """What SB044 warns of; a later Apptainer may do better, and then the rule can go."""
    assert not cancelled(site, "lost", "--image", "./images/small.sif")


def test_sbatchgen_cancel_loses_nothing_of_an_image_that_a_process_mounts(site: Site) -> None:
    ask = ("submit", "single", "--trainer", "train.py", "--job-name", "asked", "--yes", "--resume", "auto")
    job = int(site.sbatchgen(*ask, "--image", "./images/small.sif", check=True).stdout)
    run = site.folder / "runs/asked"
    site.cluster.until((run / "started").exists, "start of the trainer")
    assert "saving asked ..." in site.sbatchgen("cancel", "asked", check=True).stderr
    site.cluster.wait(job, {"CANCELLED", "COMPLETED"})
    assert (run / "saved").exists(), site.log("asked")
