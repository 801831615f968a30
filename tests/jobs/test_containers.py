"""Jobs in containers, on a real Slurm with a stand-in for pyxis (tests/cluster/pyxis.c) and one for Apptainer.

The stand-ins have no images, but they hide what is not mounted, refuse what the real ones refuse, and let an image's
variables win over a job's where the real ones do.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import fixtures, pyxis
from tests.cluster import site as machine
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import EPOCH, PROFILE, Site

IMAGE_PATH = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
# What NVIDIA's images and Enroot's hook for PyTorch set (50-slurm-pytorch.sh), here for one task.
NVIDIA = {
    "PATH": IMAGE_PATH,
    "PYTORCH_VERSION": "2.3.0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "61001",
    "OMP_NUM_THREADS": "99",
    "PYTHONPATH": "/wrong",
}
HOSTILE = NVIDIA | {
    "WORLD_SIZE": "77",
    "MASTER_ADDR": "wrong",
    "MASTER_PORT": "1",
    "COLOUR": "the image's",
    "API_KEY": "the image's",
    "SHAPE": "the image's",
}
AS_NVIDIA = ("--image", "${HOME}/images/nvidia")
CPU = ("--", "--epochs", "1")
PROCESSES = {"ddp-torchrun": 2, "ddp-srun": 1, "ddp-spawn": 1, "apptainer-ddp": 1}  # of a node
PROBE = """
import json, os, pathlib
names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS GLOO_SOCKET_IFNAME COLOUR SHAPE API_KEY LANG".split()
home = pathlib.Path.home()
seen = sorted(path.name for path in home.iterdir()) if home.exists() else []
line = json.dumps({"cwd": os.getcwd(), "home": seen, **{name: os.environ.get(name) for name in names}})
os.write(1, f"{line}\\n".encode())  # in one piece: the processes of a node share the log
"""


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own: the session's has no plugins, as a site without pyxis."""
    fixtures._need(machine.why_not(), what=fixtures.JOBS)
    fixtures._need(pyxis.why_not(), what="jobs in containers on a real Slurm")
    folder = tmp_path_factory.mktemp("pyxis")
    interpreter = [Path(sys.prefix), Path(sys.base_prefix)]
    plugstack = pyxis.build(folder, contents=interpreter)
    with Cluster(visible=[*interpreter, fixtures.CHECKOUT, folder], plugstack=plugstack) as running:
        yield running


@pytest.fixture(scope="module")
def site(containers: Cluster) -> Site:
    """A folder with a profile for each kind of container and data; the images are in another folder."""
    for runtime, setup in (("enroot", ""), ("apptainer", "setup: ['export PATH=$HOME/bin:$PATH']\n")):
        text = PROFILE.partition("runtime: venv")[0]
        image = f"runtime: {runtime}\nruntimes:\n  {runtime}: {{image: '${{HOME}}/images/{runtime}'}}\n"
        containers.put(f"work/{runtime}.yaml", text + setup + image)
        put_image(containers, f"images/{runtime}", HOSTILE)
    put_image(containers, "images/nvidia", NVIDIA)
    program = Path(pyxis.__file__).with_name("apptainer.py").read_text()
    containers.put("bin/apptainer", f"#!{sys.executable}\n{program}", mode=0o755)
    containers.put("work/sbatchgen.yaml", "profile: ./enroot.yaml\n")
    containers.put("work/probe.py", PROBE)
    site = Site(containers, containers.home / "work")
    drawing = ("--synthetic", "--train", "320", "--test", "64")
    site.sbatchgen("data", "mnist", "--to", "data", *drawing, check=True)
    return site


def put_image(cluster: Cluster, name: str, environment: dict[str, str]) -> None:
    cluster.put(name, "no real image")
    cluster.put(f"{name}.env", "".join(f"{key}={value}\n" for key, value in environment.items()))


def submit_ddp(site: Site, name: str, launcher: str, *flags: str) -> int:
    shape = ("ddp", "--nodes", "2", "--gpus-per-node", f"{PROCESSES[name]}", "--launcher", launcher)
    return site.submit(name, *shape, *flags)


@pytest.fixture(scope="module")
def trained(site: Site) -> dict[str, int]:
    """Trainings that only have to end well, all started at once."""
    jobs = {
        f"ddp-{launcher}": submit_ddp(site, f"ddp-{launcher}", launcher, *CPU)
        for launcher in ("torchrun", "srun", "spawn")
    }
    in_apptainer = ("--profile", "./apptainer.yaml", *CPU)
    jobs["apptainer-ddp"] = submit_ddp(site, "apptainer-ddp", "torchrun", *in_apptainer)
    jobs["single"] = site.submit("single", "single", *AS_NVIDIA, *CPU)
    jobs["single-hostile"] = site.submit("single-hostile", "single", *CPU)
    jobs["apptainer-single"] = site.submit("apptainer-single", "single", *in_apptainer)
    return jobs


