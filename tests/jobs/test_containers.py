"""Jobs in containers, on a real Slurm with a stand-in for pyxis (tests/cluster/pyxis.c) and one for Apptainer.

The stand-ins have no images, but they hide what is not mounted, refuse what the real ones refuse, leave what the
real ones leave, and let an image's variables win over a job's where the real ones do.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.check.sbatch.hostlist import hosts
from tests.cluster import fixtures, pyxis
from tests.cluster.fixtures import FIRST, LATER, on_one_release
from tests.cluster.pyxis import put_image
from tests.cluster.slurm import Cluster
from tests.jobs import test_shell
from tests.jobs.jobs import EPOCH, PROFILE, Site
from tests.training.forks import QUICKLY

IMAGE_PATH = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
# What NVIDIA's images and Enroot's hook for PyTorch set (50-slurm-pytorch.sh), here for one task.
NVIDIA = {
    "PATH": IMAGE_PATH,
    "PYTORCH_VERSION": "2.3.0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "61001",
    "OMP_NUM_THREADS": "99",
    "PYTHONPATH": "/image/lib",
    "NVIDIA_VISIBLE_DEVICES": "all",
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
import json, os, pathlib, pwd
names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS GLOO_SOCKET_IFNAME COLOUR SHAPE API_KEY LANG"
names += " HOME PYTHONPATH CUDA_VISIBLE_DEVICES SLURMD_NODENAME"
home = pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir)
seen = sorted(path.name for path in home.iterdir()) if home.exists() else []
(pathlib.Path.home() / ".cache").mkdir(exist_ok=True)
try:
    pathlib.Path("/new").mkdir()
    writable = True
except OSError:
    writable = False
found = {name: os.environ.get(name) for name in names.split()}
line = json.dumps({"cwd": os.getcwd(), "home": seen, "writable": writable, **found})
os.write(1, f"{line}\\n".encode())  # in one piece: the processes of a node share the log
"""


@pytest.fixture(scope="module")
def enroot(tmp_path_factory: pytest.TempPathFactory, slurm_root: Path | None) -> Path:
    """The folder of the stand-in for pyxis; NVIDIA's tools are on all nodes but n4."""
    fixtures._need(pyxis.why_not(), what="jobs in containers on a real Slurm")
    if pyxis.BUILT and slurm_root:
        pytest.skip("the real pyxis is built for this machine's Slurm")
    folder = tmp_path_factory.mktemp("pyxis")
    interpreter = [Path(sys.prefix), Path(sys.base_prefix)]
    plugstack = pyxis.build(folder, contents=interpreter, nvidia=("n1", "n2", "n3"), slurm=slurm_root)
    (folder / "plugstack.conf").write_text(plugstack)
    return folder


@pytest.fixture(scope="module")
def containers(enroot: Path, slurm_root: Path | None) -> Iterator[Cluster]:
    """A cluster of its own: the session's has no plugins, as a site without pyxis."""
    plugstack = (enroot / "plugstack.conf").read_text()
    path = f"{pyxis.BUILT}/bin" if pyxis.BUILT else ""
    seen = [*fixtures.VISIBLE, enroot]
    with Cluster(visible=seen, plugstack=plugstack, root=slurm_root, path=path) as running:
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
    put_image(containers, "images/slow", NVIDIA, "create 3\n")
    put_image(containers, "images/lasting", {}, "remove 600\n")
    put_image(containers, "images/lingering", {}, "remove 2 n2\n")
    put_image(containers, "images/folder", {}, "workdir /workspace\n")
    pyxis.put_broken_images(
        containers, "images/nvidia", truncated="images/truncated", damaged="images/damaged"
    )
    program = Path(pyxis.__file__).with_name("apptainer.py").read_text()
    containers.put("bin/apptainer", f"#!{sys.executable}\n{program}", mode=0o755)
    containers.put("work/sbatchgen.yaml", "profile: ./enroot.yaml\n")
    containers.put("work/probe.py", PROBE)
    site = Site(containers, containers.home / "work")
    drawing = ("--synthetic", "--train", "80", "--test", "16")
    site.sbatchgen("data", "mnist", "--to", "data", *drawing, check=True)
    return site


