#!/usr/bin/env python3
"""How often diagnose names the cause of a failed job: 32 kinds of failures, each submitted in three ways.

    python benchmarks/causes.py            # on a real Slurm that it boots, some minutes
    python benchmarks/causes.py data port  # only these kinds
    python benchmarks/causes.py --fixes    # shows the fixes too

`rendered` is a job of the mode cpu whose trainer fails, `script` the same by `sbatchgen submit SCRIPT`, and
`plain` by sbatch. Needs root and Debian's slurm-wlm. What needs a GPU, a full disk or another machine is
printed as the programs print it. Time limits, a failed node, preemption and scancel are Slurm's own.

Exit status: 1 where more than one cause is wrong in one of the ways.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import SBATCHGEN
from tests.runs.test_plain_jobs import DDP, FAILURES, PORT

NCCL = (
    "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 "
    "milliseconds before timing out."
)
RESOLUTION = "socket.gaierror: [Errno -3] Temporary failure in name resolution"
MISMATCH = "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for fc.weight"
WAYS = ("rendered", "script", "plain")
# What a body prints or does, and the cause; first those of the test of plain jobs that a body alone makes.
MADE_OTHERWISE = ("oom-kill", "time-limit", "cancelled", "log-folder", "node")  # by Slurm
KINDS = {name: (body, cause) for name, (_, body, cause) in FAILURES.items() if name not in MADE_OTHERWISE} | {
    "oom-kill": (FAILURES["oom-kill"][1], "host-memory"),
    "argument": (
        "python3 -c 'import argparse; argparse.ArgumentParser().parse_args([\"--x\"])'",
        "arguments",
    ),
    "syntax": ("echo 'def f(:' >bad.py; python3 bad.py", "syntax"),
    "value": ("echo 'int(\"three\")' >value-$SLURM_JOB_ID.py; python3 value-$SLURM_JOB_ID.py", "exception"),
    "loss": ("python3 -c 'raise FloatingPointError(\"loss is nan\")'", "not-finite"),
    "hidden": ("python3 -c 'import einopps' || true; echo done; exit 3", "package-missing"),
    "nccl": (
        f"echo '{NCCL}'; kill -ABRT $$",
        "collective-timeout",
    ),
    "driver": (
        "echo 'RuntimeError: The NVIDIA driver on your system is too old (found version 11040).'; exit 1",
        "gpu-driver",
    ),
    "host": (
        "echo 'socket.gaierror: [Errno -3] Temporary failure in name resolution' >&2; exit 1",
        "no-internet",
    ),
    "assertion": ("echo 'assert 1 == 2, 3' >a-$SLURM_JOB_ID.py; python3 a-$SLURM_JOB_ID.py", "exception"),
    "invalid-device": ("echo 'RuntimeError: CUDA error: invalid device ordinal'; exit 1", "gpu-number"),
    "state-dict": (
        f"echo '{MISMATCH}' >&2; exit 1",
        "checkpoint-mismatch",
    ),
    "quota": ("echo 'OSError: [Errno 122] Disk quota exceeded: /scratch/x' >&2; exit 1", "disk-quota"),
}
RENDEZVOUS = (
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."
)
# What Slurm does to a job that runs: its options, what runs, and the cause.
ENDED = {
    "limit": (["--partition=gpu"], "exec sleep 900", "time-limit"),
    "torchrun-limit": (
        ["--partition=gpu"],
        "echo 'import time; time.sleep(900)' >w.py; torchrun w.py",
        "time-limit",
    ),
    "failed-node": (["--partition=gpu", "--no-requeue", "--nodelist=n4"], "exec sleep 900", "node-failure"),
    "scancel": (["--partition=gpu"], "exec sleep 900", "cancelled"),
    "preempted": (["--partition=low", "--no-requeue", "--nodelist=n3"], "exec sleep 900", "preempted"),
}
KINDS |= {name: (body, cause) for name, (_, body, cause) in ENDED.items()}
KINDS["rendezvous"] = (f"echo '{RENDEZVOUS}' >&2; exit 1", "meeting")
TRAINER = "import os, sys\nos.execvp('bash', ['bash', '-c', {body!r}])\n"


def submitted(cluster: Cluster, work: Path, way: str, name: str, body: str) -> str:
    """Submit a job that fails; return its id."""
    path = f"export PATH={SBATCHGEN.parent}:$PATH OMP_NUM_THREADS=1"
    title, options = f"{name}-{way}", ENDED[name][0] if name in ENDED else []
    if way == "rendered":
        cluster.put(f"work/{title}.py", TRAINER.format(body=f"{path}\n{body}\n"))
        words = ["cpu", "--profile", "./site.yaml", "--trainer", f"{title}.py", "--job-name", title]
        words += ["--resume", "off", "--time", "5"]
        for option in options:
            words += ["--set", "options.requeue=false"] if option == "--no-requeue" else option.split("=")
    else:
        head = f"#!/bin/bash\n#SBATCH -J {title} -t 5 {' '.join(options)}\n"
        cluster.put(f"work/{title}.sh", f"{head}{path}\n{body}\n")
        words = [f"{title}.sh"]
    if way == "plain":
        return str(cluster.sbatch(f"{title}.sh", cwd=work))
    return cluster.run([SBATCHGEN, "submit", *words, "--yes"], cwd=work, check=True).stdout.strip()


def end(cluster: Cluster, jobs: dict[tuple[str, str], str], kinds: Iterable[str]) -> None:
    """Let Slurm end the jobs that it has to end, when their programs run."""
    for (name, _), job in jobs.items():
        if name not in ENDED:
            continue
        cluster.wait(job, ["RUNNING"])
        if name in ("limit", "torchrun-limit"):
            soon = datetime.now() + timedelta(seconds=10)  # noqa: DTZ005 - as Slurm reads it
            cluster.root(["scontrol", "update", f"jobid={job}", f"endtime={soon:%Y-%m-%dT%H:%M:%S}"])
        elif name == "scancel":
            cluster.root(["scancel", job])
    if "failed-node" in kinds:
        cluster.stop_node("n4", declare=True)
    if "preempted" in kinds:
        cluster.sbatch("--partition=high", "--nodelist=n3", "--exclusive", "--time=1", "--wrap", "true")


def main() -> int:
    """Print a line for each kind, and the counts."""
    shows = "--fixes" in sys.argv
    kinds = {name: KINDS[name] for name in [each for each in sys.argv[1:] if each != "--fixes"] or KINDS}
    right: Counter[str] = Counter()
    with Cluster(visible=VISIBLE) as cluster:
        work = cluster.home / "work"
        cluster.put("work/ddp.py", DDP)
        cluster.put("work/port.py", PORT)
        cluster.run(
            [SBATCHGEN, "profile", "discover", "--name", "site", "--write", "site.yaml"], cwd=work, check=True
        )
        jobs = {
            (name, way): submitted(cluster, work, way, name, body)
            for name, (body, _) in kinds.items()
            for way in WAYS
        }
        end(cluster, jobs, kinds)
        for job in jobs.values():
            cluster.wait(int(job))
        for name, (_, cause) in kinds.items():
            named = {}
            for way in WAYS:
                said = cluster.run([SBATCHGEN, "diagnose", jobs[name, way], "--format", "json"], cwd=work)
                causes = json.loads(said.stdout)["causes"] if said.stdout else []
                named[way] = causes[0]["cause"] if causes else "none"
                right[way] += named[way] == cause
                if shows and causes:
                    print(f"    {way}: {causes[0]['means']}; fix: {causes[0]['fix']}")
            wrong = ", ".join(f"{way}: {what}" for way, what in named.items() if what != cause)
            print(f"{name:16} {cause:20} {wrong or 'right'}", flush=True)
    print(f"right of {len(kinds)}: " + ", ".join(f"{way} {right[way]}" for way in WAYS))
    return int(any(right[way] < len(kinds) - 1 for way in WAYS))


if __name__ == "__main__":
    sys.exit(main())