@pytest.mark.parametrize("name", PROCESSES)
def test_ddp_trains_on_two_nodes(site: Site, trained: dict[str, int], name: str) -> None:
    site.cluster.wait(trained[name], {"COMPLETED"})
    log = site.log(name)
    ranks = re.findall(r"rank (\d+) of (\d+) on (n\d), local rank (\d+)", log)
    each = PROCESSES[name]
    there = sorted((int(rank), int(local)) for rank, _, _, local in ranks)
    assert there == [(rank, rank % each) for rank in range(2 * each)]
    assert {size for _, size, _, _ in ranks} == {f"{2 * each}"}
    assert len({node for _, _, node, _ in ranks}) == 2
    assert len(EPOCH.findall(log)) == 1
    assert site.status(name)["state"] == "done"


@pytest.mark.parametrize("name", ["single", "single-hostile", "apptainer-single"])
def test_single_trains(site: Site, trained: dict[str, int], name: str) -> None:
    site.cluster.wait(trained[name], {"COMPLETED"})
    assert len(EPOCH.findall(site.log(name))) == 1
    assert site.status(name)["state"] == "done"


def probe(site: Site, name: str, *flags: str, **env: str) -> list[dict[str, Any]]:
    """What each process of a job finds around it."""
    ask = ("submit", *flags, "--trainer", "probe.py", "--job-name", name, "--yes")
    done = site.sbatchgen(*ask, check=True, env=env)
    site.cluster.wait(int(done.stdout), {"COMPLETED"})
    return [json.loads(line) for line in site.log(name).splitlines() if line.startswith("{")]


COLOUR = 'the user\'s, $(touch pwned) `id` "$HOME" \\ really'


@pytest.mark.parametrize(
    ("runtime", "launcher"), [("enroot", "torchrun"), ("enroot", "srun"), ("apptainer", "srun")]
)
def test_variables_of_the_job_win_over_the_images(site: Site, runtime: str, launcher: str) -> None:
    shape = ("ddp", "--nodes", "2", "--gpus-per-node", "2", "--launcher", launcher, "--nodelist", "n1,n2")
    profile = ("--profile", f"./{runtime}.yaml", "--env", f"COLOUR={COLOUR}", "--env", "API_KEY")
    found = probe(site, f"probe-{runtime}-{launcher}", *shape, *profile, API_KEY=COLOUR)
    places = sorted((int(task["RANK"]), int(task["LOCAL_RANK"]), task["WORLD_SIZE"]) for task in found)
    assert places == [(0, 0, "4"), (1, 1, "4"), (2, 0, "4"), (3, 1, "4")]
    assert len({(task["MASTER_ADDR"], task["MASTER_PORT"]) for task in found}) == 1
    assert "wrong" not in found[0]["MASTER_ADDR"]
    for task in found:
        assert (task["OMP_NUM_THREADS"], task["GLOO_SOCKET_IFNAME"]) == ("1", "hsn0")
        assert (task["COLOUR"], task["SHAPE"]) == (COLOUR, "the image's")
        assert task["API_KEY"] == COLOUR
        assert task["cwd"] == str(site.folder)


def test_only_what_is_mounted_is_there(site: Site) -> None:
    (found,) = probe(site, "probe-sight", "single")
    assert (found["home"], found["LANG"]) == (["work"], None)
    images = site.cluster.home / "images"
    (found,) = probe(site, "probe-bind", "single", "--bind", str(images))
    assert found["home"] == ["images", "work"]


@pytest.mark.parametrize("runtime", ["enroot", "apptainer"])
def test_a_snapshot_of_the_code_is_there(site: Site, runtime: str) -> None:
    for words in (["init", "--quiet"], ["add", "probe.py"]):
        site.cluster.run(["git", *words], cwd=site.folder, check=True)
    name = f"probe-snapshot-{runtime}"
    (found,) = probe(site, name, "single", "--profile", f"./{runtime}.yaml", "--snapshot")
    (place,) = (site.folder / "runs" / name).glob("code-*")
    assert found["cwd"] == str(place)


@pytest.fixture(scope="module")
def away(site: Site) -> Path:
    """A run folder outside the folder of submission, after a training whose data lay outside too."""
    site.cluster.run(["cp", "-r", "data", "../elsewhere"], cwd=site.folder, check=True)
    flags = (*AS_NVIDIA, "--run-dir", "${HOME}/runs/away", "--data-dir", "${HOME}/elsewhere")
    site.cluster.wait(site.submit("away", "single", *flags, *CPU), {"COMPLETED"})
    return site.cluster.home / "runs/away"