def submit_ddp(site: Site, name: str, launcher: str, *flags: str) -> int:
    shape = ("ddp", "--nodes", "2", "--gpus-per-node", f"{PROCESSES[name]}", "--launcher", launcher)
    return site.submit(name, *shape, *flags)


@pytest.fixture(scope="module")
def trained(site: Site, slurm_release: str) -> dict[str, int]:
    """Trainings that only have to end well, all started at once."""
    launchers = ("torchrun",) if slurm_release == LATER else ("torchrun", "srun", "spawn")
    jobs = {f"ddp-{launcher}": submit_ddp(site, f"ddp-{launcher}", launcher, *CPU) for launcher in launchers}
    in_apptainer = ("--profile", "./apptainer.yaml", *CPU)
    jobs["apptainer-ddp"] = submit_ddp(site, "apptainer-ddp", "torchrun", *in_apptainer)
    if slurm_release == LATER:
        return jobs
    jobs["single"] = site.submit("single", "single", *AS_NVIDIA, *CPU)
    jobs["single-hostile"] = site.submit("single-hostile", "single", *CPU)
    jobs["apptainer-single"] = site.submit("apptainer-single", "single", *in_apptainer)
    return jobs


@pytest.mark.parametrize(
    ("slurm_release", "name"),
    [*product([FIRST], PROCESSES), (LATER, "ddp-torchrun"), (LATER, "apptainer-ddp")],
    indirect=["slurm_release"],
)
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


@on_one_release
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
    tasks = probe(site, f"probe-{runtime}-{launcher}", *shape, *profile, API_KEY=COLOUR)
    places = sorted((int(task["RANK"]), int(task["LOCAL_RANK"]), task["WORLD_SIZE"]) for task in tasks)
    assert places == [(0, 0, "4"), (1, 1, "4"), (2, 0, "4"), (3, 1, "4")]
    assert len({(task["MASTER_ADDR"], task["MASTER_PORT"]) for task in tasks}) == 1
    assert "wrong" not in tasks[0]["MASTER_ADDR"]
    for task in tasks:
        assert (task["OMP_NUM_THREADS"], task["GLOO_SOCKET_IFNAME"]) == ("1", "hsn0")
        assert (task["COLOUR"], task["SHAPE"]) == (COLOUR, "the image's")
        assert task["API_KEY"] == COLOUR
        assert task["cwd"] == str(site.folder)
        if runtime == "enroot":
            assert task["PYTHONPATH"].endswith(f"{QUICKLY}:/image/lib"), "the job's before the image's"
            assert task["HOME"] == str(site.folder / "runs" / f"probe-enroot-{launcher}")


@on_one_release
def test_only_what_is_mounted_is_there(site: Site) -> None:
    (task,) = probe(site, "probe-sight", "single")
    assert (task["home"], task["LANG"]) == ([".bashrc", "work"], None)
    images = site.cluster.home / "images"
    (task,) = probe(site, "probe-bind", "single", "--bind", str(images))
    assert task["home"] == [".bashrc", "images", "work"]


@on_one_release
@pytest.mark.parametrize("runtime", ["enroot", "apptainer"])
def test_a_snapshot_of_the_code_is_there(site: Site, runtime: str) -> None:
    for words in (["init", "--quiet"], ["add", "probe.py"]):
        site.cluster.run(["git", *words], cwd=site.folder, check=True)
    name = f"probe-snapshot-{runtime}"
    (task,) = probe(site, name, "single", "--profile", f"./{runtime}.yaml", "--snapshot")
    (place,) = (site.folder / "runs" / name).glob("code-*")
    assert task["cwd"] == str(place)


