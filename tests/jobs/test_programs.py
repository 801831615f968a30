"""Trainers that know nothing of the script: they resume by arguments, and read their place from the environment.

Each trainer here starts as public programs do, in few lines: see docs/how-to/programs.md.
"""

from __future__ import annotations

import json

import pytest

from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import Site, site_on

pytestmark = on_one_release
# At its first start it leaves a checkpoint and a later one that was cut off, and waits for the end of the job.
RESUMES = """
import json, os, sys, time, zipfile
from pathlib import Path

run, restart = Path(os.environ["RUN_DIR"]), os.environ.get("SLURM_RESTART_COUNT", "0")
first = os.environ["SLURM_NODEID"] == "0" and os.environ.get("LOCAL_RANK", "0") == "0"
for number in (1, 2) if first and restart == "0" else ():
    (run / str(number)).mkdir()
    last = run / str(number) / "last.pt"
    with zipfile.ZipFile(last, "w") as file:
        file.writestr("data", "weights")
    last.write_bytes(last.read_bytes()[:None if number == 1 else -9])
    os.utime(last, (time.time() + number, ) * 2)
left = run / f"start{restart}-{os.uname().nodename}-{os.getpid()}"
left.with_suffix(".new").write_text(json.dumps(sys.argv[1:]))
left.with_suffix(".new").rename(left)
time.sleep(600 if restart == "0" else 0)
"""
RESUMING = """
trainer: resumes.py
args: [--epochs, 3, --node, "{node_rank} of {nnodes}", --text, "{{node_rank}}"]
checkpoint: "{run_dir}/[0-9]*/last.pt"
resume_args: [--resume, "{checkpoint}", --out, "{checkpoint_dir}"]
options: {cpus_per_task: 1}
"""
PROCESSES = {"single": 1, "torchrun": 4, "srun": 4, "spawn": 2}  # that the script starts
# As torchvision's references, DINO and others do (A), as nanoGPT (B), and as Lightning (C).
STARTS = """
import os

if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
    print("A: rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"])
elif "SLURM_PROCID" in os.environ:
    raise AttributeError("world_size")
else:
    print("A: alone")
print("B: DDP" if int(os.environ.get("RANK", -1)) != -1 else "B: alone")
print("C: rank", os.environ["SLURM_PROCID"]) if "SLURM_NTASKS" in os.environ else print("C: alone")
"""
# As imagenet/main.py of pytorch/examples: a process on each node, whose options name its place.
MEETS = """
import argparse, socket, time
from urllib.parse import urlsplit

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--world-size", type=int)
parser.add_argument("--dist-url")
args = parser.parse_args()
url = urlsplit(args.dist_url)
if args.rank == 0:
    with socket.create_server((url.hostname, url.port)) as server:
        for _ in range(args.world_size - 1):
            print("met rank", server.accept()[0].recv(9).decode())
else:
    for _ in range(300):
        try:
            socket.create_connection((url.hostname, url.port)).send(str(args.rank).encode())
            break
        except OSError:
            time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Site:
    site = site_on(cluster)
    cluster.put("work/resumes.py", RESUMES)
    cluster.put("work/starts.py", STARTS)
    cluster.put("work/meets.py", MEETS)
    return site


def submit(site: Site, name: str, text: str) -> int:
    site.cluster.put(f"work/{name}.yaml", text)
    return int(site.sbatchgen("submit", f"{name}.yaml", "--yes", check=True).stdout)


def left(site: Site, name: str, start: int) -> list[list[str]]:
    """The arguments of each process of a start."""
    files = sorted((site.folder / "runs" / name).glob(f"start{start}-*[0-9]"))
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.proof
def test_arguments_for_resuming_are_given_once_there_is_a_checkpoint(site: Site) -> None:
    """On every node the same: those of the newest file that is complete."""
    ddp = "mode: ddp\nnproc_per_node: 2\ngpu_request: none\nlauncher: "
    modes = {name: "mode: single" if name == "single" else f"{ddp}{name}" for name in PROCESSES}
    ids = {name: submit(site, name, f"{RESUMING}{mode}\n") for name, mode in modes.items()}
    for name, job in ids.items():
        site.cluster.until(lambda name=name: len(left(site, name, 0)) == PROCESSES[name], site.log(name))  # type: ignore[misc]
        site.cluster.run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
    for name, job in ids.items():
        site.cluster.wait(job, {"COMPLETED"})
        nodes, folder = 1 if name == "single" else 2, site.folder / "runs" / name / "1"
        each = PROCESSES[name] // nodes
        always = [
            ["--epochs", "3", "--node", f"{node} of {nodes}", "--text", "{node_rank}"]
            for node in range(nodes)
            for _ in range(each)
        ]
        resumed = ["--resume", f"{folder}/last.pt", "--out", str(folder)]
        assert left(site, name, 0) == always
        assert left(site, name, 1) == [[*args, *resumed] for args in always]


def test_a_single_trainer_does_not_take_itself_for_a_rank(site: Site) -> None:
    job = submit(site, "alone", "mode: single\ntrainer: starts.py\n")
    site.cluster.wait(job, {"COMPLETED"})
    assert [line for line in site.log("alone").splitlines() if line[1:2] == ":"] == [
        "A: alone",
        "B: alone",
        "C: alone",
    ]


def test_a_trainer_that_starts_its_processes_gets_its_node_and_where_to_meet(site: Site) -> None:
    args = (
        '[--world-size, "{nnodes}", --rank, "{node_rank}", --dist-url, "tcp://{master_addr}:{master_port}"]'
    )
    job = submit(
        site,
        "meets",
        f"mode: ddp\nlauncher: spawn\ntrainer: meets.py\nnproc_per_node: 1\ngpu_request: none\nargs: {args}\n",
    )
    site.cluster.wait(job, {"COMPLETED"})
    assert "met rank 1\n" in site.log("meets")
