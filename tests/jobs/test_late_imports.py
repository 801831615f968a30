"""What is saved in a container whose image ends before the trainer: Slurm sends SIGTERM to all processes of a step.

Apptainer without setuid mounts a .sif file by squashfuse, which ends at once. The bundled trainer saves all the same;
a trainer of the user's own may need more of the image.
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

PACE = ("--step-delay", "0.3", "--sync-every", "1", "--epochs")
# How each training in a .sif is stopped, and its shape; test_sif_saves stops trainings of several ranks.
STOPPED = {
    "requeue": ("ddp", "--nodes", "2", "--gpus-per-node", "1", "--launcher", "torchrun"),
    "cancel": ("single",),
    "limit": ("single",),
    "drain": ("single", "--nodelist", "n3"),
}


@pytest.fixture(scope="module")
def site(later_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("images")
    folder.chmod(0o755)
    with Cluster(visible=[*VISIBLE, folder], root=later_root) as cluster:
        small = folder / "small"
        image.make(cluster, small, {}, torch=False)
        (small / "opt/late").mkdir()
        (small / "opt/late/late.py").write_text("x = 1\n")
        image.make(cluster, folder / "torch", {})
        for name in ("small", "torch"):
            uncompressed = ("--mksquashfs-args", "-noI -noD -noF -noX")
            image.build(cluster, *uncompressed, folder / f"{name}.sif", folder / name)
        shutil.rmtree(folder / "torch")
        text = PROFILE.partition("runtime: venv")[0] + "runtime: apptainer\n"
        cluster.put("work/testing.yaml", text)
        cluster.put("work/sbatchgen.yaml", "profile: ./testing.yaml\n")
        cluster.put("work/train.py", TRAINER)
        (cluster.home / "work/images").symlink_to(folder)
        site = Site(cluster, cluster.home / "work")
        site.sbatchgen(
            "data", "mnist", "--to", "data", "--synthetic", "--train", "400", "--test", "16", check=True
        )
        yield site


@pytest.fixture(scope="module")
def stopped(site: Site) -> dict[str, int]:
    """Trainings of the bundled trainer, all at once, each stopped in its way after some steps."""
    run, root, ids = site.cluster.run, site.cluster.root, dict[str, int]()
    for how, shape in STOPPED.items():
        epochs = "1" if how == "drain" else "999"
        ids[how] = site.submit(how, *shape, "--image", "./images/torch.sif", "--", *PACE, epochs)
    for how, job in ids.items():
        site.reach_step(how, 3)
        if how == "requeue":
            run(["scontrol", "requeue", str(job)], check=True)
        elif how == "cancel":
            site.sbatchgen("cancel", "--yes", how, check=True)
        elif how == "limit":
            run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
        else:
            root(["scontrol", "update", "nodename=n3", "state=drain", "reason=tested"])
    return ids


@pytest.mark.parametrize("how", STOPPED)
def test_the_bundled_trainer_saves_in_an_image_that_a_process_mounts(
    site: Site, stopped: dict[str, int], how: str
) -> None:
    starts_again = how in ("requeue", "limit")
    if starts_again:
        site.cluster.until(lambda: "Resuming from" in site.log(how), f"second start\n{site.log(how)}")
    else:
        site.cluster.wait(stopped[how], {"COMPLETED"} if how == "drain" else {"CANCELLED", "FAILED"})
    log = site.log(how)
    assert "Bus error" not in log
    saved = re.findall(r"Stopped by .* at step \d+; checkpoint (\S+) saved", log)
    assert len(saved) == (how != "drain"), log
    if starts_again:
        assert f"Resuming from {saved[0]}" in log
        site.cluster.run(["scancel", str(stopped[how])], check=True)
    elif saved:
        assert (site.folder / "runs" / how / saved[0]).exists()
        assert site.status(how)["state"] == "preempted"


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
    assert "saving asked ..." in site.sbatchgen("cancel", "--yes", "asked", check=True).stderr
    site.cluster.wait(job, {"CANCELLED", "COMPLETED"})
    assert (run / "saved").exists(), site.log("asked")