@pytest.fixture(scope="module")
def away(site: Site) -> Path:
    """A run folder outside the folder of submission, after a training whose data lay outside too."""
    site.cluster.run(["cp", "-r", "data", "../elsewhere"], cwd=site.folder, check=True)
    flags = (*AS_NVIDIA, "--run-dir", "${HOME}/runs/away", "--data-dir", "${HOME}/elsewhere")
    site.cluster.wait(site.submit("away", "single", *flags, *CPU), {"COMPLETED"})
    return site.cluster.home / "runs/away"


@on_one_release
def test_run_folder_and_data_outside_the_folder_of_submission(away: Path) -> None:
    assert json.loads((away / "status.json").read_text())["state"] == "done"
    assert (away / "checkpoints/best.pt").exists()


@on_one_release
def test_a_checkpoint_of_another_run_is_there(site: Site, away: Path) -> None:
    flags = (*AS_NVIDIA, "--resume", str(away / "checkpoints/best.pt"), *CPU)
    site.cluster.wait(site.submit("resumed", "single", *flags), {"COMPLETED"})
    assert "Resuming from" in site.log("resumed")


@on_one_release
def test_a_folder_with_an_odd_name_is_mounted(site: Site) -> None:
    odd = Site(site.cluster, site.cluster.put("a b'c&d/probe.py", PROBE).parent)
    (task,) = probe(odd, "probe-odd", "single", "--profile", f"{site.folder}/enroot.yaml")
    assert task["cwd"] == str(odd.folder)


@on_one_release
def test_a_relative_image_counts_from_the_folder_of_submission(site: Site) -> None:
    put_image(site.cluster, "work/here.sqsh", HOSTILE | {"SHAPE": "of here"})
    (task,) = probe(site, "probe-relative", "single", "--image", "./here.sqsh")
    assert task["SHAPE"] == "of here"


@on_one_release
@pytest.mark.parametrize("runtime", ["enroot", "apptainer"])
def test_a_missing_image_is_told_before_anything_starts(site: Site, runtime: str) -> None:
    name = f"missing-{runtime}"
    flags = ("--profile", f"./{runtime}.yaml", "--image", "/nowhere/image")
    record = site.cluster.wait(site.submit(name, "single", *flags), {"FAILED"})
    assert record["ExitCode"] == "1:0"
    *_, last = site.log(name).splitlines()
    assert last == "error: can't read the image /nowhere/image: see sbatchgen image --help"


@on_one_release
@pytest.mark.parametrize(
    ("runtime", "name", "said"),
    [
        ("apptainer", "a,b", "a folder with a comma or a colon in its name can't be mounted"),
        ("enroot", "a,b", "can't mount a folder with , : \" $ or ` in its name"),
        ("enroot", "a$HOME", "can't mount a folder with , : \" $ or ` in its name"),
        ("enroot", "a`b", "can't mount a folder with , : \" $ or ` in its name"),
    ],
)
def test_a_folder_that_can_not_be_mounted_is_refused(site: Site, runtime: str, name: str, said: str) -> None:
    """Review finds it where the job is submitted from; a script that was rendered elsewhere finds it itself."""
    odd = Site(site.cluster, site.cluster.put(f"{runtime}/{name}/probe.py", PROBE).parent)
    flags = ("single", "--trainer", "probe.py", "--profile", f"{site.folder}/{runtime}.yaml")
    refused = odd.sbatchgen("submit", *flags, "--yes")
    assert f"the working folder {odd.folder} can't be mounted: " in refused.stderr
    script = site.sbatchgen("render", *flags, check=True).stdout
    record = odd.cluster.wait(odd.cluster.sbatch(cwd=odd.folder, script=script), {"FAILED"})
    assert Path(record["StdOut"]).read_text().endswith(f"error: {said}\n")


