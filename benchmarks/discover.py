#!/usr/bin/env python3
"""How long `sbatchgen profile discover` takes on a large cluster, compared with Slurm's own commands.

    python benchmarks/discover.py                     # slurmctld with 10,000 nodes
    python benchmarks/discover.py --nodes 1000
    python benchmarks/discover.py --root build/sid    # a later Slurm

Needs root, and Slurm as the tests do. The commands that discover runs are timed alone, and subtracted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.controller import Controller  # noqa: E402

DISCOVER = [[str(Path(sys.prefix, "bin", "sbatchgen")), "profile", "discover"]]
_SLURM = """
scontrol -a -o show partition
scontrol show config
scontrol -a -o -d -F show node
scontrol -o show licenses
sacctmgr -nP show qos format=name
sacctmgr -nP show assoc where user=root format=account
id -Gnz
sbatch --help
"""
SLURM = [line.split() for line in _SLURM.strip().splitlines()]
ROUNDS = 5
MOST_S, MOST_MB = 2.0, 300


def main() -> int:
    """Print the figures; return 1 if they miss their targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=3, help="of which all but two have all nodes")
    parser.add_argument("--root", type=Path, help="the folder of another system, whose Slurm is asked")
    asked = parser.parse_args()
    gpus = max(1, asked.nodes // 10)
    with (
        tempfile.TemporaryDirectory(prefix="discover-") as folder,
        Controller(
            nodes=f"NodeName=n[1-{asked.nodes - gpus}] CPUs=128 RealMemory=512000 Feature=zen4\n"
            f"NodeName=g[1-{gpus}] CPUs=96 RealMemory=1000000 Gres=gpu:h100:8,shard:64",
            gres=f"NodeName=g[1-{gpus}] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"
            f"NodeName=g[1-{gpus}] Name=shard Count=64",
            partitions=f"PartitionName=cpu Nodes=n[1-{asked.nodes - gpus}] Default=YES\n"
            f"PartitionName=gpu Nodes=g[1-{gpus}]\n"
            + "\n".join(f"PartitionName=all{number} Nodes=ALL" for number in range(asked.partitions - 2)),
            root=asked.root and asked.root.resolve(),
        ) as controller,
    ):
        controller.commands(Path(folder), "scontrol", "sbatch", "sacctmgr", "id")
        environment = {"HOME": folder, "PATH": f"{folder}:{os.defpath}"}
        rounds = [(_run(DISCOVER, environment), _run(SLURM, environment)) for _ in range(ROUNDS)]
    print(f"{asked.nodes:,} nodes; beyond Slurm's own commands, the median of {ROUNDS} (least..most):")
    figures = [
        ("seconds", [ours.seconds - theirs.seconds for ours, theirs in rounds], MOST_S),
        ("seconds of CPU", [ours.cpu - theirs.cpu for ours, theirs in rounds], MOST_S),
        ("MB", [ours.memory for ours, _ in rounds], MOST_MB),
    ]
    for unit, own, most in figures:
        middle = sorted(own)[ROUNDS // 2]
        verdict = "PASS" if middle <= most else "MISS"
        print(f"{middle:8.2f} ({min(own):.2f}..{max(own):.2f}) {unit}, {verdict} ({most})")
    return int(any(sorted(own)[ROUNDS // 2] > most for _, own, most in figures))


class Used(NamedTuple):
    """Seconds, seconds of CPU, and the most memory of a process in MB."""

    seconds: float
    cpu: float
    memory: float


def _run(commands: Sequence[Sequence[str]], environment: dict[str, str]) -> Used:
    """Return what commands use one after the other, with all that they start."""
    start, cpu, memory = time.perf_counter(), 0.0, 0.0
    for command in commands:
        with tempfile.TemporaryFile("w+") as printed:
            child = subprocess.Popen(command, env=environment, stdout=printed, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            printed.seek(0)
            if commands is DISCOVER and "cpus_per_node: 128" not in printed.read():
                sys.exit(f"discover failed with {child.returncode}")
        cpu += used.ru_utime + used.ru_stime
        memory = max(memory, used.ru_maxrss * 1024 / 1e6)
    return Used(time.perf_counter() - start, cpu, memory)


if __name__ == "__main__":
    sys.exit(main())
