"""What a budget counts, beside what Slurm gives: never less, and the same where nothing is left open."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY

# Nodes with one and with two threads a core; partitions that give whole nodes, or more CPUs than are asked for.
SETTINGS = """\
NodeName=n[1-2] Sockets=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:a100:4,shard:64
NodeName=n[3-4] Sockets=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=16000 Gres=gpu:a100:4,shard:64
PartitionName=gpu Nodes=n[1-2] Default=YES MaxTime=1-00:00:00
PartitionName=ht Nodes=n[3-4] MaxTime=1-00:00:00 DefaultTime=30
PartitionName=whole Nodes=n[3-4] OverSubscribe=EXCLUSIVE
PartitionName=per_gpu Nodes=n[1-2] DefCpuPerGPU=2
PartitionName=memory Nodes=n[1-2] MaxMemPerCPU=1000
PartitionName=all Nodes=n[1-4]
"""
EXACT = """\
--ntasks=1
-c 3
--nodes=1 --ntasks=3
--nodes=1 --ntasks=3 --cpus-per-task=2
--nodes=2
--nodes=2 --ntasks=2
--nodes=2 --ntasks=5
--nodes=2 --ntasks-per-node=3
--nodes=2 --cpus-per-task=3
--gpus=1
--nodes=1 --gpus=3
--nodes=1 --gpus=a100:2
--nodes=2 --gpus=8
--nodes=1 --gpus=2 --ntasks=4
--gpus-per-node=2
--gpus-per-node=a100
--gpus-per-node=4 --nodes=2
--gpus-per-node=a100:1 --ntasks=3 --nodes=2
--gpus-per-task=1 --ntasks=4 --nodes=1
--gpus-per-task=2 --ntasks=4 --nodes=2
--gpus-per-task=1 --ntasks-per-node=2 --nodes=2
--gres=gpu:2
--gres=gpu
--gres=gpu:a100:3 --nodes=2
--gres=gpu:1 --cpus-per-gpu=3
--gpus=2 --cpus-per-gpu=2 --nodes=1
--gpus=4 --ntasks-per-gpu=2 --nodes=1
--ntasks=4 --ntasks-per-gpu=2 --nodes=1
--gpus-per-node=2 --ntasks-per-gpu=1 --nodes=2
--gres=shard:16
--gres=shard:1
--exclusive
--exclusive --gpus-per-node=1
--exclusive --nodes=2 --gpus=2
--exclusive=user --gpus=1
--mem=16000
-w n1,n2 --gpus-per-node=1
--mem-per-cpu=3000 -p memory
--mem=8000 -p memory
--mem-per-cpu=4000 --ntasks=2 -p memory
--mem=0
-p ht --ntasks=1
-p ht --nodes=1 --ntasks=3
-p ht --nodes=1 --ntasks=3 --cpus-per-task=3
-p ht --nodes=1 --threads-per-core=1 --ntasks=3
-p ht --nodes=1 --hint=nomultithread --ntasks=4
-p ht --nodes=1 --ntasks-per-core=1 --ntasks=4
-p ht --gpus=1 --cpus-per-gpu=3
-p ht --gpus-per-node=2 --nodes=2 --ntasks=2
-p whole
-p whole --ntasks=1 --gpus=1
-p whole --nodes=2
-p per_gpu --nodes=1 --gpus=2
-p per_gpu --gpus-per-node=2 --nodes=2
-p per_gpu --gres=gpu:1 --cpus-per-task=1
--mincpus=4
-B 2:2:1
-n 2 -N 2 -c 2 --gres=gpu:a100:1
--ntasks-per-node=4 --cpus-per-task=2 --gres=gpu:4 --nodes=1
--cpus-per-gpu=8 --gpus-per-node=1
"""
OPEN = """\
--gpus=4 --cpus-per-gpu=2 --nodes=2
--ntasks=3
--ntasks=3 --cpus-per-task=2
--ntasks=9
--nodes=1-2 --ntasks=3
--gpus=3
--gpus=5
--gpus-per-node=4 --ntasks=2
--gpus-per-node=2 --cpus-per-gpu=2 --ntasks=3
--gpus-per-task=1 --ntasks=4
--ntasks=4 --ntasks-per-gpu=2
-p all --nodes=3
-p all --nodes=2-4
-p all --nodes=2-4 --gpus-per-node=1
-p all --spread-job --ntasks=4 --gpus-per-node=1
-p all --ntasks=4 --gpus-per-node=1 --nodes=1-4
-p all --use-min-nodes --nodes=1-3 -n 3 --gpus-per-node=1
-p all --overcommit --ntasks=16 --nodes=1
-p all --distribution=cyclic -n 4 --nodes=2 --gpus=3
-p all --nodes=4 --no-kill --gpus=4
-p all --contiguous -N 3 --gpus-per-node=2
-p all --ntasks-per-node=3 --ntasks=5
-p all --ntasks-per-node=1 --gpus=3
-p all --ntasks-per-socket=1 --ntasks=4
-p all --core-spec=1
-p all --mem-per-gpu=4000 --gpus=2
-p all -w n[1-3]
-p gpu,ht -n 3
-p ht --ntasks=3
"""
# More than one option of GPUs; some releases refuse some.
BOTH = """\
--gpus-per-node=1 --gpus=2
--gpus-per-node=1 --gpus=2 --nodes=2
--gpus-per-node=1 --gres=gpu:2
--gpus-per-node=2 --gres=gpu:1
--gpus=2 --gres=gpu:1
--gpus=1 --gres=gpu:2
--gpus=4 --gres=gpu:2 --nodes=2
--gpus=4 --gpus-per-task=2
--gpus-per-task=1 --gpus-per-node=2 --ntasks=4
--gpus-per-task=1 --gres=gpu:4 --ntasks=2
--gpus-per-task=2 --gpus-per-node=4 --ntasks=2 --nodes=1
--gres=gpu:2,gpu:a100:1
--gres=gpu:1,gpu:a100:1
--gres=gpu:1,shard:16
--gres=shard:16 --gpus=1
--gpus-per-node=1 --gres=shard:32
"""
COUNT = """
import json, os, subprocess, sys
from sbatchgen.jobs.budget.demand import compute_demand
known = []
for number, line in enumerate(json.load(sys.stdin)):
    text = f"#!/bin/bash\\n#SBATCH --time=5\\n#SBATCH {line}\\nscontrol -d show job $SLURM_JOB_ID >{number}.says\\n"
    asked = compute_demand(text.encode(), (), dict(os.environ))
    open("job.sh", "w").write(text)
    done = subprocess.run(["sbatch", "--parsable", "-o/dev/null", "job.sh"], capture_output=True, text=True)
    known.append([line, asked.gpus, asked.cpus, int(done.stdout or 0), done.stderr])