def test_run_folder_and_data_outside_the_folder_of_submission(away: Path) -> None:
    assert json.loads((away / "status.json").read_text())["state"] == "done"
    assert (away / "checkpoints/best.pt").exists()


def test_a_checkpoint_of_another_run_is_there(site: Site, away: Path) -> None:
    flags = (*AS_NVIDIA, "--resume", str(away / "checkpoints/best.pt"), *CPU)
    site.cluster.wait(site.submit("resumed", "single", *flags), {"COMPLETED"})
    assert "Resuming from" in site.log("resumed")


def test_a_folder_with_an_odd_name_is_mounted(site: Site) -> None:
    odd = Site(site.cluster, site.cluster.put("a b'c$d/probe.py", PROBE).parent)
    (found,) = probe(odd, "probe-odd", "single", "--profile", f"{site.folder}/enroot.yaml")
    assert found["cwd"] == str(odd.folder)


def test_a_relative_image_counts_from_the_folder_of_submission(site: Site) -> None:
    put_image(site.cluster, "work/here.sqsh", HOSTILE | {"SHAPE": "of here"})
    (found,) = probe(site, "probe-relative", "single", "--image", "./here.sqsh")
    assert found["SHAPE"] == "of here"


@pytest.mark.parametrize("runtime", ["enroot", "apptainer"])
def test_a_missing_image_is_told_before_anything_starts(site: Site, runtime: str) -> None:
    name = f"missing-{runtime}"
    flags = ("--profile", f"./{runtime}.yaml", "--image", "/nowhere/image")
    record = site.cluster.wait(site.submit(name, "single", *flags), {"FAILED"})
    assert record["ExitCode"] == "1:0"
    *_, last = site.log(name).splitlines()
    assert last == "error: can't read the image /nowhere/image"


@pytest.mark.parametrize("runtime", ["enroot", "apptainer"])
def test_a_folder_that_would_be_split_is_refused(site: Site, runtime: str) -> None:
    odd = Site(site.cluster, site.cluster.put("a,b/probe.py", PROBE).parent)
    name = f"comma-{runtime}"
    profile = ("--profile", f"{site.folder}/{runtime}.yaml")
    record = site.cluster.wait(odd.submit(name, "single", "--trainer", "probe.py", *profile), {"FAILED"})
    assert record["ExitCode"] == "1:0"
    *_, last = odd.log(name).splitlines()
    assert last == "error: a folder with a comma or a colon in its name can't be mounted"


def test_a_cancelled_training_saves(site: Site) -> None:
    job = site.submit(
        "cancelled", "ddp", "--nodes", "2", "--gpus-per-node", "1", "--", "--epochs", "9", "--step-delay", "0.2",
    )  # fmt: skip
    site.reach_step("cancelled", 5)
    site.cluster.run(["scancel", str(job)], check=True)
    site.cluster.wait(job, {"CANCELLED"})
    site.cluster.until(lambda: site.status("cancelled")["state"] == "preempted", "state preempted")
    assert int(str(site.status("cancelled")["step"])) >= 5


# What the tests above rest on: the stand-in itself.


def srun(site: Site, *arguments: str) -> tuple[int, str]:
    image = f"--container-image={site.cluster.home}/images/enroot"
    done = site.cluster.run(["srun", image, *arguments], cwd=site.folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--container-image=/nowhere.sqsh", "failed to open the image: /nowhere.sqsh"),
        ("--container-image=images/enroot", "'images/enroot' is an image of a registry"),
        ("--container-mounts=/nowhere:/x", "mount source path does not exist: /nowhere"),
        ("--container-mounts=work:/x", "invalid format"),
        ("--container-mounts=/usr:", "invalid format"),
        ("--container-mounts=/usr:/x:nonsense", "unknown flag 'nonsense'"),
        ("--container-workdir=/nowhere", "couldn't chdir to: /nowhere"),
    ],
)
def test_the_stand_in_refuses(site: Site, option: str, said: str) -> None:
    status, output = srun(site, option, "true")
    assert status == 1
    assert said in output


def test_the_stand_in_hides_what_is_not_mounted(site: Site) -> None:
    home = site.cluster.home
    mounts = f"--container-mounts={home}/images:/images:ro"
    look = f"pwd; ls /images; ls /etc/slurm; ls {home}; touch /images/x"
    status, output = srun(site, "--no-container-mount-home", mounts, "sh", "-c", look)
    assert status == 1
    assert output.startswith("/\napptainer\napptainer.env\nenroot\nenroot.env\nnvidia\nnvidia.env\n")
    assert f"cannot access '{home}'" in output
    assert "touch: cannot touch '/images/x': Read-only file system" in output
    assert srun(site, "ls", str(home))[0] == 0, "a site that mounts homes, unless told not to"
