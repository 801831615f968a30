"""Why runs fail: words made by running Python, torch, gloo, bash and a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.failure import known_causes
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import fit_the_schema
from tests.jobs.jobs import SBATCHGEN
from tests.runs.test_failure import ENDED, RECORDED, found

TORCH = """
import os, sys, traceback
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder = sys.argv[1]

class Unused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.a(x)

def unused():
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    model = DistributedDataParallel(Unused())
    for _ in range(2):
        model(torch.zeros(1, 2)).sum().backward()

def damaged():
    torch.save({"a": torch.zeros(1000)}, f"{folder}/a.pt")
    os.truncate(f"{folder}/a.pt", os.stat(f"{folder}/a.pt").st_size // 2)
    torch.load(f"{folder}/a.pt")

def global_():
    torch.save(timedelta(1), f"{folder}/b.pt")
    torch.load(f"{folder}/b.pt")

def port():
    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    dist.TCPStore("127.0.0.1", store.port, 1, True)

def interface():
    dist.ProcessGroupGloo.create_device(interface="nope0")

def files():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    [open("/dev/null") for _ in range(30)]

for make in (
    lambda: torch.zeros(1).cuda(),
    lambda: torch.zeros(1 << 60),
    lambda: bytearray(1 << 62),
    lambda: torch.nn.Linear(2, 3).load_state_dict({"module.weight": torch.zeros(3, 2)}),
    damaged, global_, port, interface, unused,
    lambda: dist.TCPStore("127.0.0.1", 1, 2, False, timedelta(milliseconds=10)),
    lambda: dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=5)),  # its own client has to connect
    lambda: dist.init_process_group("gloo", init_method="env://"),
    lambda: open("/nope/file"),
    lambda: __import__("nosuchmodule"),
    lambda: exec("from torch import nosuchname"),
    lambda: __import__("ctypes").CDLL("libnosuch.so.1"),
    files,
):
    try:
        dist.is_initialized() and dist.destroy_process_group()
        make()
    except BaseException:
        text = traceback.format_exc()
    print("===", text, sep="\\n", flush=True)