print(json.dumps(known))
"""


@pytest.fixture(scope="module")
def mixed(slurm_root: Path | None) -> Iterator[Cluster]:
    """A cluster with nodes of two kinds."""
    with Cluster(visible=VISIBLE, settings=SETTINGS, root=slurm_root) as cluster:
        yield cluster


def given(text: str) -> tuple[float, int]:
    """The GPUs and CPUs that Slurm has given a job, by its own record."""
    gpus = 0.0
    for names, gres in re.findall(r" Nodes=(\S+) CPU_IDs=.*?GRES=(\S*)", text):
        spans = re.findall(r"(\d+)(?:-(\d+))?", names)
        here = sum(int(last or first) - int(first) + 1 for first, last in spans)
        for name, count in re.findall(r"(gpu|shard)(?::a100)?:(\d+)", gres):
            gpus += here * int(count) / (1 if name == "gpu" else 16)
    return gpus, int(re.findall(r" NumCPUs=(\d+)", text)[0])


@pytest.mark.proof
def test_it_is_never_less_than_slurm_gives(mixed: Cluster) -> None:
    lines = (EXACT + OPEN + BOTH).splitlines()
    done = mixed.run(
        [sys.executable, "-c", COUNT],
        input=json.dumps(lines),
        env={"PYTHONPATH": str(REPOSITORY)},
        check=True,
    )
    less, other = [], []
    for number, (line, gpus, cpus, job, says) in enumerate(json.loads(done.stdout)):
        assert job or line in BOTH.splitlines(), (line, says)
        if not job:
            continue
        mixed.wait(job, timeout=300)
        has = given((mixed.home / f"{number}.says").read_text())
        less += [(line, (gpus, cpus), has)] if gpus < has[0] - 1e-6 or cpus < has[1] else []
        if line in EXACT.splitlines() and (gpus, cpus) != has:
            other.append((line, (gpus, cpus), has))
    assert less == []
    assert other == []
    assert len(lines) > 80