def ends_with(site: Site, job: int, name: str) -> str:
    """The last line of a job that fails without a step."""
    record = site.cluster.wait(job, {"FAILED"})
    assert record["ExitCode"] == "1:0"
    log = site.log(name)
    assert "slurmstepd" not in log
    assert "srun:" not in log
    return log.splitlines()[-1]


@on_one_release
def test_what_can_not_be_mounted_is_told_before_the_image_is_unpacked(site: Site) -> None:
    job = site.submit("unmounted", "single", "--image", "${HOME}/images/slow", "--bind", "/nowhere:/x")
    assert ends_with(site, job, "unmounted") == "error: can't mount /nowhere: it does not exist"


def test_a_site_without_pyxis_is_told_so(cluster: Cluster, site: Site) -> None:
    script = site.sbatchgen("render", "single", check=True).stdout
    cluster.put("images/enroot", "")
    cluster.put("work/data/x", "")
    cluster.put("work/job.slurm", script)
    job = cluster.sbatch("job.slurm", cwd=cluster.home / "work")
    record = cluster.wait(job, {"FAILED"})
    assert "error: no pyxis 0.15: not installed, or " in Path(record["StdOut"]).read_text()


@on_one_release
@pytest.mark.parametrize("mode", ["cpu", "ddp"])
def test_a_job_without_gpus_runs_where_there_are_none(site: Site, mode: str) -> None:
    """The image asks for all GPUs, and the node has no tools to give them."""
    profile = (site.folder / "enroot.yaml").read_text().replace("gpus_per_node: 4, shards_per_gpu: 16", "")
    site.cluster.put("work/cpus.yaml", profile)
    shape = ("--nproc-per-node", "1", "--nodes", "1") if mode == "ddp" else ()
    flags = (*AS_NVIDIA, "--profile", "./cpus.yaml", "--nodelist", "n4", *shape)
    (task,) = probe(site, f"probe-{mode}", mode, *flags)
    assert task["SLURMD_NODENAME"] == "n4"
    assert task["CUDA_VISIBLE_DEVICES"] == ("" if mode == "cpu" else None)


def test_an_own_trainer_that_starts_its_processes_gets_no_ranks(site: Site) -> None:
    """Neither the nodes' ones, which pyxis sets, nor the image's."""
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    shape = ("ddp", "--gpus-per-node", "2", "--launcher", "spawn")
    tasks = probe(site, "probe-spawn", *shape, "--nodes", "2", "--nodelist", "n1,n2", *AS_NVIDIA)
    assert [[task[name] for name in ranks] for task in tasks] == [[None] * 3] * 2
    assert {task["MASTER_ADDR"] for task in tasks} == {"n1"}
    assert {task["MASTER_PORT"] for task in tasks} != {"61001"}
    (found_alone,) = probe(site, "probe-spawn-alone", *shape, "--nodes", "1", *AS_NVIDIA)
    assert [found_alone[name] for name in (*ranks, "MASTER_ADDR", "MASTER_PORT")] == [None] * 5


@on_one_release
def test_a_container_left_behind_is_replaced(site: Site, enroot: Path) -> None:
    """As by a node that died, and came back with its disk, or by a requeue while it was being removed."""
    flags = ("--trainer", "probe.py", *AS_NVIDIA, "--nodelist", "n3", "--begin", "now+1hour")
    job = int(site.sbatchgen("submit", "single", "--yes", "--job-name", "left", *flags, check=True).stdout)
    left = enroot / "store" / "n3" / f"pyxis_{job}.0"
    left.mkdir(parents=True)
    of_user = site.folder.stat().st_uid
    for folder in (left.parent, left):
        os.chown(folder, of_user, of_user)
    site.cluster.run(["scontrol", "update", f"jobid={job}", "starttime=now"], check=True)
    site.cluster.wait(job, {"COMPLETED"})
    assert '"cwd"' in site.log("left")


