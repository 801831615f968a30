"""Jobs with what starts a program at large centres: the container engine of CSCS, Shifter, Singularity, wrappers.

None of them can be installed here: stand-ins do what their documentation says of command lines and variables.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import apptainer, fixtures, pyxis, shifter
from tests.cluster.fixtures import VISIBLE, on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import EPOCH, PROFILE, Site
from tests.training.forks import QUICKLY

pytestmark = on_one_release
IMAGE = "RANK=5\nWORLD_SIZE=77\nMASTER_ADDR=wrong\nMASTER_PORT=1\nCOLOUR=the image's\nOMP_NUM_THREADS=99\n"
COLOUR = 'the user\'s, $(touch pwned) `id` "$HOME" \\ really'
PROBE = """
import json, os, sys
names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS COLOUR API_KEY IN_IMAGE STARTED_BY WRAPPED"
names += " ACTIVATED HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES"
found = {name: os.environ.get(name) for name in names.split()} | {"cwd": os.getcwd()}
os.write(1, f"{json.dumps(found)}\\n".encode())  # in one piece: the processes of a node share the log
"""
# What a site's script for Apptainer does with its two variables, and a wrapper with its words.
WRAPPER = '#!/bin/bash\nverb=$1; shift\nexec apptainer "$verb" $SING_FLAGS "$SING_IMAGE" "$@"\n'
SITE_PYTHON = '#!/bin/bash\nexport WRAPPED="$1"; shift\nexec "$@"\n'
ACTIVATE = f"export ACTIVATED=yes\nPATH={sys.prefix}/bin:$PATH\n"
RUNTIMES = {
    "edf": "edf: {environment: ./train.toml}",
    "edf-by-name": "edf: {environment: train}",
    "shifter": "shifter: {image: 'nersc/pytorch:24.08.01', volumes: ['${HOME}:/data']}",
    "prefix": "prefix: {command: [site-python, '--a b']}",
    "singularity": "apptainer: {command: singularity, verb: run, image: '${HOME}/image', binds: ['/usr:/usr:ro']}",
    "wrapper": "apptainer: {command: apptainer_wrapper}",
    "activate": "venv: {activate: true, path: '${HOME}/venv'}",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, slurm_root: Path | None) -> Iterator[Site]:
    """A cluster with the plugins, a user with the programs in ~/bin, and a profile for each runtime."""
    fixtures._need(pyxis.why_not(), what="jobs with plugins on a real Slurm")
    folder = tmp_path_factory.mktemp("engines")
    folder.chmod(0o755)
    pyxis.compile_plugin(Path(pyxis.__file__).with_name("engines.c"), folder / "engines.so", slurm_root)
    with Cluster(
        visible=[*VISIBLE, folder], plugstack=f"required {folder}/engines.so\n", root=slurm_root
    ) as cluster:
        for name, module in (("apptainer", apptainer), ("singularity", apptainer), ("shifter", shifter)):
            program = Path(str(module.__file__)).read_text()
            cluster.put(f"bin/{name}", f"#!{sys.executable}\n{program}", mode=0o755)
        cluster.put("bin/apptainer_wrapper", WRAPPER, mode=0o755)
        cluster.put("bin/site-python", SITE_PYTHON, mode=0o755)
        cluster.put("venv/bin/activate", ACTIVATE)
        for file in ("image.env", "images.env", "work/train.toml", ".edf/train.toml"):
            cluster.put(file, IMAGE)
        cluster.put("image", "squashfs")
        cluster.put("work/probe.py", PROBE)
        text = PROFILE.partition("runtime: venv")[0].replace(", PYTHONPATH: ", ", OTHER: ")
        setup = f'setup: ["export PATH=$HOME/bin:{sys.prefix}/bin:$PATH SING_IMAGE=$HOME/image SING_FLAGS=--nv HIP_VISIBLE_DEVICES=7"]\n'
        for name, facts in RUNTIMES.items():
            runtime = f"runtime: {facts.partition(':')[0]}\nruntimes: {{{facts}}}\n"
            cluster.put(f"work/{name}.yaml", text + setup + runtime)
        site = Site(cluster, cluster.home / "work")
        drawing = ("--synthetic", "--train", "80", "--test", "16")
        cluster.put("work/sbatchgen.yaml", "profile: ./edf.yaml\n")
        site.sbatchgen("data", "mnist", "--to", "data", *drawing, check=True)
        yield site


@pytest.fixture(scope="module")
def probes(site: Site) -> dict[str, int]:
    """A job for each runtime, and one with GPUs of AMD; they run side by side."""
    profile = (site.folder / "prefix.yaml").read_text()
    site.cluster.put("work/amd.yaml", profile + "gpu_vendor: amd\n")
    ask = ("submit", "ddp", "--nodes", "2", "--gpus-per-node", "2", "--launcher", "srun")
    given = ("--env", f"COLOUR={COLOUR}", "--env", "API_KEY", "--trainer", "probe.py", "--yes")
    ids = {}
    for name in (*RUNTIMES, "amd"):
        words = (*ask, *given, "--job-name", f"probe-{name}", "--profile", f"./{name}.yaml")
        ids[name] = int(site.sbatchgen(*words, check=True, env={"API_KEY": "secret"}).stdout)
    return ids


def found(site: Site, probes: dict[str, int], name: str) -> list[dict[str, Any]]:
    """What each process of a job finds around it."""
    site.cluster.wait(probes[name], {"COMPLETED"})
    return [json.loads(line) for line in site.log(f"probe-{name}").splitlines() if line.startswith("{")]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_rank_gets_the_jobs_variables_in_the_folder_of_submission(
    site: Site, probes: dict[str, int], runtime: str
) -> None:
    tasks = found(site, probes, runtime)
    places = sorted((int(task["RANK"]), int(task["LOCAL_RANK"]), task["WORLD_SIZE"]) for task in tasks)
    assert places == [(0, 0, "4"), (1, 1, "4"), (2, 0, "4"), (3, 1, "4")]
    assert len({(task["MASTER_ADDR"], task["MASTER_PORT"]) for task in tasks}) == 1
    assert tasks[0]["MASTER_ADDR"] not in ("wrong", None)
    seen = {
        "shifter": {"IN_IMAGE": "nersc/pytorch:24.08.01"},
        "prefix": {"WRAPPED": "--a b"},
        "singularity": {"STARTED_BY": "run"},
        "wrapper": {"STARTED_BY": "exec"},
        "activate": {"ACTIVATED": "yes"},
    }.get(runtime, {})
    for task in tasks:
        assert (task["COLOUR"], task["API_KEY"], task["OMP_NUM_THREADS"]) == (COLOUR, "secret", "1")
        assert task["cwd"] == str(site.folder)
        assert {name: task[name] for name in seen} == seen


def test_amd_gpus_have_one_mask(site: Site, probes: dict[str, int]) -> None:
    nvidia, amd = (found(site, probes, name) for name in ("prefix", "amd"))
    assert {task["HIP_VISIBLE_DEVICES"] for task in nvidia} == {"7"}
    assert {(task["HIP_VISIBLE_DEVICES"], task["CUDA_VISIBLE_DEVICES"]) for task in amd} == {(None, None)}
    for task in (*nvidia, *amd):  # two GPUs: which two depends on what else runs
        assert re.fullmatch(r"[0-3],[0-3]", task["ROCR_VISIBLE_DEVICES"]), task


@pytest.mark.parametrize("runtime", ["edf", "shifter"])
def test_the_bundled_trainer_trains(site: Site, runtime: str) -> None:
    flags = ("--nodes", "2", "--gpus-per-node", "1", "--profile", f"./{runtime}.yaml")
    job = site.submit(
        f"trains-{runtime}", "ddp", *flags, "--env", f"PYTHONPATH={QUICKLY}", "--", "--epochs", "1"
    )
    site.cluster.wait(job, {"COMPLETED"})
    assert len(EPOCH.findall(site.log(f"trains-{runtime}"))) == 1


@pytest.mark.parametrize(
    ("runtime", "flags", "said"),
    [
        ("edf", ("--edf", "./absent.toml"), "can't read the environment"),
        ("activate", ("--venv", "absent"), "no virtual environment at "),
    ],
)
def test_what_is_missing_ends_the_job_with_a_line(
    site: Site, runtime: str, flags: tuple[str, ...], said: str
) -> None:
    name = f"missing-{runtime}"
    job = site.submit(name, "single", "--profile", f"./{runtime}.yaml", *flags)
    site.cluster.wait(job, {"FAILED"})
    assert said in site.log(name).splitlines()[-1]
