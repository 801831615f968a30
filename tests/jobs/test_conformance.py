"""One job, five runtimes: the same processes start, with the same arguments, environment, folder and exit status.

On a real Slurm, with a real Apptainer; pyxis and conda are stand-ins (tests/cluster). What each process finds is put beside what
it finds without a container or an environment, and every difference has its reason here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from tests.cluster import conda as stand_in
from tests.cluster import fixtures, pyxis
from tests.cluster import site as machine
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import Site
from tests.training.forks import QUICKLY

INTERPRETER = [Path(sys.prefix), Path(sys.base_prefix)]
SHAPES = {"single": 1, "torchrun": 4, "srun": 4, "spawn": 2}  # processes that are the job's own
STATUS = 3
HOSTILE = "a  b, 'c' \"d\" $HOME `id` $(id) \\ * é ; # {x} %s"
ARGUMENTS = ["--lr", "0.1", HOSTILE, "", "--n", "{run_dir}/x", "{data_dir}", "--resume={resume}"]
# Each process leaves what it finds, waits for the others and ends; files, since a log is shared.
PROBE = """
import json, os, pathlib, sys, time
run, size = pathlib.Path(os.environ["RUN_DIR"]), int(sys.argv.pop(1))
found = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}
name = f"{os.environ.get('SLURM_PROCID', 0)}-{os.environ.get('LOCAL_RANK', 0)}.json"
(run / f"new-{name}").write_text(json.dumps(found))
(run / f"new-{name}").rename(run / f"found-{name}")
while len(list(run.glob("found-*"))) < size:
    time.sleep(0.05)
sys.exit(3)
"""
# What the images set: the job's own values win, where it has any.
IMAGE = {
    "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
    "RANK": "77",
    "WORLD_SIZE": "77",
    "MASTER_ADDR": "wrong",
    "MASTER_PORT": "1",
    "OMP_NUM_THREADS": "99",
    "VALUE": "the image's",
    "OF_IMAGE": "1",
}
# Variables that differ, and why. MASTER_PORT comes from the number of the job.
DIFFERENCES = {
    "SLURM_(JOB_?ID|JOB_(START|END)_TIME|TASK_PID|SRUN_COMM_PORT|JOB_SLUID|STEP_LAUNCHER_PORT)": "of each job",
    "SLURM_(JOB|STEP)_GPUS|CUDA_VISIBLE_DEVICES": "the GPUs that were free",
    "GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK": "the same GPUs, for other makes",
    "SBATCHGEN_PARENT|TORCHELASTIC_ERROR_FILE": "a process and a folder of torchrun",
    "PATH|VIRTUAL_ENV|CONDA_.*": "where a runtime has its programs",
    "OF_IMAGE|(APPTAINER|SINGULARITY|NVIDIA|ENROOT).*": "of the image, and what says which GPUs and values it gets",
    "LD_LIBRARY_PATH|PROMPT_COMMAND|PS1|USER_PATH": "of Apptainer, which has GPUs' libraries in a folder",
    "HOME": "in an image of Enroot the home can't be written: it is the run folder",
    "LANG|LC_CTYPE": "pyxis leaves out the locale (its README); python then sets LC_CTYPE",
}


@pytest.fixture(scope="module", params=["22.05", "26.05"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of each release: where the later one is, there is Apptainer."""
    fixtures._need(machine.why_not(), what=fixtures.JOBS)
    if request.param == "26.05":
        with Cluster(visible=fixtures.VISIBLE, root=request.getfixturevalue("later_root")) as cluster:
            prepare(cluster, {"apptainer": folder_image(cluster)})
            yield Site(cluster, cluster.home / "work")
        return
    fixtures._need(pyxis.why_not(), what="jobs in containers on a real Slurm")
    folder = tmp_path_factory.mktemp("pyxis")
    plugstack = pyxis.build(folder, contents=INTERPRETER, nvidia=Cluster.nodes)
    with Cluster(visible=[*fixtures.VISIBLE, folder], plugstack=plugstack) as cluster:
        stand_ins(cluster)
        conda = {"root": "${HOME}/anaconda3", "env": "train"}
        enroot = {"image": "${HOME}/images/image", "mounts": [str(QUICKLY)]}
        prepare(cluster, {"venv": {"path": sys.prefix}, "conda": conda, "enroot": enroot})
        yield Site(cluster, cluster.home / "work")


def folder_image(cluster: Cluster) -> dict[str, object]:
    """A real image of Apptainer, a folder, into which this machine's programs are bound."""
    lines = "".join(f"export {name}={quote(value)}\n" for name, value in IMAGE.items())
    cluster.put("images/source/.singularity.d/env/90-environment.sh", lines)
    folders, links = (
        ("usr", "tmp", "var/tmp", "proc", "sys", "dev", "etc"),
        ("usr/bin", "usr/lib", "usr/lib64"),
    )
    for command in (
        ("mkdir", "-p", *folders),
        ("ln", "-s", *links, "."),
        ("apptainer", "build", "--sandbox", "../image", "."),  # else it has no place for the job's variables
    ):
        cluster.run(command, cwd=cluster.home / "images/source", check=True)
    return {"image": "${HOME}/images/image", "binds": ["/usr", *map(str, INTERPRETER), str(QUICKLY)]}


def stand_ins(cluster: Cluster) -> None:
    """Put the programs that replace conda and an image of Enroot."""
    program = Path(stand_in.__file__).read_text()
    cluster.put("anaconda3/bin/conda", f"#!{sys.executable}\n{program}", mode=0o755)
    for prefix in ("", "envs/train/"):
        cluster.put(f"anaconda3/{prefix}conda-meta/history", "")
        cluster.put(
            f"anaconda3/{prefix}bin/python3", f'#!/bin/bash\nexec {sys.executable} "$@"\n', mode=0o755
        )
    cluster.put("images/image", "squashfs, to the end")
    cluster.put("images/image.env", "".join(f"{name}={value}\n" for name, value in IMAGE.items()))