@on_one_release
def test_variables_of_pyxis_are_not_those_of_the_job(site: Site) -> None:
    """They act like options, of the batch script, too."""
    asked = {"PYXIS_CONTAINER_WRITABLE": "1"}
    image = {"PYXIS_CONTAINER_IMAGE": f"{site.cluster.home}/images/nvidia"}
    (task,) = probe(site, "probe-pyxis", "single", *AS_NVIDIA, **asked, **image)
    assert not task["writable"]
    script = site.sbatchgen("render", "single", "--trainer", "probe.py", *AS_NVIDIA, check=True).stdout
    site.cluster.put("work/plain.slurm", script)
    record = site.cluster.wait(site.cluster.sbatch("plain.slurm", cwd=site.folder, env=asked), {"COMPLETED"})
    assert '"writable": false' in Path(record["StdOut"]).read_text()
    record = site.cluster.wait(site.cluster.sbatch("plain.slurm", cwd=site.folder, env=image), {"FAILED"})
    *_, last = Path(record["StdOut"]).read_text().splitlines()
    assert last == "error: no pyxis 0.15: not installed, or PYXIS_CONTAINER_IMAGE is set"


@on_one_release
def test_a_value_of_several_lines_is_refused(site: Site) -> None:
    """Enroot would take its lines for variables."""
    ask = ("submit", "single", "--trainer", "probe.py", "--job-name", "lines", "--yes", "--env", "API_KEY")
    done = site.sbatchgen(*ask, check=True, env={"API_KEY": "a\nSHAPE=b"})
    said = ends_with(site, int(done.stdout), "lines")
    assert said == "error: API_KEY has line breaks: Enroot would take its lines for variables"


@on_one_release
def test_variables_of_the_shell_that_name_what_is_not_mounted_stay_outside(site: Site) -> None:
    """A locale that the node lacks would end the start of the container, one time in twenty."""
    away, home = "/nowhere/x", site.cluster.home
    caches = {"HF_HOME": away, "XDG_CACHE_HOME": away, "TORCH_HOME": str(home / "work" / "torch")}
    others = dict.fromkeys(("BASH_ENV", "CONDA_PREFIX", "SSL_CERT_FILE", "VIRTUAL_ENV"), away)
    names = " ".join(["PWD", *caches, *others])
    text = f"import json, os; print(json.dumps({{name: os.environ.get(name) for name in {names!r}.split()}}))"
    site.cluster.put("work/shell.py", text)
    ask = (
        "submit",
        "single",
        "--trainer",
        "shell.py",
        "--job-name",
        "shell",
        "--yes",
        "--env",
        "HF_HOME=/of/job",
    )
    done = site.sbatchgen(*ask, check=True, env={**caches, **others, "LC_ALL": "xx_YY"})
    site.cluster.wait(int(done.stdout), {"COMPLETED"})
    seen = json.loads(site.log("shell").splitlines()[-1])
    kept = {"PWD": str(site.folder), "HF_HOME": "/of/job", "TORCH_HOME": caches["TORCH_HOME"]}
    assert {name: value for name, value in seen.items() if value} == kept


@on_one_release
@pytest.mark.skipif(bool(pyxis.BUILT), reason="only the stand-in can be asked to remove slowly")
def test_a_training_that_has_saved_is_requeued_before_its_container_is_removed(site: Site) -> None:
    """The removal of gigabytes may take longer than what is left before the time limit."""
    put_image(site.cluster, "images/heavy", NVIDIA, "remove 600\n")
    flags = ("--image", "${HOME}/images/heavy", "--", "--epochs", "9", "--step-delay", "0.2")
    job = site.submit("heavy", "single", *flags)
    site.reach_step("heavy", 5)
    site.cluster.run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
    site.cluster.until(lambda: site.cluster.job(job)["Restarts"] == "1", "restart")
    assert "Requeueing: restart 1 of at most" in site.log("heavy")
    site.cluster.run(["scancel", str(job)], check=True)


