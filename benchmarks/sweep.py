#!/usr/bin/env python3
"""A sweep of many points on a real Slurm: does each point run once, and each failed one once more?

    python benchmarks/sweep.py                # 5,000 points, MaxArraySize 1001
    python benchmarks/sweep.py --points 200 --array-size 31

Boots a Slurm of its own, as the tests do: needs root and Debian's slurm-wlm and munge.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sbatchgen.base.quoting import numbers_as_text  # noqa: E402
from tests.cluster.slurm import Cluster  # noqa: E402
from tests.jobs.jobs import PROFILE, SBATCHGEN  # noqa: E402

# Says that it has run; fails if its point is one of every hundred, and the file `mend` is not there.
TRAINER = """\
import os, sys
point = int(sys.argv[1].partition("=")[2])
with open("ran", "a") as file:
    file.write(f"{point}\\n")
sys.exit(3 if point % 100 == 7 and not os.path.exists("mend") else 0)
"""
FLAGS = ("--trainer", "t.py", "--nodes", "1", "--cpus-per-task", "1", "--mem", "100M", "--resume", "off")


def main() -> int:
    """Print the figures; return 1 if a point did not run exactly as often as it should."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=5000)
    parser.add_argument("--array-size", type=int, default=1001)
    options = parser.parse_args()
    every, bad = range(options.points), range(7, options.points, 100)
    visible = [Path(sys.base_prefix), Path(sys.prefix), ROOT]
    with Cluster(visible=visible, settings=f"MaxArraySize={options.array_size}\n") as cluster:
        cluster.put("work/testing.yaml", PROFILE)
        cluster.put("work/t.py", TRAINER)
        cluster.put("work/p.csv", "".join(f"{line}\n" for line in ("point", *every)))
        arrays, seconds = _submit(
            cluster, "sweep", "cpu", "--profile", "./testing.yaml", "--file", "p.csv", *FLAGS
        )
        print(f"{options.points:,} points submitted in {arrays} arrays in {seconds:.1f} s")
        good = _judge("all points", cluster, every, failed=bad)
        cluster.put("work/mend", "")
        _submit(cluster, "resubmit", "cpu", "--failed")
        return 0 if _judge("those that failed", cluster, bad, failed=()) and good else 1


def _submit(cluster: Cluster, *arguments: str) -> tuple[int, float]:
    """Submit a sweep; return how many arrays it has, and how many seconds that took."""
    began = time.monotonic()
    done = cluster.run([SBATCHGEN, *arguments, "--yes"], cwd=cluster.home / "work", check=True)
    return len(done.stdout.split()), time.monotonic() - began


def _judge(title: str, cluster: Cluster, expected: range, *, failed: Any) -> bool:
    """Wait for the end, print how often each point ran, and whether that is right."""
    began = time.monotonic()
    while (points := _points(cluster)) and any(point["live"] for point in points):
        time.sleep(10)
    seconds = time.monotonic() - began
    file = cluster.home / "work" / "ran"
    ran = Counter(int(line) for line in file.read_text().split())
    file.unlink()
    states = Counter(point["state"] for point in points)
    print(
        f"{title}: {len(expected):,}; {sum(ran.values()):,} starts of {len(ran):,} points in {seconds:.0f} s"
    )
    print(f"  status: {', '.join(f'{count:,} {state}' for state, count in states.items())}")
    bad = {point["number"] for point in points if point["state"] == "failed"}
    right = ran == Counter(expected) and bad == {*failed}
    if not right:
        missing = sorted({*expected} - {*ran})
        more = sorted(point for point in ran if ran[point] > 1 or point not in expected)
        print(f"  wrong: not run {numbers_as_text(missing)}; too often {numbers_as_text(more)}")
    return right


def _points(cluster: Cluster) -> list[dict[str, Any]]:
    answer = cluster.run(
        [SBATCHGEN, "status", "cpu", "--format", "json"], cwd=cluster.home / "work", check=True
    )
    return list(json.loads(answer.stdout)["runs"][0]["points"])


if __name__ == "__main__":
    sys.exit(main())