"""
BASH = r"""
nosuchcommand
printf 'echo a\n\r\n' >dos.sh; bash dos.sh
printf '#!/nope/python\n' >bad.sh; chmod +x bad.sh; ./bad.sh
printf '\177ELFx' >elf; chmod +x elf; ./elf
touch plain; ./plain
python3 -c 'import argparse; argparse.ArgumentParser("train.py").parse_args()' --lr
python3 -m nosuchmodule
"""
MADE = (
    ("AssertionError: Torch not compiled", "cpu-torch"),
    ("DefaultCPUAllocator", "host-memory"),
    ("MemoryError", "host-memory"),
    ("loading state_dict", "checkpoint-mismatch"),
    ("PytorchStreamReader", "checkpoint-damaged"),
    ("Weights only load failed", "weights-only"),
    ("EADDRINUSE", "address-in-use"),
    ("nope0", "gloo-interface"),
    ("finished reduction", "unused-parameters"),
    ("trying to connect", "meeting"),
    ("waiting for clients", "meeting"),
    ("env:// rendezvous", "world-variables"),
    ("'/nope/file'", "file-missing"),
    ("nosuchmodule", "package-missing"),
    ("nosuchname", "import"),
    ("libnosuch.so.1", "shared-library"),
    ("Too many open files", "open-files"),
    ("nosuchcommand: command not found", "command-not-found"),
    (r"$'\r'", "dos-lines"),
    ("bad.sh", "interpreter"),
    ("Exec format error", "exec-format"),
    ("Permission denied", "permission"),
    ("train.py: error", "arguments"),
)


@pytest.mark.proof
@pytest.mark.slow
def test_what_programs_of_this_machine_print_is_known(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(TORCH)
    (tmp_path / "b.sh").write_text(BASH)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    said = ""
    for command in ([sys.executable, "made.py", "."], ["bash", "b.sh"]):
        environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LC_ALL": "C"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        said += done.stdout + done.stderr
    for words, cause in MADE:
        lines = [line for line in said.splitlines() if words in line and not line.startswith("    ")]
        assert cause in found("\n".join(lines)), (words, lines, said)


JOBS = {  # the script's options and body, and what is found
    "import": ("", "python3 -c 'import nosuchmodule'", "package-missing"),
    "stderr": ("--error=err-%j", "nosuchcommand", "command-not-found"),
    "gres": ("", "srun --gpus-per-node=1 true", "step-gres"),
    "size": ("", "srun -N3 -n3 true", "step-size"),
    "shell": ("", "srun ./nothere", "command-not-found"),
    "kill": ("", "kill -9 $$", "killed"),
    "busy": (
        "--mem=100M",
        "srun sleep 60 & sleep 1; srun --immediate=1 true || { kill %1; exit 1; }",
        "step-busy",
    ),
    "cancelled": ("--hold", "true", "cancelled"),
    "folder": ("--hold --output=gone/log/%j", "true", "log-folder"),
    "moved": ("--chdir=/nope --output={work}/%x-%j", "exit 1", "working-folder"),
    "silent": ("", "set -e\nfalse\nset +eu +o pipefail", "setup"),  # as a profile's setup is rendered
    "node": ("--no-requeue --nodelist=n4", "sleep 600", "node-failure"),
}


@pytest.mark.proof
@pytest.mark.slow
def test_what_a_real_slurm_makes_of_failures_is_known(slurm_root: Path | None) -> None:
    with Cluster(visible=VISIBLE, root=slurm_root) as cluster:
        work = cluster.home / "work"

        def sbatchgen(*arguments: str) -> subprocess.CompletedProcess[str]:
            done = cluster.run([SBATCHGEN, *arguments], cwd=work)
            fit_the_schema(arguments, done.stdout)
            return done

        jobs = {}
        for name, (options, body, _) in JOBS.items():
            cluster.put(
                f"work/{name}.sh",
                f"#!/bin/bash\n#SBATCH -J {name} -t 5 {options.format(work=work)}\n{body}\n",
            )
            done = sbatchgen("submit", f"{name}.sh", "--yes")
            assert done.returncode == 0, done.stderr
            jobs[name] = done.stdout.strip()
        shutil.rmtree(work / "gone")
        (work / "gone").touch()  # where no release can make a folder
        cluster.run(["scontrol", "release", jobs["folder"]], check=True)
        cluster.run(["scancel", jobs["cancelled"]], check=True)
        cluster.wait(jobs["node"], ["RUNNING"])
        cluster.stop_node("n4", declare=True)
        for name, job in jobs.items():
            cluster.wait(job)
            said = json.loads(sbatchgen("diagnose", name, "--format", "json").stdout)
            assert (said["failed"], said["problems"]) == (True, []), said
            assert said["causes"][0]["cause"] == JOBS[name][2], said
        said = sbatchgen("diagnose", "size").stdout
        assert re.search(r"job \d+ failed: exit status 1\nmost likely: a step asked for more than", said)


def test_each_cause_has_its_words_and_its_source() -> None:
    """Recorded ones, or ones that are made above."""
    tested = (
        {recorded["cause"] for recorded in RECORDED["seen"]}
        | {cause for _, cause in MADE}
        | {cause for cause, _ in ENDED}
        | {cause for *_, cause in JOBS.values()}
    )
    of_effects = {"torchrun-signal"}  # tests/runs/test_failure.py has them beside their causes
    assert {known.cause for known in known_causes()} - of_effects == tested - {
        "own-words",
        "setup",
    }  # these are of no text
    assert all(known.source and (known.log or known.ended) for known in known_causes())
    assert len({known.cause for known in known_causes()}) == len(known_causes())