@on_one_release
def test_a_command_runs_in_the_container_of_a_run(site: Site) -> None:
    """The stand-in has no enroot on the node: the command runs there, and says so."""
    site.cluster.put("work/waits.py", "import time; print('up', flush=True); time.sleep(600)")
    flags = ("--trainer", "waits.py", "--job-name", "entered", "--yes", "--env", "INSIDE=yes")
    job = int(site.sbatchgen("submit", "single", *AS_NVIDIA, *flags, check=True).stdout)
    site.cluster.until(lambda: "up" in site.log("entered"), "start of the trainer")
    done = site.sbatchgen("exec", "entered", "--", "sh", "-c", "echo $INSIDE $PYTORCH_VERSION; exit 3")
    site.cluster.run(["scancel", str(job)], check=True)
    assert done.returncode == 3
    assert done.stdout == ("yes 2.3.0\n" if pyxis.BUILT else "\n")
    assert ("no container of Enroot found on n" in done.stderr) == (not pyxis.BUILT)


def test_the_training_of_a_shell_finds_in_the_container_what_the_job_finds(site: Site) -> None:
    site.cluster.put("work/finds.py", test_shell.PROBE)
    shape = ("ddp", "--nodes", "2", "--gpus-per-node", "2", "--launcher", "srun", "--trainer", "finds.py")
    test_shell.finds_the_same(site, *shape, *test_shell.HOUR, ranks=4)


def test_a_shell_runs_in_the_container_of_its_job(site: Site) -> None:
    """With the mounts and the variables of the job; its training is started from there on all nodes."""
    site.cluster.put("work/says.py", "import os, sys; print(os.environ['COLOUR'], *sys.argv[1:], flush=True)")
    two = ("ddp", "--nodes", "2", "--gpus-per-node", "1", "--launcher", "srun", "--trainer", "says.py")
    words = (
        "shell",
        *two,
        "--env",
        "COLOUR=the job's",
        "--env",
        "INSIDE=yes",
        "--job-name",
        "shell",
        "--yes",
    )
    ask = "echo $INSIDE $API_KEY, $PWD, $SLURMD_NODENAME $SLURM_JOB_NODELIST; "
    ask += "cat probe.py >/dev/null && train --epochs 1; exit 3"
    done = site.sbatchgen(*words, input=f"{ask}\n")
    first, *others = done.stdout.splitlines()
    *said, nodes = first.split()
    assert " ".join(said) == f"yes the image's, {site.folder}, {hosts(nodes)[0]}"
    assert others == ["the job's --epochs 1"] * 2
    assert done.returncode == 3


@on_one_release
def test_an_image_that_is_cut_off_is_diagnosed(site: Site) -> None:
    site.cluster.wait(site.submit("cut-off", "single", "--image", "${HOME}/images/truncated"), {"FAILED"})
    diagnosis = site.sbatchgen("diagnose", "cut-off").stdout
    assert "most likely: the container did not start: its image is incomplete or damaged" in diagnosis
    assert "training" not in diagnosis


@on_one_release
@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_a_container_that_does_not_start_on_one_node_ends_the_job_with_its_status(
    site: Site, launcher: str
) -> None:
    """Slurm ends the other tasks by a signal, and srun reports the highest status: 143 or 137."""
    site.cluster.put("work/sleeps.py", "import time; time.sleep(600)")
    flags = (
        "--trainer",
        "sleeps.py",
        "--job-name",
        "half",
        "--launcher",
        launcher,
        "--resume",
        "auto",
        "--yes",
        *AS_NVIDIA,
    )
    where = ("--nodelist", "n[3-4]", "--nodes", "2", "--gpus-per-node", "1")  # n4 has no tools for GPUs
    job = int(site.sbatchgen("submit", "ddp", *flags, *where, check=True).stdout)
    assert site.cluster.wait(job, {"FAILED"})["ExitCode"] == "1:0", site.log("half")