def prepare(cluster: Cluster, runtimes: Mapping[str, Mapping[str, object]]) -> None:
    """Put the trainer, and a profile and the jobs for each of the runtimes and the host."""
    cluster.put("work/probe.py", PROBE)
    cluster.put("work/data/x", "")
    for runtime in ("host", *runtimes):
        profile = {
            "name": runtime,
            "url": "https://slurm.schedmd.com",
            "checked": "2026-11-20",
            "partitions": {"gpu": {"gpus_per_node": 4, "cpus_per_node": 8}},
            "default_partition": "gpu",
            "setup": [f"export PATH=$HOME/bin:{sys.prefix}/bin:$PATH"],
            "network": {"gloo_socket_ifname": "hsn0"},
            "env": {"PYTHONPATH": str(QUICKLY)},
            "options": {"mem": "1G", "time": "00:10:00", "cpus_per_task": 2},
            "runtime": runtime,
            "runtimes": runtimes,
        }
        cluster.put(f"work/{runtime}.yaml", json.dumps(profile))
        for shape, processes in SHAPES.items():
            ddp = {"mode": "ddp", "launcher": shape}
            job = {
                "profile": f"./{runtime}.yaml",
                "trainer": "probe.py",
                "args": [str(processes), *ARGUMENTS],
                "env": {"VALUE": HOSTILE},
                "data": "${HOME}/work/data",
                **({"mode": "single"} if shape == "single" else ddp),
                "options": {"nodelist": "n1"}
                if shape == "single"
                else {"nodes": 2, "gpus_per_node": 2, "nodelist": "n1,n2"},
            }
            cluster.put(f"work/{shape}-{runtime}.yaml", json.dumps(job))


@pytest.fixture(scope="module")
def jobs(site: Site) -> dict[str, int]:
    """Ids by name, all submitted at once."""
    names = sorted(path.stem for path in site.folder.glob("*-*.yaml"))
    done = site.sbatchgen("submit", *(f"{name}.yaml" for name in names), "--yes", check=True)
    return dict(zip(names, map(int, done.stdout.split()), strict=True))


def found(site: Site, jobs: dict[str, int], name: str) -> dict[tuple[str, str], Any]:
    """What the processes of a job have found, with the same words for the job's own name and port."""
    record = site.cluster.wait(jobs[name], {"FAILED"})
    assert record["ExitCode"] == f"{STATUS}:0", site.log(name)
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    port = {f"{low - 8 - jobs[name] % 875 * 8}": "PORT"}
    facts: dict[tuple[str, str], Any] = {}
    for file in sorted((site.folder / "runs" / name).glob("found-*")):
        facts_of_task = json.loads(file.read_text().replace(name, "NAME"))
        env = {key: value for key, value in facts_of_task.pop("env").items() if not differs(key)}
        # Put before the image's own; what the image does not set is still the job's, and occurs twice
        paths = dict.fromkeys(env["PYTHONPATH"].split(":"))
        env["PYTHONPATH"] = ":".join(path for path in paths if not path.endswith("/training/hook"))
        if "MASTER_PORT" in env:
            env["MASTER_PORT"] = port.get(env["MASTER_PORT"], env["MASTER_PORT"])
        facts |= {(file.stem, key): value for key, value in {**env, **facts_of_task}.items()}
    return facts


def differs(name: str) -> bool:
    """Whether a variable may differ between runtimes."""
    return any(re.fullmatch(pattern, name) for pattern in DIFFERENCES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_runtime_starts_what_the_host_starts(site: Site, jobs: dict[str, int], shape: str) -> None:
    host = found(site, jobs, f"{shape}-host")
    others = {name: found(site, jobs, name) for name in jobs if name.startswith(shape)}
    assert len(others) in (2, 4)
    assert [
        (name, place, there.get(place), host.get(place))
        for name, there in others.items()
        for place in sorted(there.keys() | host.keys())
        if there.get(place) != host.get(place)
    ] == []


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_promised_is_there(site: Site, jobs: dict[str, int], shape: str) -> None:
    there = found(site, jobs, f"{shape}-host")
    run, data = f"{site.folder}/runs/NAME", f"{site.folder}/data"
    arguments = ["--lr", "0.1", HOSTILE, "", "--n", f"{run}/x", data, "--resume=auto"]
    promised = {
        "argv": arguments,
        "cwd": str(site.folder),
        "VALUE": HOSTILE,
        "RUN_DIR": run,
        "DATA_DIR": data,
    }
    promised |= {"PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1", "SBATCHGEN_STOP_FILE": f"{run}/stop"}
    promised |= {"RESUME": "auto", "OMP_NUM_THREADS": "2" if shape in ("single", "srun") else "1"}
    if shape != "single":
        promised |= {"MASTER_ADDR": "n1", "MASTER_PORT": "PORT", "GLOO_SOCKET_IFNAME": "hsn0"}
    processes = sorted({process for process, _ in there})
    assert len(processes) == SHAPES[shape]
    for rank, process in enumerate(processes):
        ranks = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank % 2}", "WORLD_SIZE": "4"}
        for name, value in (promised | (ranks if SHAPES[shape] == 4 else {})).items():
            assert (name, there.get((process, name))) == (name, value)
    if SHAPES[shape] != 4:
        assert not {name for _, name in there} & {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