def test_a_cancelled_training_saves(site: Site) -> None:
    job = site.submit(
        "cancelled", "ddp", "--nodes", "2", "--gpus-per-node", "1", "--", "--epochs", "9", "--step-delay", "0.2",
    )  # fmt: skip
    site.reach_step("cancelled", 5)
    site.cluster.run(["scancel", str(job)], check=True)
    site.cluster.wait(job, {"CANCELLED"})
    site.cluster.until(lambda: site.status("cancelled")["state"] == "preempted", "state preempted")
    assert int(str(site.status("cancelled")["step"])) >= 5


# What the tests above rest on: the stand-in itself; all but some hold for the real ones, too.

only_stand_in = pytest.mark.skipif(
    bool(pyxis.BUILT), reason="takes time that only the stand-in can be asked for"
)

WAITED = re.compile(r"^srun: job \d+ (queued and waiting for|has been allocated) resources\n", re.MULTILINE)


def srun(site: Site, *arguments: str, **env: str) -> tuple[int, str]:
    """Exit status and output, less the lines of an srun that waits for the node of the one before."""
    image = (
        ()
        if any(argument.startswith("--container-image") for argument in arguments)
        else (of_image(site, "enroot"),)
    )
    done = site.cluster.run(["srun", *image, *arguments], cwd=site.folder, env=env)
    return done.returncode, re.sub(WAITED, "", done.stdout + done.stderr)


def of_image(site: Site, name: str) -> str:
    return f"--container-image={site.cluster.home}/images/{name}"


@on_one_release
@pytest.mark.parametrize(
    ("option", "said", "status"),
    [
        ("--container-image=/nowhere.sqsh", "    [ERROR] No such file or directory: /nowhere.sqsh", 1),
        ("--container-image={home}/images/damaged", "    [ERROR] Invalid image format", 1),
        ("--container-image={home}/images/truncated", "    FATAL ERROR: File system corruption detected", 1),
        ("--container-image=images/enroot", "failed to import docker image: images/enroot", 1),
        ("--container-mounts=/nowhere:/x", "source path does not exist: /nowhere", 1),
        ("--container-mounts=work:/x", "mount source must be a relative path, an absolute path, ", 255),
        ("--container-mounts=/usr:", "invalid format: /usr:", 255),
        ("--container-mounts=/usr:/x:nonsense", "", 0),
        ("--container-mounts=/usr:/$x", ": line 2: x: unbound variable", 1),
        ('--container-mounts=/usr:/"x', "    [ERROR] Invalid argument: /tmp/.enroot_config_", 1),
        ("--container-workdir=/nowhere", "couldn't chdir to /nowhere: No such file or directory", 1),
    ],
)
def test_the_stand_in_refuses(site: Site, option: str, said: str, status: int) -> None:
    given, output = srun(site, option.replace("{home}", str(site.cluster.home)), "true")
    assert given == status
    assert said in output


@on_one_release
def test_the_stand_in_hides_what_is_not_mounted(site: Site) -> None:
    home = site.cluster.home
    mounts = f"--container-mounts={home}/images:/images:ro,./data:/data:,tmpfs:/own"
    look = f"pwd; ls -d /images/enroot; ls /data /etc/slurm; ls -A {home}; touch /own/x; touch /images/x {home}/x"
    status, output = srun(site, "--no-container-mount-home", mounts, "sh", "-c", look)
    assert status == 1
    assert output.startswith("/\n/images/enroot\n/data:\n")
    assert "\n.bashrc\n" in output, "a skeleton"
    assert "touch: cannot touch '/images/x': Read-only file system" in output
    if not pyxis.BUILT:  # whose home is below /tmp here, which can be written
        assert f"touch: cannot touch '{home}/x': Read-only file system" in output
    assert srun(site, "ls", str(home))[0] == 0, "a site that mounts homes, unless asked not to"


@only_stand_in
@on_one_release
def test_the_stand_in_has_the_path_and_the_folder_of_the_image(site: Site) -> None:
    status, output = srun(site, of_image(site, "folder"), "sh", "-c", "pwd; echo $PATH; command -v srun")
    assert (status, output.splitlines()[:2]) == (
        127, ["/workspace", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    )  # fmt: skip


@on_one_release
def test_the_stand_in_takes_lines_of_a_value_for_variables(site: Site) -> None:
    ask = ("--container-env=A", "sh", "-c", 'echo "$A $SHAPE"')
    assert srun(site, *ask, A="a\nSHAPE=b") == (0, "a\nSHAPE=b b\n")


@on_one_release
def test_the_stand_in_wants_tools_for_gpus(site: Site) -> None:
    ask = ("--nodelist=n4", of_image(site, "nvidia"), "true")
    status, output = srun(site, *ask)
    assert (status, "98-nvidia.sh exited with return code 1" in output) == (1, True)
    assert srun(site, *ask, NVIDIA_VISIBLE_DEVICES="void") == (0, "")


@on_one_release
def test_the_stand_in_gives_ranks_of_tasks(site: Site) -> None:
    put_image(site.cluster, "images/torch", {"PYTORCH_VERSION": "2.3.0", "RANK": "7"})
    ask = (
        "--nodes=2",
        "--ntasks=2",
        of_image(site, "torch"),
        "sh",
        "-c",
        "echo $RANK $LOCAL_RANK $WORLD_SIZE",
    )
    assert sorted(srun(site, *ask)[1].splitlines()) == ["0 0 2", "1 0 2"]


@only_stand_in
@on_one_release
def test_the_stand_in_counts_the_removal_of_a_container_as_part_of_its_step(site: Site) -> None:
    """The last task of a node removes it, and `srun --wait` would end that."""
    ask = ("--ntasks=2", "--nodes=2", "--nodelist=n1,n2", of_image(site, "lingering"), "true")
    assert srun(site, "--wait=60", *ask)[0] == 0
    assert "First task exited 1s ago" in srun(site, "--wait=1", *ask)[1]


@only_stand_in
@on_one_release
def test_the_stand_in_leaves_a_container_whose_removal_is_killed(site: Site, enroot: Path) -> None:
    step = f"srun {of_image(site, 'lasting')} --container-mounts=$PWD:/work sh -c 'echo >/work/lasts'"
    job = site.cluster.sbatch(f"--wrap={step}", "--nodelist=n3", cwd=site.folder)
    left = enroot / "store" / "n3" / f"pyxis_{job}.0"
    site.cluster.until((site.folder / "lasts").exists, "a task that has ended")

    def ends() -> bool:
        site.cluster.run(["scancel", "--signal=KILL", f"{job}.0"])
        return site.cluster.job(job)["JobState"] != "RUNNING"

    site.cluster.until(ends, "end of the step")
    assert left.exists()


@on_one_release
def test_the_stand_in_keeps_a_named_container_with_its_old_image(site: Site, enroot: Path) -> None:
    named = ("--nodelist=n2", "--container-name=mine")
    assert srun(site, *named, "true")[0] == 0
    assert (enroot / "store" / "n2" / "pyxis_mine").exists()
    assert srun(site, *named, of_image(site, "damaged"), "true")[0] == 0


@only_stand_in
@on_one_release
def test_the_stand_in_fails_if_a_signal_comes_while_it_unpacks(site: Site, enroot: Path) -> None:
    put_image(site.cluster, "images/slower", {}, "create 600\n")
    job = site.cluster.sbatch(f"--wrap=srun {of_image(site, 'slower')} true", "--nodelist=n3")
    unpacked = enroot / "store" / "n3" / f"pyxis_{job}.0"
    site.cluster.until(unpacked.exists, "a container that is being made")
    site.cluster.run(["scancel", "--signal=USR1", str(job)], check=True)
    record = site.cluster.wait(job, {"FAILED"})
    assert record["ExitCode"] == "1:0"
    assert not unpacked.exists()
